// Where the bytes of a state file come from: a file, memory, a function of the host program.
#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "kvcache.h"
#include "src/base/memory.h"

namespace kvc {

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  // Reads up to `size` bytes from `offset` on; fewer only at the end. Throws IO.
  virtual size_t read(uint64_t offset, void* data, size_t size) = 0;
  // The bytes themselves where they lie in memory together, else null; valid until the next call.
  // Throws IO.
  virtual const std::byte* view(uint64_t, size_t) { return nullptr; }
  // For messages.
  virtual const char* name() const = 0;
};

class FileSource final : public ByteSource {
 public:
  explicit FileSource(const char* path);  // Throws IO.
  ~FileSource() override;
  FileSource(const FileSource&) = delete;
  FileSource& operator=(const FileSource&) = delete;

  size_t read(uint64_t offset, void* data, size_t size) override;
  const char* name() const override { return name_.c_str(); }

 private:
  std::string name_;
  int file_;
};

// Borrows the memory.
class MemorySource final : public ByteSource {
 public:
  MemorySource(const void* data, size_t size)
      : data_(static_cast<const std::byte*>(data)), size_(size) {}

  size_t read(uint64_t offset, void* data, size_t size) override;
  const std::byte* view(uint64_t offset, size_t size) override {
    return offset <= size_ && size <= size_ - offset ? data_ + offset : nullptr;
  }
  const char* name() const override { return "desc.data"; }

 private:
  const std::byte* data_;
  size_t size_;
};

class FunctionSource final : public ByteSource {
 public:
  using Function = decltype(kvc_load_desc::read);

  FunctionSource(Function function, void* user) : function_(function), user_(user) {}

  size_t read(uint64_t offset, void* data, size_t size) override;
  const char* name() const override { return "what desc.read returned"; }

 private:
  Function function_;
  void* user_;
};

// A file that is read ahead by a thread, while the caller works on what was read before. The file
// is cut into blocks, which lie in a ring: block n in place n % kNumBlocks. The thread fills blocks
// [filled_, current_ + kNumBlocks); the caller has block current_. It starts when a second block is
// asked for. Where the system gives no thread, the caller reads for itself.  Reads that go on where
// the last one ended are fast; any other waits for the thread and begins anew. A view is valid
// until the next call. One caller at a time.
class ReadAhead final : public ByteSource {
 public:
  explicit ReadAhead(const char* path) : file_(path) {}  // Throws IO.
  ~ReadAhead() override;
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  size_t read(uint64_t offset, void* data, size_t size) override;
  const std::byte* view(uint64_t offset, size_t size) override;
  const char* name() const override { return file_.name(); }

 private:
  static constexpr uint64_t kBlockBytes = uint64_t{1} << 20;
  static constexpr uint64_t kNumBlocks = 4;

  struct Block {
    AlignedBuffer data;
    size_t size = 0;
    std::exception_ptr error;
  };

  // The filled block. Throws what reading it threw.
  const Block& get(uint64_t number);
  Block& place(uint64_t number) { return blocks_[number % kNumBlocks]; }
  void fill(uint64_t number) noexcept;
  void work() noexcept;

  FileSource file_;
  std::array<Block, kNumBlocks> blocks_;
  std::thread thread_;
  bool is_alone_ = false;  // There is no thread to be had.

  std::mutex mutex_;  // Guards what follows.
  std::condition_variable changed_;
  uint64_t current_ = 0;     // Block that the caller has.
  uint64_t filled_ = 0;      // Blocks [current_, filled_) are filled.
  bool is_filling_ = false;  // The thread is filling block filled_.
  bool is_ending_ = false;
};

}  // namespace kvc
