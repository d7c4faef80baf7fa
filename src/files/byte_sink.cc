#include "src/files/byte_sink.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "src/base/error.h"

namespace kvc {
namespace {

// The folder that the file lies in.
std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace

void FileSink::fail_at(const char* action, int error_number) const {
  fail_errno(KVC_E_IO, error_number, "cannot %s \"%s\": %s", action, path_.c_str(),
             std::strerror(error_number));
}

FileSink::FileSink(const char* path) : path_(path) {
  static std::atomic<uint32_t> counter = 0;
  // Another process may have the same numbers in another container that shares the folder.
  for (int attempt = 0; attempt < 1000; ++attempt) {
    temporary_ =
        path_ + "." + std::to_string(::getpid()) + "-" + std::to_string(counter++) + ".tmp";
    file_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file_ >= 0) return;
    if (errno != EEXIST) break;
  }
  fail_at("create", errno);
}

FileSink::~FileSink() {
  if (file_ >= 0) ::close(file_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void FileSink::write(const void* data, size_t size) {
  const auto* at = static_cast<const std::byte*>(data);
  while (size != 0) {
    const ssize_t written = ::write(file_, at, std::min(size, size_t{1} << 30));
    if (written < 0) {
      if (errno == EINTR) continue;
      fail_at("write", errno);
    }
    if (written == 0) fail_at("write", ENOSPC);
    at += written;
    size -= static_cast<size_t>(written);
  }
}

void FileSink::finish() {
  if (::fdatasync(file_) != 0) fail_at("synchronise", errno);
  const int file = file_;
  file_ = -1;
  if (::close(file) != 0) fail_at("close", errno);
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) fail_at("rename to", errno);
  temporary_.clear();
  // Some file systems have no directory to synchronise; the file itself is whole then too.
  const int folder = ::open(folder_of(path_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return;
  const int result = ::fsync(folder);
  const int error_number = errno;
  ::close(folder);
  if (result != 0 && error_number != EINVAL && error_number != EROFS)
    fail_at("synchronise the folder of", error_number);
}

void MemorySink::write(const void* data, size_t size) {
  if (size_ < capacity_) {
    const size_t room = capacity_ - static_cast<size_t>(size_);
    std::memcpy(data_ + size_, data, std::min(size, room));
  }
  size_ += size;
}

void FunctionSink::write(const void* data, size_t size) {
  const int32_t result = function_(user_, data, size);
  if (result == 0) return;
  fail_errno(KVC_E_IO, result, "desc.write returned %d for %zu bytes, expected 0", result, size);
}

}  // namespace kvc
