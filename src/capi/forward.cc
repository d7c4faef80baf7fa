// kvcache.h, section "Forward".
#include <algorithm>

#include "src/base/tensor.h"
#include "src/capi/call.h"
#include "src/capi/guard.h"

using kvc::CacheCall;
using kvc::fail;
using kvc::fail_with;
using kvc::guard;
using kvc::ReadCall;
using kvc::require;

namespace {

// [tokens], or [sections, tokens].
void check_position_rank(const DLTensor& tensor, const char* name) {
  if (tensor.ndim != 1 && tensor.ndim != 2)
    fail_with(KVC_E_SHAPE, tensor.ndim, "%s has %d dimensions, expected 1 or 2", name, tensor.ndim);
}

// The caller's rotary positions, copied; none when desc.positions is NULL.
kvc::GivenPositions read_positions(const kvc::Spec& spec, const kvc_forward_desc& desc) {
  kvc::GivenPositions given;
  const int32_t sections = spec.num_position_rows();
  if (desc.positions == nullptr) return given;
  if (spec.has_rope_mode(KVC_ROPE_ON_READ)) {
    fail(KVC_E_UNSUPPORTED,
         "desc->positions is set: a layer that rotates on read (mode ON_READ (%d), or LONGROPE "
         "(%d)) knows the positions of tokens only",
         KVC_ROPE_ON_READ, KVC_ROPE_SCALING_LONGROPE);
  }
  // The batch is checked in full later: here the sum must not wrap, and arrays may be NULL.
  int64_t num_tokens = 0;
  for (size_t i = 0; desc.append_lengths != nullptr && i < desc.num_seqs; ++i) {
    if (desc.append_lengths[i] < 0 || desc.append_lengths[i] > kvc::kMaxSequenceLength - num_tokens)
      return given;
    num_tokens += desc.append_lengths[i];
  }
  check_position_rank(*desc.positions, "desc->positions");
  if (desc.positions->ndim == 1) {
    const int32_t* values = kvc::view_i32_vector(desc.positions, "desc->positions", num_tokens);
    given.values.assign(values, values + num_tokens);
    given.num_position_rows = 1;
    return given;
  }
  const kvc::I32Matrix matrix =
      kvc::view_i32_matrix(desc.positions, "desc->positions", sections, num_tokens);
  if (matrix.num_rows != sections) {
    fail_with(KVC_E_SHAPE, matrix.num_rows, "desc->positions has shape[0] = %lld, expected %d",
              static_cast<long long>(matrix.num_rows), sections);
  }
  for (int32_t row = 0; row < sections; ++row) {
    const int32_t* values = matrix.data + row * matrix.row_stride;
    given.values.insert(given.values.end(), values, values + num_tokens);
  }
  given.num_position_rows = sections;
  return given;
}

}  // namespace

kvc_status kvc_forward_begin(kvc_cache* cache, const kvc_forward_desc* desc, kvc_forward** out,
                             kvc_error* err) noexcept {
  return guard(err, [&] {
    CacheCall call(cache);
    require(out, "out");
    const kvc_forward_desc read = kvc::read_struct(desc, "desc");
    kvc::refuse_extensions(read.ext, "desc");
    constexpr uint64_t kKnown = KVC_FORWARD_REPLAY | KVC_FORWARD_PARTIAL | KVC_FORWARD_WHOLE_SPANS;
    if ((read.flags & ~kKnown) != 0) {
      fail_with(KVC_E_UNSUPPORTED, static_cast<int64_t>(read.flags),
                "desc->flags = %llu is not supported: KVC_FORWARD_REPLAY (1), KVC_FORWARD_PARTIAL "
                "(2) and KVC_FORWARD_WHOLE_SPANS (4) are",
                static_cast<unsigned long long>(read.flags));
    }
    const kvc::BatchRequest request{.num_seqs = read.num_seqs,
                                    .seqs = read.seqs,
                                    .append_lengths = read.append_lengths,
                                    .tree_parents = read.tree_parents,
                                    .cross_lengths = read.cross_lengths,
                                    .tokens = read.tokens};
    call.enqueue_on(read.stream);
    *out = call->forward.begin(request, read_positions(call->spec(), read),
                               {.is_replay = (read.flags & KVC_FORWARD_REPLAY) != 0,
                                .is_partial = (read.flags & KVC_FORWARD_PARTIAL) != 0,
                                .has_whole_spans = (read.flags & KVC_FORWARD_WHOLE_SPANS) != 0},
                               read.stream);
  });
}

int64_t kvc_forward_num_tokens(const kvc_forward* fwd) noexcept {
  const kvc::Cache* cache = kvc::ForwardHandle::find(fwd);
  return cache == nullptr ? -1 : cache->forward.num_tokens();
}

kvc_status kvc_forward_positions(kvc_forward* fwd, DLTensor* out, kvc_error* err) noexcept {
  return guard(err, [&] {
    const ReadCall call(fwd);  // Several callers may ask at once, and beside an attention.
    const int64_t num_tokens = call->forward.num_tokens();
    const int64_t num_rows = call->forward.num_position_rows();
    const DLDevice device =
        call->spec().storage == KVC_STORAGE_NONE ? kvc::kHost : call->spec().device;
    require(out, "out");
    check_position_rank(*out, "out");
    const bool is_vector = out->ndim == 1;
    kvc::I32Matrix matrix{};
    if (is_vector) {
      matrix = {kvc::view_i32_vector(out, "out", num_tokens, device), 0, 1};
    } else {
      matrix = kvc::view_i32_matrix(out, "out", num_rows, num_tokens, device);
      if (matrix.num_rows != num_rows) {
        fail_with(KVC_E_SHAPE, matrix.num_rows, "out has shape[0] = %lld, expected %lld",
                  static_cast<long long>(matrix.num_rows), static_cast<long long>(num_rows));
      }
    }
    call->forward.write_positions(matrix);
  });
}

kvc_status kvc_forward_end(kvc_forward* fwd, kvc_error* err) noexcept {
  return guard(err, [&] {
    const CacheCall call(fwd);
    call->forward.end();
  });
}

kvc_status kvc_forward_abort(kvc_forward* fwd, kvc_error* err) noexcept {
  if (fwd == nullptr) return KVC_OK;
  return guard(err, [&] {
    const CacheCall call(fwd);
    call->forward.abort();
  });
}

kvc_status kvc_tree_commit(kvc_cache* cache, size_t n, const kvc_seq* seqs, const int32_t* leaves,
                           kvc_stream stream, kvc_error* err) noexcept {
  return guard(err, [&] {
    CacheCall call(cache);
    call.enqueue_on(stream);
    call->sequences.commit_trees(n, seqs, leaves, stream);
    call.finish();
  });
}
