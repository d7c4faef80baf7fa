#include "src/capi/guard.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace kvc {

void report(kvc_error* err, kvc_status status, int32_t sys_code, int64_t detail,
            const char* message) noexcept {
  if (err == nullptr) return;
  kvc_error filled{};
  filled.struct_size =
      err->struct_size == 0 ? sizeof(kvc_error) : std::min(err->struct_size, sizeof(kvc_error));
  filled.status = status;
  filled.sys_code = sys_code;
  filled.detail = detail;
  const size_t length = std::min(std::strlen(message), sizeof filled.message - 1);
  std::memcpy(filled.message, message, length);
  // A shorter struct gets the part that fits, its message still terminated.
  const size_t size = filled.struct_size;
  if (size < sizeof(size_t)) return;
  if (size > offsetof(kvc_error, message))
    filled.message[size - offsetof(kvc_error, message) - 1] = '\0';
  std::memcpy(static_cast<void*>(err), &filled, size);
}

}  // namespace kvc
