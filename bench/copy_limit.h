// What a copy is compared with.
#pragma once

#include "bench/limits.h"
#include "bench/measure.h"

namespace kvc::bench {

// A streaming copy of `bytes` from one half of a buffer to the other, the halves far larger than
// the caches.
class CopyLimit {
 public:
  CopyLimit(ThreadTeam& team, int64_t bytes)
      : team_(team), bytes_(static_cast<size_t>(bytes)), buffer_(2 * kRounds * bytes_), way_{} {
    way_ = fastest_copy_way(team_, target(0), source(0), bytes_);
  }
  Side side() {
    return {static_cast<double>(bytes_),
            [this](int round) { copy_bytes(team_, target(round), source(round), bytes_, way_); }};
  }
  // The same by plain memcpy.
  Side memcpy_side() {
    return {static_cast<double>(bytes_), [this](int round) {
              copy_bytes(team_, target(round), source(round), bytes_, CopyWay{false, 0});
            }};
  }
  bool stream_stores() const { return way_.stream_stores; }

 private:
  static constexpr size_t kRounds = 4;
  std::byte* source(int round) {
    return buffer_.data() + static_cast<size_t>(round) % kRounds * bytes_;
  }
  std::byte* target(int round) { return source(round) + kRounds * bytes_; }

  ThreadTeam& team_;
  size_t bytes_;
  Buffer buffer_;
  CopyWay way_;
};

constexpr int64_t kCopyLimitBytes = int64_t{64} << 20;

}  // namespace kvc::bench
