// kvcache.h, section "Sequences".
#include "src/capi/call.h"
#include "src/capi/guard.h"

using kvc::CacheCall;
using kvc::guard;
using kvc::ReadCall;
using kvc::require;

kvc_status kvc_seq_add(kvc_cache* cache, kvc_seq seq, kvc_error* err) noexcept {
  return guard(err, [&] {
    const CacheCall call(cache);
    call->sequences.add(seq);
  });
}

kvc_status kvc_seq_remove(kvc_cache* cache, kvc_seq seq, kvc_error* err) noexcept {
  return guard(err, [&] {
    const CacheCall call(cache);
    call->sequences.remove(seq);
  });
}

kvc_status kvc_seq_fork(kvc_cache* cache, kvc_seq parent, kvc_seq child, int64_t pos,
                        kvc_error* err) noexcept {
  return guard(err, [&] {
    const CacheCall call(cache);
    call->sequences.fork(parent, child, pos);
  });
}

kvc_status kvc_seq_pop(kvc_cache* cache, kvc_seq seq, int64_t n, kvc_error* err) noexcept {
  return guard(err, [&] {
    const CacheCall call(cache);
    call->sequences.pop(seq, n);
  });
}

kvc_status kvc_seq_reserve(kvc_cache* cache, kvc_seq seq, int64_t n, kvc_error* err) noexcept {
  return guard(err, [&] {
    CacheCall call(cache);
    call->forward.reserve(seq, n);
    call.finish();
  });
}

kvc_status kvc_seq_shift(kvc_cache* cache, kvc_seq seq, int64_t begin, int64_t end, int64_t delta,
                         kvc_error* err) noexcept {
  return guard(err, [&] {
    CacheCall call(cache);
    call->sequences.shift(seq, begin, end, delta);
    call.finish();
  });
}

kvc_status kvc_seq_set_window(kvc_cache* cache, kvc_seq seq, int64_t window, int64_t sink,
                              kvc_error* err) noexcept {
  return guard(err, [&] {
    const CacheCall call(cache);
    call->sequences.set_window(seq, window, sink);
  });
}

kvc_status kvc_seq_length(const kvc_cache* cache, kvc_seq seq, int64_t* out_length,
                          kvc_error* err) noexcept {
  return guard(err, [&] {
    const ReadCall call(cache);
    require(out_length, "out_length");
    *out_length = call->sequences.length(seq);
  });
}

kvc_status kvc_seq_info_get(const kvc_cache* cache, kvc_seq seq, kvc_seq_info* out,
                            kvc_error* err) noexcept {
  return guard(err, [&] {
    const ReadCall call(cache);
    kvc::check_output(out, "out");
    kvc::write_struct(out, call->sequences.info(seq));
  });
}

kvc_status kvc_seq_list(const kvc_cache* cache, kvc_seq* ids, size_t* count,
                        kvc_error* err) noexcept {
  return guard(err, [&] {
    const ReadCall call(cache);
    require(count, "count");
    const std::vector<kvc_seq> sorted = call->sequences.sorted_ids();
    kvc::write_array(sorted.data(), sorted.size(), ids, count, "ids");
  });
}

kvc_status kvc_seq_can_append(const kvc_cache* cache, size_t n, const kvc_seq* seqs,
                              const int64_t* lengths, int64_t* out_missing_pages,
                              kvc_error* err) noexcept {
  return guard(err, [&] {
    const ReadCall call(cache);
    require(out_missing_pages, "out_missing_pages");
    *out_missing_pages = call->sequences.missing_pages(
        {.num_seqs = n, .seqs = seqs, .append_lengths = lengths, .may_extend_trees = true});
  });
}

kvc_status kvc_seq_can(const kvc_cache* cache, kvc_seq seq, kvc_seq_op op, int64_t pos,
                       int64_t* out_nearest, kvc_error* err) noexcept {
  return guard(err, [&] {
    const ReadCall call(cache);
    require(out_nearest, "out_nearest");
    *out_nearest = call->sequences.positions(seq, op, pos).below;
  });
}

kvc_status kvc_seq_positions(const kvc_cache* cache, kvc_seq seq, kvc_seq_op op, int64_t pos,
                             int64_t* out_below, int64_t* out_above, kvc_error* err) noexcept {
  return guard(err, [&] {
    const ReadCall call(cache);
    require(out_below, "out_below");
    require(out_above, "out_above");
    const kvc::Neighbours found = call->sequences.positions(seq, op, pos);
    *out_below = found.below;
    *out_above = found.above;
  });
}
