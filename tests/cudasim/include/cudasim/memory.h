// Loads, stores, cp.async and atomics under the names of ptx.cuh and CUDA.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cudasim/engine.h"

namespace cudasim {

void copy_async_16(void* shared, const void* global, int bytes);
void copy_async_commit();
void copy_async_wait(uint32_t pending);
void count_host_bytes(uint64_t bytes);

}  // namespace cudasim

namespace kvc::cuda {

struct alignas(16) Words4 {
  uint32_t x[4];
};
inline Words4 load_16(const void* global) {
  cudasim::require_global(global, 16, "load_16");
  cudasim::memory_access();
  Words4 v;
  std::memcpy(&v, global, 16);
  return v;
}
inline Words4 load_16_stream(const void* global) { return load_16(global); }
inline void store_16(void* global, const Words4& v) {
  cudasim::require_global(global, 16, "store_16");
  cudasim::memory_access();
  std::memcpy(global, &v, 16);
}
inline uint32_t load_host_word(const void* pinned) {
  cudasim::require_global(pinned, 4, "load_host_word");
  cudasim::memory_access();
  cudasim::count_host_bytes(4);
  return __atomic_load_n(static_cast<const uint32_t*>(pinned), __ATOMIC_ACQUIRE);
}
inline Words4 load_host_16(const void* pinned) {
  cudasim::require_global(pinned, 16, "load_host_16");
  cudasim::memory_access();
  cudasim::count_host_bytes(16);
  Words4 v;
  std::memcpy(&v, pinned, 16);
  return v;
}
inline void store_host_word(void* pinned, uint32_t value) {
  cudasim::require_global(pinned, 4, "store_host_word");
  cudasim::memory_access();
  __atomic_store_n(static_cast<uint32_t*>(pinned), value, __ATOMIC_RELEASE);
}
inline uint32_t atomic_add_fenced(uint32_t* global, uint32_t value) {
  cudasim::memory_access();
  return __atomic_fetch_add(global, value, __ATOMIC_SEQ_CST);
}

inline void copy_async_16(void* shared, const void* global, int bytes) {
  cudasim::copy_async_16(shared, global, bytes);
}
inline void copy_async_commit() { cudasim::copy_async_commit(); }
template <int Pending>
inline void copy_async_wait() {
  static_assert(Pending >= 0);
  cudasim::copy_async_wait(Pending);
}

}  // namespace kvc::cuda

namespace cudasim {

template <typename T, typename Change>
T atomic_change(T* at, Change change) {
  memory_access();
  T old;
  __atomic_load(at, &old, __ATOMIC_SEQ_CST);
  for (;;) {
    T next = change(old);
    if (__atomic_compare_exchange(at, &old, &next, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
      return old;
  }
}

}  // namespace cudasim

// CUDA's own; the second operand does not take part in deduction, so that literals convert.
template <typename T>
T atomicAdd(T* at, std::type_identity_t<T> value) {
  return cudasim::atomic_change(at, [value](T old) { return static_cast<T>(old + value); });
}
template <typename T>
T atomicSub(T* at, std::type_identity_t<T> value) {
  return cudasim::atomic_change(at, [value](T old) { return static_cast<T>(old - value); });
}
template <typename T>
T atomicMax(T* at, std::type_identity_t<T> value) {
  return cudasim::atomic_change(at, [value](T old) { return old < value ? value : old; });
}
template <typename T>
T atomicMin(T* at, std::type_identity_t<T> value) {
  return cudasim::atomic_change(at, [value](T old) { return value < old ? value : old; });
}
template <typename T>
T atomicOr(T* at, std::type_identity_t<T> value) {
  return cudasim::atomic_change(at, [value](T old) { return old | value; });
}
template <typename T>
T atomicAnd(T* at, std::type_identity_t<T> value) {
  return cudasim::atomic_change(at, [value](T old) { return old & value; });
}
template <typename T>
T atomicExch(T* at, std::type_identity_t<T> value) {
  return cudasim::atomic_change(at, [value](T) { return value; });
}
template <typename T>
T atomicCAS(T* at, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  return cudasim::atomic_change(at,
                                [expected, value](T old) { return old == expected ? value : old; });
}
inline void __threadfence() { std::atomic_thread_fence(std::memory_order_seq_cst); }
inline void __threadfence_block() { __threadfence(); }
inline void __threadfence_system() { __threadfence(); }
