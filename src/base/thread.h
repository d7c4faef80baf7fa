// How the library starts threads.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <string>
#include <thread>
#include <utility>

namespace kvc {

// A thread that starts while one lives takes no signals: they belong to the host program.
class SignalsBlocked {
 public:
  SignalsBlocked() noexcept {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

// Without signals, and with a name for debuggers and profilers: 15 characters at most. Throws
// std::system_error.
template <typename Work>
std::thread start_thread(std::string name, Work work) {
  const SignalsBlocked blocked;
  return std::thread([name = std::move(name), work = std::move(work)]() mutable {
#ifdef __APPLE__
    pthread_setname_np(name.c_str());
#else
    pthread_setname_np(pthread_self(), name.c_str());
#endif
    work();
  });
}

}  // namespace kvc
