// A file that is read ahead by a thread, while the caller works on what was read before.
#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>

#include "src/base/memory.h"
#include "src/files/byte_source.h"

namespace kvc {

// The file is cut into blocks, which lie in a ring: block n in place n % kNumBlocks. The thread
// fills blocks [filled_, current_ + kNumBlocks); the caller has block current_. It starts when a
// second block is asked for. Where the system gives no thread, the caller reads for itself.
//
// Reads that go on where the last one ended are fast; any other waits for the thread and begins
// anew. A view is valid until the next call. One caller at a time.
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
