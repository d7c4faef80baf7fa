// Lanes, warps and barriers under the names of ptx.cuh.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cudasim/engine.h"

namespace cudasim {

enum class ShuffleFrom : int32_t { kLane, kXor, kUp, kWarpId };
uint64_t shuffle(uint64_t value, ShuffleFrom from, int operand);
uint32_t ballot(bool predicate);
void sync_warp();

template <typename T>
T shuffle_any(T value, ShuffleFrom from, int operand) {
  static_assert(std::is_arithmetic_v<T> && (sizeof(T) == 4 || sizeof(T) == 8));
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = shuffle(bits, from, operand);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

}  // namespace cudasim

namespace kvc::cuda {

inline int lane_id() { return static_cast<int>(cudasim::here->lane); }
// A shuffle, as on the device: reached by all lanes.
inline int warp_id() {
  return cudasim::shuffle_any(static_cast<int>(cudasim::here->warp), cudasim::ShuffleFrom::kWarpId,
                              0);
}

template <typename T>
inline T shuffle(T value, int source_lane) {
  return cudasim::shuffle_any(value, cudasim::ShuffleFrom::kLane, source_lane);
}
template <typename T>
inline T shuffle_xor(T value, int mask) {
  return cudasim::shuffle_any(value, cudasim::ShuffleFrom::kXor, mask);
}
template <typename T>
inline T shuffle_up(T value, int delta) {
  return cudasim::shuffle_any(value, cudasim::ShuffleFrom::kUp, delta);
}
inline uint32_t ballot(bool predicate) { return cudasim::ballot(predicate); }
inline bool any(bool predicate) { return cudasim::ballot(predicate) != 0; }
inline bool all(bool predicate) { return cudasim::ballot(predicate) == cudasim::kAllLanes; }
inline void sync_warp() { cudasim::sync_warp(); }

inline void sync_cta() { cudasim::barrier_sync(0, cudasim::here->cta->block_dim.x, "sync_cta"); }
inline void sync_named(int barrier, int threads) {
  cudasim::barrier_sync(barrier, static_cast<uint32_t>(threads), "sync_named");
}
inline void arrive_named(int barrier, int threads) {
  cudasim::barrier_arrive(barrier, static_cast<uint32_t>(threads));
}

inline std::byte* cta_shared() { return cudasim::here->cta->shared; }

inline void wait_for_previous_kernel() { cudasim::wait_for_previous_kernel(); }
inline void launch_dependents() {}

}  // namespace kvc::cuda
