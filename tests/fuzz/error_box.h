// What a call says when it fails, as a caller of any age has room for it.
#pragma once

#include <array>

#include "kvcache.h"
#include "tests/fuzz/sized_struct.h"

namespace kvc::fuzz {

// A kvc_error of any size the caller may have, with bytes behind the size field that show whether
// it was written to.
class ErrorBox {
 public:
  explicit ErrorBox(Input& input)
      : struct_size_(kSizes[input.choose(kSizes.size())]),
        memory_(struct_size_ == 0 ? sizeof(kvc_error) : struct_size_) {
    std::memset(memory_.data(), kFill, memory_.bytes());
    std::memcpy(memory_.data(), &struct_size_, sizeof(struct_size_));
  }

  kvc_error* get() { return reinterpret_cast<kvc_error*>(memory_.data()); }

  // Empty where the caller has no room for it.
  const char* message() {
    return memory_.bytes() > offsetof(kvc_error, message) ? get()->message : "";
  }

  void check(kvc_status status) {
    if (status == KVC_OK) {
      for (size_t i = sizeof(size_t); i < memory_.bytes(); ++i)
        KVC_FUZZ_CHECK(memory_.data()[i] == kFill);
      return;
    }
    KVC_FUZZ_CHECK(status > KVC_OK && status < KVC_E_INTERNAL);
    KVC_FUZZ_CHECK(get()->status == status);
    if (memory_.bytes() <= offsetof(kvc_error, message)) return;
    const char* message =
        reinterpret_cast<const char*>(memory_.data()) + offsetof(kvc_error, message);
    const size_t room = memory_.bytes() - offsetof(kvc_error, message);
    const size_t length = strnlen(message, room);
    KVC_FUZZ_CHECK(length < room && (length > 0 || room == 1));
  }

 private:
  static constexpr std::array<size_t, 8> kSizes = {512, 512, 0, 12, 16, 24, 25, 100};
  static constexpr unsigned char kFill = 0xab;
  size_t struct_size_;
  ExactMemory memory_;
};

}  // namespace kvc::fuzz
