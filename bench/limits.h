// What this machine can do, measured by our own loops: the denominators of every share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "bench/thread_team.h"

namespace kvc::bench {

// Memory for the limits: page-aligned, in huge pages where the system gives them, touched.
class Buffer {
 public:
  explicit Buffer(size_t bytes);
  std::byte* data() const { return data_.get(); }
  size_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  std::unique_ptr<std::byte, Free> data_;
  size_t bytes_;
};

// How a walk asks for memory. The best way depends on the machine, so it is chosen by trying.
struct ReadWay {
  int streams;  // Parts of a portion that are read side by side: 1, 2 or 4.
  // Bytes of software prefetch inside each stream, into the next portion at its end; 0: none.
  int64_t ahead;
};

// Portions of equal size, read once each in this order; a task is a run of `portions_per_task` of
// them.
struct ReadWalk {
  std::vector<const std::byte*> portions;
  int64_t portion_bytes;
  int64_t portions_per_task;

  double bytes() const {
    return static_cast<double>(portions.size()) * static_cast<double>(portion_bytes);
  }
};

// Reads portions [begin, end) of the walk on all threads, tasks in order on whichever thread is
// free.
void read_portions(ThreadTeam& team, const ReadWalk& walk, const ReadWay& way, int64_t begin,
                   int64_t end);

// The fastest way to read this walk here: with portions read in parts side by side, or strictly
// from front to back.
enum class Inside { kAnyOrder, kInOrder };
ReadWay fastest_read_way(ThreadTeam& team, const ReadWalk& walk, Inside inside);

// The memory of `buffer` cut into portions, in address order or shuffled.
enum class Order { kSequential, kShuffled };
ReadWalk walk_over(const Buffer& buffer, int64_t portion_bytes, Order order);

// A streaming copy; the fastest of several ways, chosen once.
struct CopyWay {
  bool stream_stores;  // Stores that go past the caches; false: memcpy.
  int64_t ahead;       // Bytes of software prefetch of the source.
};
void copy_bytes(ThreadTeam& team, std::byte* to, const std::byte* from, size_t bytes,
                const CopyWay& way);
CopyWay fastest_copy_way(ThreadTeam& team, std::byte* to, const std::byte* from, size_t bytes);

// Memory that is read and written back in place, on all threads; `ahead` bytes of software
// prefetch, the fastest chosen once.
void update_bytes(ThreadTeam& team, std::byte* data, size_t bytes, int64_t ahead);
int64_t fastest_update_ahead(ThreadTeam& team, std::byte* data, size_t bytes);

// Arithmetic peaks: independent chains of multiply-adds in registers.
enum class Arithmetic { kScalar, kAvx2, kAvx512, kAvx512Bf16 };
const char* arithmetic_name(Arithmetic arithmetic);  // "fp32 fma zmm", ...
bool machine_has(Arithmetic arithmetic);
// Runs `chunks` chunks per thread (about 0.1 ms each) and returns the flops done by all threads.
double run_arithmetic(ThreadTeam& team, Arithmetic arithmetic, int chunks);

}  // namespace kvc::bench
