// The C boundary: exceptions become statuses, errors are written into the caller's struct; and the
// rules of transparent structs: `struct_size` first; a shorter caller's struct has a zero tail; a
// longer one's unknown tail must be zero.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>

#include "kvcache.h"
#include "src/base/error.h"

namespace kvc {

// Fills `err` within its struct_size. It may be NULL.
void report(kvc_error* err, kvc_status status, int32_t sys_code, int64_t detail,
            const char* message) noexcept;

// Runs `body`, which throws to fail, and returns its status. No exception leaves.
template <typename Body>
kvc_status guard(kvc_error* err, Body&& body) noexcept {
  try {
    body();
    return KVC_OK;
  } catch (const Error& error) {
    report(err, error.status(), error.sys_code(), error.detail(), error.what());
    return error.status();
  } catch (const std::bad_alloc&) {
    report(err, KVC_E_NO_MEMORY, 0, 0, "host memory allocation failed");
    return KVC_E_NO_MEMORY;
  } catch (const std::length_error& error) {
    report(err, KVC_E_NO_MEMORY, 0, 0, error.what());
    return KVC_E_NO_MEMORY;
  } catch (const std::exception& error) {
    report(err, KVC_E_INTERNAL, 0, 0, error.what());
    return KVC_E_INTERNAL;
  } catch (...) {
    report(err, KVC_E_INTERNAL, 0, 0, "unknown exception");
    return KVC_E_INTERNAL;
  }
}

// Throws INVALID_ARGUMENT for a NULL argument.
inline void require(const void* pointer, const char* name) {
  if (pointer == nullptr) fail(KVC_E_INVALID_ARGUMENT, "%s is NULL", name);
}

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

// A name of a model as text; NULL: empty. Throws INVALID_ARGUMENT beyond 255 bytes.
std::string model_id_of(const char* model_id);

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
