// SHA-256 of bytes that lie together.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace kvc {

std::array<uint8_t, 32> sha256(const void* data, size_t size) noexcept;

}  // namespace kvc
