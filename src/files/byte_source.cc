#include "src/files/byte_source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "src/base/error.h"

namespace kvc {

FileSource::FileSource(const char* path)
    : name_("\"" + std::string(path) + "\""), file_(::open(path, O_RDONLY | O_CLOEXEC)) {
  struct stat facts;
  int error_number = file_ < 0 ? errno : 0;
  if (error_number == 0 && ::fstat(file_, &facts) == 0 && S_ISDIR(facts.st_mode))
    error_number = EISDIR;
  if (error_number == 0) return;
  if (file_ >= 0) ::close(file_);
  fail_errno(KVC_E_IO, error_number, "cannot open %s: %s", name_.c_str(),
             std::strerror(error_number));
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

}  // namespace kvc
