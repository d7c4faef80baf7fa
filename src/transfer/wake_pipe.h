// A pipe that wakes whoever waits for it.
#pragma once

#include <cstdint>

namespace kvc {

class WakePipe {
 public:
  WakePipe();  // Throws IO.
  ~WakePipe();
  WakePipe(const WakePipe&) = delete;
  WakePipe& operator=(const WakePipe&) = delete;

  int descriptor() const { return read_; }
  void wake() noexcept;
  // Forgets the wakes so far.
  void clear() noexcept;
  // Until a wake, at most so many nanoseconds; negative: for ever.
  void wait(int64_t timeout_ns) const;

 private:
  int read_ = -1, write_ = -1;
};

}  // namespace kvc
