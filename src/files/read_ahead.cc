#include "src/files/read_ahead.h"

#include <algorithm>
#include <cstring>
#include <system_error>

#include "src/base/thread.h"

namespace kvc {

ReadAhead::~ReadAhead() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void ReadAhead::fill(uint64_t number) noexcept {
  Block& block = place(number);
  block.error = nullptr;
  try {
    block.data.ensure(kBlockBytes);
    block.size = file_.read(number * kBlockBytes, block.data.data(), kBlockBytes);
  } catch (...) {
    block.error = std::current_exception();
  }
}

void ReadAhead::work() noexcept {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return is_ending_ || filled_ < current_ + kNumBlocks; });
    if (is_ending_) return;
    const uint64_t number = filled_;
    is_filling_ = true;
    lock.unlock();
    fill(number);
    lock.lock();
    is_filling_ = false;
    ++filled_;
    changed_.notify_all();
  }
}

const ReadAhead::Block& ReadAhead::get(uint64_t number) {
  std::unique_lock lock(mutex_);
  if (number < current_ || number > filled_) {  // Not from here on.
    changed_.wait(lock, [&] { return !is_filling_; });
    filled_ = number;
  }
  current_ = number;
  if (!thread_.joinable() && number == filled_) {
    if (number > 0 && !is_alone_) {
      try {
        thread_ = start_thread("kvc-read-ahead", [this] { work(); });
      } catch (const std::system_error&) {
        is_alone_ = true;
      }
    }
    if (!thread_.joinable()) {
      fill(number);
      ++filled_;
    }
  }
  changed_.notify_all();
  changed_.wait(lock, [&] { return filled_ > number; });
  const Block& block = place(number);
  if (block.error != nullptr) std::rethrow_exception(block.error);
  return block;
}

size_t ReadAhead::read(uint64_t offset, void* data, size_t size) {
  auto* out = static_cast<std::byte*>(data);
  size_t done = 0;
  while (done != size) {
    const Block& block = get((offset + done) / kBlockBytes);
    const size_t begin = (offset + done) % kBlockBytes;
    const size_t count = std::min(size - done, block.size - std::min(block.size, begin));
    if (count == 0) break;
    std::memcpy(out + done, block.data.data() + begin, count);
    done += count;
  }
  return done;
}

const std::byte* ReadAhead::view(uint64_t offset, size_t size) {
  const size_t begin = offset % kBlockBytes;
  if (size == 0 || size > kBlockBytes - begin) return nullptr;
  const Block& block = get(offset / kBlockBytes);
  return begin + size <= block.size ? block.data.data() + begin : nullptr;
}

}  // namespace kvc
