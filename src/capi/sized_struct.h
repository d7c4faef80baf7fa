// The rules of transparent structs, in one place: `struct_size` first; a shorter caller's struct
// has a zero tail; a longer one's unknown tail must be zero.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "kvcache.h"
#include "src/base/error.h"

namespace kvc {

// No struct of any version comes near this size. A larger struct_size was not initialised.
constexpr size_t kMaxStructSize = 65536;

// Throws INVALID_ARGUMENT or VERSION.
void check_struct_size(size_t struct_size, size_t known_size, const char* name);
void check_zero_tail(const void* data, size_t struct_size, size_t known_size, const char* name);

// `address` may be any element of an array whose stride is `struct_size`.
template <typename T>
T read_struct_at(const void* address, size_t struct_size, const char* name) {
  check_struct_size(struct_size, sizeof(T), name);
  check_zero_tail(address, struct_size, sizeof(T), name);
  T value{};
  std::memcpy(static_cast<void*>(&value), address, std::min(struct_size, sizeof(T)));
  value.struct_size = sizeof(T);
  return value;
}

template <typename T>
T read_struct(const T* caller, const char* name) {
  if (caller == nullptr) fail(KVC_E_INVALID_ARGUMENT, "%s is NULL", name);
  return read_struct_at<T>(caller, caller->struct_size, name);
}

// Called before the work, so that a bad output struct fails before anything happens.
template <typename T>
void check_output(const T* caller, const char* name) {
  if (caller == nullptr) fail(KVC_E_INVALID_ARGUMENT, "%s is NULL", name);
  check_struct_size(caller->struct_size, sizeof(T), name);
}

template <typename T>
void write_struct(T* caller, T value) noexcept {
  const size_t size = std::min(caller->struct_size, sizeof(T));
  value.struct_size = size;
  std::memcpy(static_cast<void*>(caller), &value, size);
}

// No chained options are defined yet, so that any is refused.
void refuse_extensions(const kvc_ext* ext, const char* name);

// Two-call output of strings and arrays: see "Arrays out" in kvcache.h. Throws BUFFER_TOO_SMALL.
template <typename T>
void write_array(const T* values, size_t count, T* buf, size_t* len, const char* name) {
  const size_t capacity = *len;
  *len = count;
  if (buf == nullptr) return;
  if (capacity < count) {
    fail_with(KVC_E_BUFFER_TOO_SMALL, static_cast<int64_t>(count),
              "%s holds %zu elements, %zu are needed", name, capacity, count);
  }
  if (count != 0) std::memcpy(buf, values, count * sizeof(T));
}

}  // namespace kvc
