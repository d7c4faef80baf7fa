#include "src/device/uploads.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace kvc {
namespace {

constexpr int64_t kLeastBytes = int64_t{64} << 10;

}  // namespace

void DeviceUploads::reserve(int64_t bytes) {
  if (current_ < blocks_.size() &&
      blocks_[current_].host.bytes() - blocks_[current_].bytes_used >= bytes)
    return;
  for (size_t i = 0; i < blocks_.size(); ++i) {
    Block& block = blocks_[i];
    const bool is_free = block.bytes_used == 0 && !block.is_kept;
    if (!is_free || block.host.bytes() < bytes || !block.last_use.is_done()) continue;
    current_ = i;
    return;
  }
  const int64_t size = std::max(kLeastBytes, room_of(bytes));
  Block block;
  block.host = PinnedMemory(*device_, size);
  block.device = DeviceMemory(*device_, size);
  block.last_use = DeviceEvent(*device_);
  blocks_.push_back(std::move(block));
  current_ = blocks_.size() - 1;
}

DeviceUploads::Place DeviceUploads::take(int64_t bytes) {
  reserve(room_of(bytes));
  Block& block = blocks_[current_];
  const Place place{block.host.data() + block.bytes_used, block.device.data() + block.bytes_used};
  block.bytes_used += room_of(bytes);
  return place;
}

void DeviceUploads::send(const Place& place, int64_t begin, int64_t end, cuda::Stream stream) {
  if (begin < end) device_->copy(place.device + begin, place.host + begin, end - begin, stream);
}

std::byte* DeviceUploads::put(const void* data, int64_t bytes, cuda::Stream stream) {
  return put_filled(bytes, 0, stream, [&](std::byte* host, std::byte*) {
    if (bytes > 0) std::memcpy(host, data, static_cast<size_t>(bytes));
  });
}

void DeviceUploads::finish(cuda::Stream stream) noexcept {
  for (Block& block : blocks_) {
    if (block.bytes_used == 0) continue;
    block.bytes_used = 0;
    try {
      if (device_->is_capturing(stream)) {
        block.is_kept = true;
      } else {
        block.last_use.record(stream);
      }
    } catch (...) {
      block.is_kept = true;  // nobody knows when it is done
    }
  }
  current_ = SIZE_MAX;
}

}  // namespace kvc
