// Times on a GPU, by the host's clock: many calls are enqueued, one wait ends them.
#pragma once

#include <cstdint>
#include <functional>

#include "bench/gpu.h"
#include "bench/measure.h"

namespace kvc::bench {

struct CallTimes {
  Spread seconds;  // Time of one call, over rounds.
  // Seconds that the host needs to enqueue one call, while the device's queue has room.
  double enqueue = 0;
  int64_t calls = 0;  // Calls per round.
  int rounds = 0;

  // The device was done before the host had enqueued more: the time is the host's.
  bool is_host_bound() const { return enqueue > 0.9 * seconds.median; }
};

// enqueue(i) enqueues call i of an endless row on gpu.stream(). A round has so many calls that the
// first launch and the last wait do not show; `once`: a single call (an emulated device).
CallTimes measure_calls(const Gpu& gpu, const Budget& budget, bool once,
                        const std::function<void(int64_t)>& enqueue);

// Bytes read and written per second by a copy inside the device's memory, both sides far larger
// than its caches.
Spread copy_rate(const Gpu& gpu, const Budget& budget, bool once);

}  // namespace kvc::bench
