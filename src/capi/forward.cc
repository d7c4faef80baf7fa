// kvcache.h, section "Forward".
#include "src/base/tensor.h"
#include "src/capi/handles.h"
#include "src/capi/sized_struct.h"

using kvc::fail;
using kvc::fail_with;
using kvc::guard;
using kvc::require;

kvc_status kvc_forward_begin(kvc_cache* cache, const kvc_forward_desc* desc, kvc_forward** out,
                             kvc_error* err) noexcept {
  return guard(err, [&] {
    require(cache, "cache");
    require(out, "out");
    const kvc_forward_desc read = kvc::read_struct(desc, "desc");
    kvc::refuse_extensions(read.ext, "desc");
    if (read.flags != 0) {
      fail_with(KVC_E_UNSUPPORTED, static_cast<int64_t>(read.flags),
                "desc->flags = %llu is not supported: 0 is", static_cast<unsigned long long>(read.flags));
    }
    if (read.tree_parents != nullptr)
      fail(KVC_E_UNSUPPORTED, "desc->tree_parents is set: token trees are not supported, NULL is");
    if (read.tokens != nullptr)
      fail(KVC_E_UNSUPPORTED, "desc->tokens is set: the prefix index is not supported, NULL is");
    *out = cache->cache.begin({read.num_seqs, read.seqs, read.append_lengths});
  });
}

int64_t kvc_forward_num_tokens(const kvc_forward* fwd) noexcept {
  return fwd == nullptr || !fwd->open ? -1 : fwd->cache->forward().batch().num_rows();
}

kvc_status kvc_forward_positions(kvc_forward* fwd, DLTensor* out, kvc_error* err) noexcept {
  return guard(err, [&] {
    const kvc::Batch& batch = kvc::open_cache(fwd).forward().batch();
    int32_t* positions = kvc::view_i32_vector(out, "out", batch.num_rows());
    for (const kvc::BatchEntry& entry : batch.entries()) {
      for (int64_t i = 0; i < entry.append_length; ++i)
        positions[entry.row_begin + i] = static_cast<int32_t>(entry.old_length + i);
    }
  });
}

kvc_status kvc_forward_end(kvc_forward* fwd, kvc_error* err) noexcept {
  return guard(err, [&] { kvc::open_cache(fwd).end(fwd); });
}

kvc_status kvc_forward_abort(kvc_forward* fwd, kvc_error* err) noexcept {
  if (fwd == nullptr) return KVC_OK;
  return guard(err, [&] { kvc::open_cache(fwd).abort(fwd); });
}
