#include "src/base/log.h"

#include <cstdarg>
#include <cstdio>
#include <mutex>

namespace kvc {
namespace {

// Function, user pointer and level change together, hence a mutex. Logging is rare by design.
struct Logger {
  std::mutex mutex;
  kvc_log_fn fn = nullptr;
  void* user = nullptr;
  kvc_log_level min_level = KVC_LOG_INFO;
};

Logger& logger() noexcept {
  static Logger instance;
  return instance;
}

}  // namespace

void set_logger(kvc_log_fn fn, void* user, kvc_log_level min_level) noexcept {
  Logger& current = logger();
  const std::lock_guard lock(current.mutex);
  current.fn = fn;
  current.user = user;
  current.min_level = min_level;
}

void log(kvc_log_level level, const char* format, ...) noexcept {
  Logger& current = logger();
  const std::lock_guard lock(current.mutex);
  if (current.fn == nullptr || level < current.min_level) return;
  char message[512];
  va_list args;
  va_start(args, format);
  std::vsnprintf(message, sizeof message, format, args);
  va_end(args);
  current.fn(current.user, level, message);
}

}  // namespace kvc
