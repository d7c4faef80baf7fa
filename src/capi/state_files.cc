// kvcache.h, section "State files".
#include <memory>
#include <string>

#include "src/cache/state_file.h"
#include "src/capi/call.h"
#include "src/capi/guard.h"
#include "src/files/byte_source.h"
#include "src/plan/layout.h"

namespace {

using kvc::CacheCall;
using kvc::fail;
using kvc::fail_with;
using kvc::guard;
using kvc::model_id_of;
using kvc::ReadCall;
using kvc::require;

// Throws unless exactly one place is set, or none where that is allowed.
void check_places(bool has_path, bool has_data, bool has_function, const char* function,
                  bool may_be_none) {
  const int count = int{has_path} + int{has_data} + int{has_function};
  if (count == 1 || (count == 0 && may_be_none)) return;
  fail_with(KVC_E_INVALID_ARGUMENT, count,
            "%d of desc.path, desc.data and desc.%s are set, expected 1", count, function);
}

void check_rest(uint64_t flags, uint64_t known, const kvc_ext* ext) {
  if ((flags & ~known) != 0) {
    fail(KVC_E_UNSUPPORTED, "desc.flags = %llu, known are the bits of %llu",
         static_cast<unsigned long long>(flags), static_cast<unsigned long long>(known));
  }
  kvc::refuse_extensions(ext, "desc");
}

std::unique_ptr<kvc::ByteSource> open_source(const kvc_load_desc& desc, bool may_use_threads) {
  check_rest(desc.flags, KVC_LOAD_CONVERT | KVC_LOAD_NO_PUBLISH, desc.ext);
  check_places(desc.path != nullptr, desc.data != nullptr, desc.read != nullptr, "read", false);
  if (desc.path != nullptr) {
    if (may_use_threads) return std::make_unique<kvc::ReadAhead>(desc.path);
    return std::make_unique<kvc::FileSource>(desc.path);
  }
  if (desc.data != nullptr) return std::make_unique<kvc::MemorySource>(desc.data, desc.size);
  return std::make_unique<kvc::FunctionSource>(desc.read, desc.user);
}

void write_text(const std::string& text, char* buf, size_t* len) {
  kvc::write_array(text.c_str(), text.size() + 1, buf, len, "buf");
}

}  // namespace

kvc_status kvc_layout_fingerprint(const kvc_plan* plan, char* buf, size_t* len,
                                  kvc_error* err) noexcept {
  return guard(err, [&] {
    require(plan, "plan");
    require(len, "len");
    write_text(kvc::layout_fingerprint(kvc::layout_text(plan->plan->spec())), buf, len);
  });
}

kvc_status kvc_seq_save(const kvc_cache* cache, size_t n, const kvc_seq* seqs,
                        const kvc_save_desc* desc, kvc_stream stream, uint64_t* out_bytes,
                        kvc_error* err) noexcept {
  return guard(err, [&] {
    const ReadCall call(cache);
    const auto to = kvc::read_struct(desc, "desc");
    check_rest(to.flags, 0, to.ext);
    check_places(to.path != nullptr, to.data != nullptr, to.write != nullptr, "write", true);
    const std::string model_id = model_id_of(to.model_id);
    // A file that cannot be saved is not begun.
    const uint64_t bytes = call->files.measure(n, seqs, model_id);
    if (to.data != nullptr && to.size < bytes) {
      if (out_bytes != nullptr) *out_bytes = bytes;
      fail_with(KVC_E_BUFFER_TOO_SMALL, static_cast<int64_t>(bytes),
                "desc.size = %zu, the file has %llu bytes", to.size,
                static_cast<unsigned long long>(bytes));
    }
    const auto save = [&](kvc::ByteSink& sink) {
      call->files.save(n, seqs, model_id, sink, stream);
    };
    if (to.path != nullptr) {
      kvc::FileSink sink(to.path);
      save(sink);
    } else if (to.data != nullptr) {
      kvc::MemorySink sink(to.data, to.size);
      save(sink);
    } else if (to.write != nullptr) {
      kvc::FunctionSink sink(to.write, to.user);
      save(sink);
    }
    if (out_bytes != nullptr) *out_bytes = bytes;
  });
}

kvc_status kvc_seq_load(kvc_cache* cache, const kvc_load_desc* desc, size_t n, const kvc_seq* seqs,
                        kvc_stream stream, kvc_error* err) noexcept {
  return guard(err, [&] {
    CacheCall call(cache);
    const auto from = kvc::read_struct(desc, "desc");
    const std::string model_id = model_id_of(from.model_id);
    const bool may_use_threads = call->spec().num_threads != 1;
    const std::unique_ptr<kvc::ByteSource> source = open_source(from, may_use_threads);
    call.enqueue_on(stream);
    call->files.load(n, seqs, model_id,
                     {.converts = (from.flags & KVC_LOAD_CONVERT) != 0,
                      .publishes = (from.flags & KVC_LOAD_NO_PUBLISH) == 0},
                     *source, stream);
    call.finish();
  });
}

kvc_status kvc_state_file_describe(const kvc_load_desc* desc, char* buf, size_t* len,
                                   kvc_error* err) noexcept {
  return guard(err, [&] {
    require(len, "len");
    const auto from = kvc::read_struct(desc, "desc");
    const std::unique_ptr<kvc::ByteSource> source = open_source(from, false);
    write_text(kvc::describe_state_file(*source), buf, len);
  });
}
