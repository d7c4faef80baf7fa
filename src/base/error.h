// The one error type of the core. It is thrown inside and becomes a kvc_status at the C boundary
// (capi/guard.h).
#pragma once

#include <cstdint>
#include <exception>

#include "kvcache.h"

namespace kvc {

// Carries the finished message inline, so that an error allocates only the exception itself.
class Error final : public std::exception {
 public:
  Error(kvc_status status, int64_t detail) : status_(status), detail_(detail) {
    message_[0] = '\0';
  }

  const char* what() const noexcept override { return message_; }
  kvc_status status() const { return status_; }
  int64_t detail() const { return detail_; }
  int32_t sys_code() const { return sys_code_; }
  void set_sys_code(int32_t code) { sys_code_ = code; }
  char* buffer() { return message_; }
  static constexpr std::size_t kCapacity = sizeof(kvc_error::message);

 private:
  kvc_status status_;
  int32_t sys_code_ = 0;
  int64_t detail_;
  char message_[kCapacity];
};

// These throw an Error with a printf-style message that names the argument and both values.
[[noreturn]] [[gnu::format(printf, 2, 3)]] void fail(kvc_status status, const char* format, ...);
[[noreturn]] [[gnu::format(printf, 3, 4)]] void fail_with(kvc_status status, int64_t detail,
                                                          const char* format, ...);
// The same, with the value of errno as sys_code.
[[noreturn]] [[gnu::format(printf, 3, 4)]] void fail_errno(kvc_status status, int error_number,
                                                           const char* format, ...);

// Casts an argument for %lld.
constexpr long long ll(int64_t value) { return value; }

}  // namespace kvc
