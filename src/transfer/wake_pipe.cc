#include "src/transfer/wake_pipe.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

#include "src/base/error.h"

namespace kvc {

WakePipe::WakePipe() {
  int ends[2];
  if (pipe(ends) != 0) fail_errno(KVC_E_IO, errno, "no pipe for a transport");
  read_ = ends[0];
  write_ = ends[1];
  for (const int end : ends) {
    fcntl(end, F_SETFL, O_NONBLOCK);
    fcntl(end, F_SETFD, FD_CLOEXEC);
  }
}

WakePipe::~WakePipe() {
  close(read_);
  close(write_);
}

void WakePipe::wake() noexcept {
  const char one = 1;
  // A full pipe wakes as well.
  (void)!write(write_, &one, 1);
}

void WakePipe::clear() noexcept {
  char bytes[64];
  while (read(read_, bytes, sizeof bytes) > 0) {
  }
}

void WakePipe::wait(int64_t timeout_ns) const {
  pollfd entry{read_, POLLIN, 0};
  constexpr int64_t kMilli = 1'000'000;
  const int64_t timeout = timeout_ns < 0 ? -1 : std::min<int64_t>(timeout_ns / kMilli + 1, INT_MAX);
  (void)poll(&entry, 1, timeout_ns == 0 ? 0 : static_cast<int>(timeout));
}

}  // namespace kvc
