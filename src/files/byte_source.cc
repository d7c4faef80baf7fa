#include "src/files/byte_source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "src/base/error.h"
#include "src/base/thread.h"

namespace kvc {

FileSource::FileSource(const char* path)
    : name_("\"" + std::string(path) + "\""),
      // A FIFO without a writer is opened at once, to be refused.
      file_(::open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  struct stat facts;
  int error_number = file_ < 0 ? errno : 0;
  if (error_number == 0 && ::fstat(file_, &facts) == 0) {
    if (S_ISDIR(facts.st_mode)) error_number = EISDIR;
    if (S_ISFIFO(facts.st_mode)) error_number = ESPIPE;
  }
  if (error_number == 0) return;
  if (file_ >= 0) ::close(file_);
  fail_errno(KVC_E_IO, error_number, "cannot open %s: %s", name_.c_str(),
             error_number == ESPIPE ? "it is a FIFO, which cannot be read at an offset"
                                    : std::strerror(error_number));
}

FileSource::~FileSource() { ::close(file_); }

size_t FileSource::read(uint64_t offset, void* data, size_t size) {
  size_t done = 0;
  while (done != size) {
    const ssize_t count =
        ::pread(file_, static_cast<std::byte*>(data) + done, std::min(size - done, size_t{1} << 30),
                static_cast<off_t>(offset + done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      fail_errno(KVC_E_IO, errno, "cannot read %s at offset %llu: %s", name_.c_str(),
                 static_cast<unsigned long long>(offset + done), std::strerror(errno));
    }
    if (count == 0) break;
    done += static_cast<size_t>(count);
  }
  return done;
}

size_t MemorySource::read(uint64_t offset, void* data, size_t size) {
  if (offset >= size_) return 0;
  const size_t count = std::min(size, size_ - static_cast<size_t>(offset));
  std::memcpy(data, data_ + offset, count);
  return count;
}

size_t FunctionSource::read(uint64_t offset, void* data, size_t size) {
  size_t done = 0;
  while (done != size) {
    const int64_t count =
        function_(user_, offset + done, static_cast<std::byte*>(data) + done, size - done);
    if (count == 0) break;
    if (count < 0 || static_cast<uint64_t>(count) > size - done) {
      fail_errno(KVC_E_IO, count < 0 && count >= -4096 ? static_cast<int>(-count) : 0,
                 "desc.read returned %lld for %zu bytes at offset %llu", ll(count), size - done,
                 static_cast<unsigned long long>(offset + done));
    }
    done += static_cast<size_t>(count);
  }
  return done;
}

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
