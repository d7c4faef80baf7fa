// kvcache.h, section "Sequences".
#include "src/capi/handles.h"
#include "src/capi/sized_struct.h"

using kvc::guard;
using kvc::require;

kvc_status kvc_seq_add(kvc_cache* cache, kvc_seq seq, kvc_error* err) noexcept {
  return guard(err, [&] {
    require(cache, "cache");
    cache->cache.sequences().add(seq);
  });
}

kvc_status kvc_seq_remove(kvc_cache* cache, kvc_seq seq, kvc_error* err) noexcept {
  return guard(err, [&] {
    require(cache, "cache");
    cache->cache.remove(seq);
  });
}

kvc_status kvc_seq_fork(kvc_cache* cache, kvc_seq parent, kvc_seq child, int64_t pos,
                        kvc_error* err) noexcept {
  return guard(err, [&] {
    require(cache, "cache");
    cache->cache.sequences().fork(parent, child, pos);
  });
}

kvc_status kvc_seq_pop(kvc_cache* cache, kvc_seq seq, int64_t n, kvc_error* err) noexcept {
  return guard(err, [&] {
    require(cache, "cache");
    cache->cache.sequences().pop(seq, n);
  });
}

kvc_status kvc_seq_shift(kvc_cache* cache, kvc_seq seq, int64_t begin, int64_t end, int64_t delta,
                         kvc_error* err) noexcept {
  return guard(err, [&] {
    require(cache, "cache");
    cache->cache.shift(seq, begin, end, delta);
    cache->cache.engine().require_alive();  // moving rows does not throw
  });
}

kvc_status kvc_seq_set_window(kvc_cache* cache, kvc_seq seq, int64_t window, int64_t sink,
                              kvc_error* err) noexcept {
  return guard(err, [&] {
    require(cache, "cache");
    kvc::SequenceTable& sequences = cache->cache.sequences();
    sequences.trimmer().set_window(sequences.get_settled(seq, "set the window of"), window, sink);
  });
}

kvc_status kvc_seq_length(const kvc_cache* cache, kvc_seq seq, int64_t* out_length,
                          kvc_error* err) noexcept {
  return guard(err, [&] {
    require(cache, "cache");
    require(out_length, "out_length");
    *out_length = cache->cache.sequences().get(seq).length;
  });
}

kvc_status kvc_seq_info_get(const kvc_cache* cache, kvc_seq seq, kvc_seq_info* out,
                            kvc_error* err) noexcept {
  return guard(err, [&] {
    require(cache, "cache");
    kvc::check_output(out, "out");
    kvc::write_struct(out, cache->cache.sequence_info(seq));
  });
}

kvc_status kvc_seq_list(const kvc_cache* cache, kvc_seq* ids, size_t* count,
                        kvc_error* err) noexcept {
  return guard(err, [&] {
    require(cache, "cache");
    require(count, "count");
    const std::vector<kvc_seq> sorted = kvc::sorted_ids(cache->cache.sequences());
    kvc::write_array(sorted.data(), sorted.size(), ids, count, "ids");
  });
}

kvc_status kvc_seq_can_append(const kvc_cache* cache, size_t n, const kvc_seq* seqs,
                              const int64_t* lengths, int64_t* out_missing_pages,
                              kvc_error* err) noexcept {
  return guard(err, [&] {
    require(cache, "cache");
    require(out_missing_pages, "out_missing_pages");
    *out_missing_pages = cache->cache.missing_pages(
        {.num_seqs = n, .seqs = seqs, .append_lengths = lengths, .may_extend_trees = true});
  });
}

kvc_status kvc_seq_can(const kvc_cache* cache, kvc_seq seq, kvc_seq_op op, int64_t pos,
                       int64_t* out_nearest, kvc_error* err) noexcept {
  return guard(err, [&] {
    require(cache, "cache");
    require(out_nearest, "out_nearest");
    *out_nearest = cache->cache.nearest_position(seq, op, pos);
  });
}
