#include "src/tiers/rocksdb/direct_files.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <future>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace kvc {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr uint64_t kSector = 4096;
constexpr size_t kLeast = size_t{64}
                          << 10;  // Smaller reads are indexes, and stay in the page cache.
constexpr size_t kMostKept = 4;   // Buffers.

struct Buffer {
  char* data = nullptr;
  size_t size = 0;
};

// Buffers of whole huge pages, used again.
class BufferPool {
 public:
  ~BufferPool() {
    for (const Buffer& buffer : kept_) munmap(buffer.data, buffer.size);
  }
  // No data: there is no memory.
  Buffer take(size_t size) {
    {
      const std::lock_guard lock(mutex_);
      const auto found = std::find_if(kept_.begin(), kept_.end(),
                                      [&](const Buffer& buffer) { return buffer.size >= size; });
      if (found != kept_.end()) {
        const Buffer buffer = *found;
        kept_.erase(found);
        return buffer;
      }
    }
    return map((size + kHugePage - 1) / kHugePage * kHugePage);
  }
  void release(Buffer buffer) {
    {
      const std::lock_guard lock(mutex_);
      if (kept_.size() < kMostKept) {
        kept_.push_back(buffer);
        return;
      }
    }
    munmap(buffer.data, buffer.size);
  }

 private:
  // Aligned to a huge page: what lies before and behind is unmapped again.
  static Buffer map(size_t size) {
    void* mapped =
        mmap(nullptr, size + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) return {};
    char* const begin = static_cast<char*>(mapped);
    const size_t before = (kHugePage - reinterpret_cast<uintptr_t>(begin) % kHugePage) % kHugePage;
    if (before != 0) munmap(begin, before);
    munmap(begin + before + size, kHugePage - before);
    madvise(begin + before, size, MADV_HUGEPAGE);
    return {begin + before, size};
  }

  std::mutex mutex_;
  std::vector<Buffer> kept_;
};

