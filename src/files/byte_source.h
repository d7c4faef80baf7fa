// Where the bytes of a state file come from: a file, memory, a function of the host program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "kvcache.h"

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

}  // namespace kvc
