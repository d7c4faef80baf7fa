#include "src/base/log.h"

#include <atomic>
#include <cstdarg>
#include <mutex>

#include "src/base/print.h"
#include "src/base/process_mutex.h"

namespace kvc {
namespace {

struct Setting {
  kvc_log_fn fn = nullptr;
  void* user = nullptr;
  kvc_log_level min_level = KVC_LOG_INFO;
};

// Taken while the host's function runs, which a fork must not wait for: it may wait for a lock of
// the thread that forks. Logging is rare by design.
constinit ProcessMutex mutex{AtFork::kForgets};
// The one that is not in use is written, then takes over as a whole.
constinit Setting settings[2];
constinit std::atomic<int> in_use{0};

}  // namespace

void set_logger(kvc_log_fn fn, void* user, kvc_log_level min_level) noexcept {
  const std::lock_guard lock(mutex);
  const int other = 1 - in_use;
  settings[other] = {fn, user, min_level};
  in_use = other;
}

void log(kvc_log_level level, const char* format, ...) noexcept {
  const std::lock_guard lock(mutex);
  const Setting& current = settings[in_use];
  if (current.fn == nullptr || level < current.min_level) return;
  char message[512];
  va_list args;
  va_start(args, format);
  vprint(message, sizeof message, format, args);
  va_end(args);
  char text[sizeof message];
  write_message(text, sizeof text, message);
  current.fn(current.user, level, text);
}

}  // namespace kvc
