#include "src/base/error.h"

#include <cstdarg>

#include "src/base/print.h"

namespace kvc {
namespace {

[[gnu::format(printf, 3, 0)]] [[noreturn]] void throw_error(Error error, int32_t sys_code,
                                                            const char* format, va_list args) {
  vprint(error.buffer(), Error::kCapacity, format, args);
  error.set_sys_code(sys_code);
  throw error;
}

}  // namespace

void fail(kvc_status status, const char* format, ...) {
  va_list args;
  va_start(args, format);
  throw_error(Error(status, 0), 0, format, args);
}

void fail_with(kvc_status status, int64_t detail, const char* format, ...) {
  va_list args;
  va_start(args, format);
  throw_error(Error(status, detail), 0, format, args);
}

void fail_errno(kvc_status status, int error_number, const char* format, ...) {
  va_list args;
  va_start(args, format);
  throw_error(Error(status, 0), error_number, format, args);
}

}  // namespace kvc
