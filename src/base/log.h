// The logger hook, the only global state of the library. It is silent until a host sets a function.
#pragma once

#include "kvcache.h"

namespace kvc {

void set_logger(kvc_log_fn fn, void* user, kvc_log_level min_level) noexcept;
[[gnu::format(printf, 2, 3)]] void log(kvc_log_level level, const char* format, ...) noexcept;

}  // namespace kvc
