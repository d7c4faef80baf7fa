// The C boundary: exceptions become statuses, errors are written into the caller's struct.
#pragma once

#include <cstdint>
#include <exception>
#include <new>
#include <stdexcept>

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

}  // namespace kvc
