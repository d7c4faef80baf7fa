// Small arrays of the host on their way to a device: page ids, slots, cos and sin of one call.
#pragma once

#include <cstdint>
#include <vector>

#include "src/device/gpu.h"

namespace kvc {

// Blocks of pinned memory, each with a block on the device. A block is reused when its readers are
// done. One thread at a time.
class DeviceUploads {
 public:
  // Puts of at most `assured_bytes` (64 KiB) in sum between two calls of finish() never run out of
  // memory: where no other block can be had, they wait for the first one. Throws NO_MEMORY.
  explicit DeviceUploads(const Gpu& device, int64_t assured_bytes = 0);

  // Copies the array and enqueues its transfer; the address on the device holds until finish().
  // Throws NO_MEMORY, DEVICE.
  std::byte* put(const void* data, int64_t bytes, cuda::Stream stream);
  // The same for arrays that name their own address: fill(host, device) writes them. The caller
  // fills the first `unsent` bytes on the device.
  template <typename Fill>
  std::byte* put_filled(int64_t bytes, int64_t unsent, cuda::Stream stream, Fill&& fill) {
    const Place place = take(bytes, stream);
    fill(place.host, place.device);
    send(place, unsent, bytes, stream);
    return place.device;
  }
  template <typename T>
  T* put(const std::vector<T>& values, cuda::Stream stream) {
    return reinterpret_cast<T*>(
        put(values.data(), static_cast<int64_t>(values.size() * sizeof(T)), stream));
  }
  // Pinned memory.
  int64_t host_bytes() const noexcept;
  // All readers of the arrays are enqueued.
  void finish(cuda::Stream stream) noexcept;

  // Bytes that a put takes of the reserved room.
  static constexpr int64_t room_of(int64_t bytes) { return (bytes + 255) / 256 * 256; }

 private:
  struct Block {
    PinnedMemory host;
    DeviceMemory device;
    DeviceEvent last_use;
    int64_t bytes_used = 0;
    bool is_kept = false;  // A captured graph reads it.
  };

  struct Place {
    std::byte* host;
    std::byte* device;
  };
  void add_block(int64_t bytes);
  bool find_free_block(int64_t bytes);
  void make_room(int64_t bytes, cuda::Stream stream);
  Place take(int64_t bytes, cuda::Stream stream);
  void send(const Place& place, int64_t begin, int64_t end, cuda::Stream stream);

  const Gpu* device_;
  const int64_t assured_bytes_;
  std::vector<Block> blocks_;  // The first holds assured_bytes_.
  size_t current_ = SIZE_MAX;  // Index of the block that puts go to.
};

}  // namespace kvc
