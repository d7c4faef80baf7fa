// Where the bytes of a state file go: a file, memory, a function of the host program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "kvcache.h"

struct stat;

namespace kvc {

class ByteSink {
 public:
  virtual ~ByteSink() = default;
  // Appends. Throws IO, with errno as sys_code.
  virtual void write(const void* data, size_t size) = 0;
  // Nothing follows: what was written is whole, and durable where the sink is a file. Throws IO.
  virtual void finish() = 0;
};

// A file that appears under its name when it is whole, or not at all: written beside it under
// another name, synchronised, renamed, and the directory synchronised. A sink that was not finished
// leaves nothing behind; a process that dies leaves a file `.kvcache-<numbers>.tmp` in the folder.
// A symbolic link is followed. A new file belongs to its user alone (mode 0600); a file that is
// replaced keeps mode, owner and group. What is no regular file, such as a FIFO or a device, is
// written in place, whole or not.
class FileSink final : public ByteSink {
 public:
  explicit FileSink(const char* path);  // Throws IO.
  ~FileSink() override;
  FileSink(const FileSink&) = delete;
  FileSink& operator=(const FileSink&) = delete;

  void write(const void* data, size_t size) override;
  void finish() override;

 private:
  [[noreturn]] void fail_at(const char* action, int error_number) const;
  void open_in_place();
  void open_beside(const std::string& target);
  void keep_owner(const struct stat& before);

  std::string path_;
  std::string target_;     // Where the path leads.
  std::string temporary_;  // Empty: written in place.
  int file_ = -1;
};

// Memory of the caller. Bytes beyond `capacity` are counted and go nowhere.
class MemorySink final : public ByteSink {
 public:
  MemorySink(void* data, size_t capacity)
      : data_(static_cast<std::byte*>(data)), capacity_(capacity) {}

  void write(const void* data, size_t size) override;
  void finish() override {}
  uint64_t size() const { return size_; }

 private:
  std::byte* data_;
  size_t capacity_;
  uint64_t size_ = 0;
};

class FunctionSink final : public ByteSink {
 public:
  using Function = decltype(kvc_save_desc::write);

  FunctionSink(Function function, void* user) : function_(function), user_(user) {}

  void write(const void* data, size_t size) override;
  void finish() override {}

 private:
  Function function_;
  void* user_;
};

}  // namespace kvc