// Reads of [offset, offset + size) as whole sectors. Less than `size` at the end of the file.
// Returns a negated errno on failure.
ssize_t read_sectors(int file, uint64_t offset, size_t size, const Buffer& buffer, char* to) {
  const uint64_t begin = offset / kSector * kSector;
  const uint64_t end = (offset + size + kSector - 1) / kSector * kSector;
  size_t done = 0;
  while (done < end - begin) {
    const ssize_t got =
        pread(file, buffer.data + done, end - begin - done, static_cast<off_t>(begin + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return -errno;
    done += static_cast<size_t>(got);
    if (got == 0 || static_cast<uint64_t>(got) % kSector != 0) break;  // The end of the file.
  }
  const size_t skipped = offset - begin;
  const size_t usable = done <= skipped ? 0 : std::min(size, done - skipped);
  std::memcpy(to, buffer.data + skipped, usable);
  return static_cast<ssize_t>(usable);
}

class ValueMemory final : public rocksdb::MemoryAllocator {
 public:
  const char* Name() const override { return "kvcache.value_memory"; }
  void* Allocate(size_t size) override {
    if (size < kLeast) return std::malloc(size);
    const Buffer buffer = pool_.take(size);
    if (buffer.data == nullptr) return nullptr;
    const std::lock_guard lock(mutex_);
    taken_.push_back(buffer);
    return buffer.data;
  }
  void Deallocate(void* data) override {
    Buffer buffer;
    {
      const std::lock_guard lock(mutex_);
      const auto found = std::find_if(taken_.begin(), taken_.end(),
                                      [&](const Buffer& taken) { return taken.data == data; });
      if (found != taken_.end()) {
        buffer = *found;
        taken_.erase(found);
      }
    }
    if (buffer.data == nullptr) {
      std::free(data);
    } else {
      pool_.release(buffer);
    }
  }

 private:
  BufferPool pool_;
  std::mutex mutex_;
  std::vector<Buffer> taken_;
};

class DirectReader final : public rocksdb::FSRandomAccessFileOwnerWrapper {
 public:
  DirectReader(std::unique_ptr<rocksdb::FSRandomAccessFile> plain, int file, BufferPool* pool)
      : FSRandomAccessFileOwnerWrapper(std::move(plain)), file_(file), pool_(pool) {}
  ~DirectReader() override { close(file_); }

  rocksdb::IOStatus Read(uint64_t offset, size_t size, const rocksdb::IOOptions& options,
                         rocksdb::Slice* result, char* scratch,
                         rocksdb::IODebugContext* context) const override {
    if (size >= kLeast && !is_refused_.load(std::memory_order_relaxed)) {
      const Buffer buffer = pool_->take(size + 2 * kSector);
      if (buffer.data != nullptr) {
        const ssize_t got = read_sectors(file_, offset, size, buffer, scratch);
        pool_->release(buffer);
        if (got >= 0) {
          *result = rocksdb::Slice(scratch, static_cast<size_t>(got));
          return rocksdb::IOStatus::OK();
        }
        // Some file systems open with O_DIRECT and refuse the read. The plain read below says what
        // else is wrong.
        is_refused_.store(true, std::memory_order_relaxed);
      }
    }
    return FSRandomAccessFileOwnerWrapper::Read(offset, size, options, result, scratch, context);
  }

 private:
  const int file_;
  BufferPool* const pool_;
  mutable std::atomic<bool> is_refused_{false};
};

// A table that is written from its begin to its end. While one buffer is on its way to the disk,
// the other one is filled.
class DirectWriter final : public rocksdb::FSWritableFile {
 public:
  // Owns `file`, opened with O_DIRECT. `pool` outlives it.
  DirectWriter(int file, BufferPool* pool) : file_(file), pool_(pool) {}
  ~DirectWriter() override {
    if (pending_.valid()) pending_.wait();
    for (const Buffer& buffer : buffers_) {
      if (buffer.data != nullptr) pool_->release(buffer);
    }
    if (file_ >= 0) close(file_);
  }

  using FSWritableFile::Append;
  rocksdb::IOStatus Append(const rocksdb::Slice& data, const rocksdb::IOOptions&,
                           rocksdb::IODebugContext*) override {
    for (size_t done = 0; done < data.size();) {
      if (buffers_[current_].data == nullptr) {
        buffers_[current_] = pool_->take(kWriteBytes);
        if (buffers_[current_].data == nullptr)
          return rocksdb::IOStatus::IOError("no memory for a buffer");
      }
      const size_t part = std::min(data.size() - done, kWriteBytes - filled_);
      std::memcpy(buffers_[current_].data + filled_, data.data() + done, part);
      filled_ += part;
      done += part;
      if (filled_ < kWriteBytes) continue;
      const rocksdb::IOStatus status = start_write();
      if (!status.ok()) return status;
    }
    return rocksdb::IOStatus::OK();
  }
  rocksdb::IOStatus Flush(const rocksdb::IOOptions&, rocksdb::IODebugContext*) override {
    return rocksdb::IOStatus::OK();
  }
  // The last sectors are written again when more follows.
  rocksdb::IOStatus Sync(const rocksdb::IOOptions&, rocksdb::IODebugContext*) override {
    const rocksdb::IOStatus status = write_rest();
    if (!status.ok()) return status;
    return fdatasync(file_) == 0 ? rocksdb::IOStatus::OK() : failed("fdatasync", errno);
  }
  rocksdb::IOStatus Close(const rocksdb::IOOptions&, rocksdb::IODebugContext*) override {
    const rocksdb::IOStatus status = write_rest();
    if (file_ >= 0) close(file_);
    file_ = -1;
    return status;
  }
  uint64_t GetFileSize(const rocksdb::IOOptions&, rocksdb::IODebugContext*) override {
    return written_ + filled_;
  }

 private:
  static constexpr size_t kWriteBytes = 2 * kHugePage;

  static rocksdb::IOStatus failed(const char* what, int error) {
    const std::string text = std::string(what) + ": " + strerror(error);
    return error == ENOSPC ? rocksdb::IOStatus::NoSpace(text) : rocksdb::IOStatus::IOError(text);
  }
  // 0, or an errno.
  static int write_all(int file, const char* data, size_t size, uint64_t offset) {
    while (size > 0) {
      const ssize_t wrote = pwrite(file, data, size, static_cast<off_t>(offset));
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote <= 0) return wrote < 0 ? errno : EIO;
      data += wrote;
      size -= static_cast<size_t>(wrote);
      offset += static_cast<uint64_t>(wrote);
    }
    return 0;
  }
  rocksdb::IOStatus wait() {
    if (!pending_.valid()) return rocksdb::IOStatus::OK();
    const int error = pending_.get();
    return error == 0 ? rocksdb::IOStatus::OK() : failed("pwrite", error);
  }
  // The current buffer is full.
  rocksdb::IOStatus start_write() {
    const rocksdb::IOStatus status = wait();
    if (!status.ok()) return status;
    const auto work = [file = file_, data = buffers_[current_].data, offset = written_] {
      return write_all(file, data, kWriteBytes, offset);
    };
    try {
      pending_ = std::async(std::launch::async, work);
    } catch (const std::exception&) {
      const int error = work();  // No thread to be had.
      if (error != 0) return failed("pwrite", error);
    }
    written_ += kWriteBytes;
    filled_ = 0;
    current_ ^= 1;
    return rocksdb::IOStatus::OK();
  }
  rocksdb::IOStatus write_rest() {
    const rocksdb::IOStatus status = wait();
    if (!status.ok() || filled_ == 0 || file_ < 0) return status;
    const size_t sectors = (filled_ + kSector - 1) / kSector * kSector;
    std::memset(buffers_[current_].data + filled_, 0, sectors - filled_);
    const int error = write_all(file_, buffers_[current_].data, sectors, written_);
    if (error != 0) return failed("pwrite", error);
    return ftruncate(file_, static_cast<off_t>(written_ + filled_)) == 0
               ? rocksdb::IOStatus::OK()
               : failed("ftruncate", errno);
  }

  int file_;
  BufferPool* const pool_;
  Buffer buffers_[2];
  int current_ = 0;
  size_t filled_ = 0;     // Bytes of the current buffer.
  uint64_t written_ = 0;  // Bytes of the file before it, written or on their way.
  std::future<int> pending_;
};

class DirectFiles final : public rocksdb::FileSystemWrapper {
 public:
  using FileSystemWrapper::FileSystemWrapper;
  const char* Name() const override { return "kvcache.direct_files"; }

  rocksdb::IOStatus NewRandomAccessFile(const std::string& path,
                                        const rocksdb::FileOptions& options,
                                        std::unique_ptr<rocksdb::FSRandomAccessFile>* result,
                                        rocksdb::IODebugContext* context) override {
    const rocksdb::IOStatus status =
        FileSystemWrapper::NewRandomAccessFile(path, options, result, context);
    if (!status.ok()) return status;
    const int file = open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
    if (file >= 0) *result = std::make_unique<DirectReader>(std::move(*result), file, &pool_);
    return status;
  }

  rocksdb::IOStatus NewWritableFile(const std::string& path, const rocksdb::FileOptions& options,
                                    std::unique_ptr<rocksdb::FSWritableFile>* result,
                                    rocksdb::IODebugContext* context) override {
    const bool is_table = path.size() > 4 && path.compare(path.size() - 4, 4, ".sst") == 0;
    const int file = is_table && writes_directly(path) ? open_for_writing(path) : -1;
    if (file < 0) return FileSystemWrapper::NewWritableFile(path, options, result, context);
    *result = std::make_unique<DirectWriter>(file, &pool_);
    return rocksdb::IOStatus::OK();
  }

 private:
  static int open_for_writing(const std::string& path) {
    return open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_DIRECT | O_CLOEXEC, 0644);
  }
  // Some file systems open with O_DIRECT and refuse the write: a sector is tried once.
  bool writes_directly(const std::string& path) {
    const std::lock_guard lock(mutex_);
    if (trial_ == Trial::kNone) {
      const std::string name = path + ".trial";
      const Buffer buffer = pool_.take(kSector);
      const int file = buffer.data != nullptr ? open_for_writing(name) : -1;
      const bool works = file >= 0 && pwrite(file, buffer.data, kSector, 0) == ssize_t{kSector};
      // A full disk says nothing of what the file system can do.
      const bool is_full = file >= 0 && !works && errno == ENOSPC;
      if (file >= 0) close(file);
      unlink(name.c_str());
      if (buffer.data != nullptr) pool_.release(buffer);
      if (is_full) return false;
      trial_ = works ? Trial::kWorks : Trial::kRefused;
    }
    return trial_ == Trial::kWorks;
  }

  enum class Trial { kNone, kWorks, kRefused };

  BufferPool pool_;
  std::mutex mutex_;
  Trial trial_ = Trial::kNone;
};

}  // namespace

std::shared_ptr<rocksdb::MemoryAllocator> value_memory() { return std::make_shared<ValueMemory>(); }

std::shared_ptr<rocksdb::FileSystem> direct_files(std::shared_ptr<rocksdb::FileSystem> base) {
  return std::make_shared<DirectFiles>(std::move(base));
}

}  // namespace kvc
