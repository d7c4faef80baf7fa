#include "src/files/byte_sink.h"

#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
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

// Where a path leads. The last of its symbolic links may lead to a file that is not there yet.
std::string target_of(std::string path) {
  char link[PATH_MAX];
  for (int links = 0; links < 40; ++links) {
    const ssize_t length = ::readlink(path.c_str(), link, sizeof link);
    if (length < 0 || static_cast<size_t>(length) == sizeof link) return path;
    const std::string to(link, static_cast<size_t>(length));
    path = to[0] == '/' ? to : folder_of(path) + "/" + to;
  }
  return path;
}

// A reader that goes away is an error of write, and no signal that ends the process.
class SigpipeBlocked {
 public:
  SigpipeBlocked() noexcept {
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~SigpipeBlocked() {
    sigset_t pending;
    sigpending(&pending);
    int taken = 0;
    if (!was_pending_ && sigismember(&pending, SIGPIPE) == 1) sigwait(&pipe_, &taken);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  SigpipeBlocked(const SigpipeBlocked&) = delete;
  SigpipeBlocked& operator=(const SigpipeBlocked&) = delete;

 private:
  sigset_t pipe_, before_;
  bool was_pending_;
};

}  // namespace

void FileSink::fail_at(const char* action, int error_number) const {
  fail_errno(KVC_E_IO, error_number, "cannot %s \"%s\": %s", action, path_.c_str(),
             std::strerror(error_number));
}

FileSink::FileSink(const char* path) : path_(path), target_(target_of(path)) {
  struct stat before {};
  const bool exists = ::stat(target_.c_str(), &before) == 0;
  if (!exists && errno == ELOOP) fail_at("open", ELOOP);
  if (exists && S_ISDIR(before.st_mode)) fail_at("write", EISDIR);
  if (exists && !S_ISREG(before.st_mode)) {
    open_in_place();
    return;
  }
  open_beside(target_);
  try {
    if (exists) keep_owner(before);
  } catch (...) {
    ::close(file_);
    ::unlink(temporary_.c_str());
    throw;
  }
}

void FileSink::open_in_place() {
  // A FIFO that nobody reads is an error, not a wait. After that writes wait for the reader.
  file_ = ::open(target_.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
  if (file_ < 0 && errno == ENXIO)
    fail_errno(KVC_E_IO, ENXIO,
               "cannot write \"%s\": it is a FIFO that no process reads, or no file",
               path_.c_str());
  if (file_ < 0) fail_at("open", errno);
  if (::fcntl(file_, F_SETFL, 0) != 0) {
    const int error_number = errno;
    ::close(file_);
    fail_at("open", error_number);
  }
}

void FileSink::open_beside(const std::string& target) {
  static std::atomic<uint32_t> counter = 0;
  // Another process may have the same numbers in another container that shares the folder. The name
  // does not hold that of the file, which may be as long as a name can be.
  for (int attempt = 0; attempt < 1000; ++attempt) {
    temporary_ = folder_of(target) + "/.kvcache-" + std::to_string(::getpid()) + "-" +
                 std::to_string(counter++) + ".tmp";
    file_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file_ >= 0) return;
    if (errno != EEXIST) break;
  }
  const int error_number = errno;
  temporary_.clear();
  fail_at("create", error_number);
}

void FileSink::keep_owner(const struct stat& before) {
  struct stat now {};
  if (::fstat(file_, &now) != 0) fail_at("read the owner of", errno);
  const bool changes = now.st_uid != before.st_uid || now.st_gid != before.st_gid;
  if (changes && ::fchown(file_, before.st_uid, before.st_gid) != 0) {
    fail_errno(KVC_E_IO, errno, "cannot replace \"%s\" and keep its owner %lld:%lld: %s",
               path_.c_str(), ll(before.st_uid), ll(before.st_gid), std::strerror(errno));
  }
  if (::fchmod(file_, before.st_mode & 0777) != 0) fail_at("keep the mode of", errno);
}

FileSink::~FileSink() {
  if (file_ >= 0) ::close(file_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void FileSink::write(const void* data, size_t size) {
  const SigpipeBlocked blocked;
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
  const bool is_in_place = temporary_.empty();
  // A FIFO or a terminal has nothing to synchronise.
  if (::fdatasync(file_) != 0 && !(is_in_place && (errno == EINVAL || errno == EROFS)))
    fail_at("synchronise", errno);
  const int file = file_;
  file_ = -1;
  if (::close(file) != 0) fail_at("close", errno);
  if (is_in_place) return;
  if (std::rename(temporary_.c_str(), target_.c_str()) != 0) fail_at("rename to", errno);
  temporary_.clear();
  // Some file systems have no directory to synchronise; the file itself is whole then too.
  const int folder = ::open(folder_of(target_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
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
