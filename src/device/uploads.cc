#include "src/device/uploads.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "src/base/memory.h"

namespace kvc {
namespace {

constexpr int64_t kLeastBytes = int64_t{64} << 10;

}  // namespace

DeviceUploads::DeviceUploads(const Gpu& device, int64_t assured_bytes)
    : device_(&device), assured_bytes_(assured_bytes) {
  if (assured_bytes != 0) add_block(assured_bytes);
  current_ = SIZE_MAX;
}

void DeviceUploads::add_block(int64_t bytes) {
  const int64_t size = std::max(kLeastBytes, room_of(bytes));
  Block block;
  block.host = PinnedMemory(*device_, size);
  block.device = DeviceMemory(*device_, size);
  block.last_use = DeviceEvent(*device_);
  blocks_.push_back(std::move(block));
  current_ = blocks_.size() - 1;
}

bool DeviceUploads::find_free_block(int64_t bytes) {
  for (size_t i = 0; i < blocks_.size(); ++i) {
    Block& block = blocks_[i];
    const bool is_free = block.bytes_used == 0 && !block.is_kept;
    if (!is_free || block.host.bytes() < bytes || !block.last_use.is_done()) continue;
    current_ = i;
    return true;
  }
  return false;
}

void DeviceUploads::make_room(int64_t bytes, cuda::Stream stream) {
  if (current_ < blocks_.size() &&
      blocks_[current_].host.bytes() - blocks_[current_].bytes_used >= bytes)
    return;
  if (find_free_block(bytes)) return;
  try {
    add_block(bytes);
  } catch (...) {
    const bool is_assured =
        bytes <= assured_bytes_ && blocks_[0].bytes_used == 0 && !blocks_[0].is_kept;
    if (!is_assured) throw;
    blocks_[0].last_use.wait_on(stream);
    device_->synchronize(stream);
    current_ = 0;
  }
}

DeviceUploads::Place DeviceUploads::take(int64_t bytes, cuda::Stream stream) {
  make_room(room_of(bytes), stream);
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

int64_t DeviceUploads::host_bytes() const noexcept {
  int64_t bytes = kvc::host_bytes(blocks_);
  for (const Block& block : blocks_) bytes += block.host.bytes();
  return bytes;
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
