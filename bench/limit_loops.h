// The inner loops of the limits, one thread's part. Each picks the widest vectors of the machine at
// run time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "bench/limits.h"

namespace kvc::bench {

// Whether portions of this size can be read in `streams` parts side by side with this prefetch
// distance.
bool streams_fit(int64_t portion_bytes, int streams, int64_t ahead);

// Reads each portion once, `ahead` bytes of each stream prefetched, going on into the next portions
// of the list. Portions that do not fit the streams are read one after the other, prefetched as a
// whole.
void loop_read(const std::byte* const* portions, int64_t count, int64_t portion_bytes, int streams,
               int64_t ahead);

// Copies with stores past the caches; to and from 64-byte aligned, bytes a multiple of 64.
void loop_stream_copy(std::byte* to, const std::byte* from, int64_t bytes, int64_t ahead);

// Multiplies floats by -1 in place: each line is read and written once. bytes a multiple of 64.
void loop_update(std::byte* data, int64_t bytes, int64_t ahead);

// One chunk of multiply-adds; returns its flops.
double loop_arithmetic(Arithmetic arithmetic);

}  // namespace kvc::bench
