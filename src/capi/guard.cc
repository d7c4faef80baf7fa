
#include "src/capi/guard.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "src/base/print.h"

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
  // A shorter struct gets the part that fits, its message still terminated.
  const size_t size = filled.struct_size;
  if (size < sizeof(size_t)) return;
  if (size > offsetof(kvc_error, message)) {
    const size_t room = std::min(size - offsetof(kvc_error, message), sizeof filled.message);
    write_message(filled.message, room, message);
  }
  std::memcpy(static_cast<void*>(err), &filled, size);
}

void check_struct_size(size_t struct_size, size_t known_size, const char* name) {
  if (struct_size < sizeof(size_t)) {
    fail_with(KVC_E_INVALID_ARGUMENT, static_cast<int64_t>(struct_size),
              "%s->struct_size = %zu is too small: set it to sizeof, %zu here", name, struct_size,
              known_size);
  }
  if (struct_size > kMaxStructSize) {
    fail_with(KVC_E_VERSION, static_cast<int64_t>(struct_size),
              "%s->struct_size = %zu is not plausible: this library knows %zu bytes", name,
              struct_size, known_size);
  }
}

void check_zero_tail(const void* data, size_t struct_size, size_t known_size, const char* name) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  for (size_t i = known_size; i < struct_size; ++i) {
    if (bytes[i] != 0) {
      fail_with(KVC_E_VERSION, static_cast<int64_t>(i),
                "%s has %zu bytes, this library knows %zu, and byte %zu is not zero", name,
                struct_size, known_size, i);
    }
  }
}

void refuse_extensions(const kvc_ext* ext, const char* name) {
  if (ext != nullptr) {
    fail_with(KVC_E_UNSUPPORTED, ext->type,
              "%s->ext has type %d, which this library does not know: 0 types are defined", name,
              ext->type);
  }
}

std::string model_id_of(const char* model_id) {
  constexpr size_t kMost = 255;
  std::string id = model_id == nullptr ? "" : model_id;
  if (id.size() > kMost) {
    fail_with(KVC_E_INVALID_ARGUMENT, static_cast<int64_t>(id.size()),
              "desc.model_id has %zu bytes, at most %zu", id.size(), kMost);
  }
  return id;
}

}  // namespace kvc
