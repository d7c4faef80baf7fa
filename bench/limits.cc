#include "bench/limits.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <new>
#include <numeric>
#include <random>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "bench/limit_loops.h"
#include "bench/measure.h"

namespace kvc::bench {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr int64_t kCopyTask = int64_t{1} << 20;

// Median seconds of a few tries of each way, in turn so that a passing disturbance does not choose
// the winner.
template <typename Way>
Way fastest(const std::vector<Way>& ways, const std::function<void(const Way&)>& work) {
  constexpr int kRounds = 5;
  std::vector<std::vector<double>> seconds(ways.size());
  for (int round = 0; round < kRounds; ++round) {
    for (size_t way = 0; way < ways.size(); ++way) {
      const double start = now_seconds();
      work(ways[way]);
      seconds[way].push_back(now_seconds() - start);
    }
  }
  size_t best = 0;
  for (size_t way = 1; way < ways.size(); ++way) {
    if (spread_of(seconds[way]).median < spread_of(seconds[best]).median) best = way;
  }
  return ways[best];
}

}  // namespace

void Buffer::Free::operator()(std::byte* p) const { std::free(p); }

Buffer::Buffer(size_t bytes) : bytes_(bytes) {
  const size_t rounded = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  data_.reset(static_cast<std::byte*>(std::aligned_alloc(kHugePage, rounded)));
  if (data_ == nullptr) throw std::bad_alloc();
#if defined(__linux__)
  madvise(data_.get(), rounded, MADV_HUGEPAGE);
#endif
  std::memset(data_.get(), 1, rounded);
}

void read_portions(ThreadTeam& team, const ReadWalk& walk, const ReadWay& way, int64_t begin,
                   int64_t end) {
  const int64_t tasks = (end - begin + walk.portions_per_task - 1) / walk.portions_per_task;
  team.run_tasks(tasks, [&](int64_t task, int) {
    const int64_t first = begin + task * walk.portions_per_task;
    const int64_t count = std::min(walk.portions_per_task, end - first);
    loop_read(walk.portions.data() + first, count, walk.portion_bytes, way.streams, way.ahead);
  });
}

ReadWay fastest_read_way(ThreadTeam& team, const ReadWalk& walk, Inside inside) {
  std::vector<ReadWay> ways;
  for (const int streams : {1, 2, 4}) {
    if (inside == Inside::kInOrder && streams != 1) continue;
    for (const int64_t ahead : {0, 512, 1024, 2048, 4096, 8192}) {
      if (streams == 1 || streams_fit(walk.portion_bytes, streams, ahead))
        ways.push_back({streams, ahead});
    }
  }
  const auto portions = static_cast<int64_t>(walk.portions.size());
  // A different stretch each time, so that no try finds the memory of the one before in the cache.
  constexpr int64_t kTryBytes = int64_t{48} << 20;
  const int64_t stretch = std::min(portions, std::max<int64_t>(1, kTryBytes / walk.portion_bytes));
  int64_t next = 0;
  return fastest<ReadWay>(ways, [&](const ReadWay& way) {
    if (next + stretch > portions) next = 0;
    read_portions(team, walk, way, next, next + stretch);
    next += stretch;
  });
}

ReadWalk walk_over(const Buffer& buffer, int64_t portion_bytes, Order order) {
  constexpr int64_t kTaskBytes = int64_t{2} << 20;
  ReadWalk walk{{}, portion_bytes, std::max<int64_t>(1, kTaskBytes / portion_bytes)};
  const auto count = static_cast<int64_t>(buffer.bytes()) / portion_bytes;
  walk.portions.reserve(static_cast<size_t>(count));
  for (int64_t portion = 0; portion < count; ++portion)
    walk.portions.push_back(buffer.data() + portion * portion_bytes);
  if (order == Order::kShuffled)
    std::shuffle(walk.portions.begin(), walk.portions.end(), std::mt19937_64(1));
  return walk;
}

void copy_bytes(ThreadTeam& team, std::byte* to, const std::byte* from, size_t bytes,
                const CopyWay& way) {
  const auto total = static_cast<int64_t>(bytes);
  team.run_tasks((total + kCopyTask - 1) / kCopyTask, [&](int64_t task, int) {
    const int64_t begin = task * kCopyTask;
    const int64_t size = std::min(kCopyTask, total - begin);
    if (way.stream_stores) {
      loop_stream_copy(to + begin, from + begin, size, way.ahead);
    } else {
      std::memcpy(to + begin, from + begin, static_cast<size_t>(size));
    }
  });
}

CopyWay fastest_copy_way(ThreadTeam& team, std::byte* to, const std::byte* from, size_t bytes) {
  std::vector<CopyWay> ways = {{false, 0}};
  if (machine_has(Arithmetic::kAvx2)) {
    for (const int64_t ahead : {0, 512, 1024, 2048, 4096}) ways.push_back({true, ahead});
  }
  return fastest<CopyWay>(ways,
                          [&](const CopyWay& way) { copy_bytes(team, to, from, bytes, way); });
}

void update_bytes(ThreadTeam& team, std::byte* data, size_t bytes, int64_t ahead) {
  const auto total = static_cast<int64_t>(bytes);
  team.run_tasks((total + kCopyTask - 1) / kCopyTask, [&](int64_t task, int) {
    const int64_t begin = task * kCopyTask;
    loop_update(data + begin, std::min(kCopyTask, total - begin), ahead);
  });
}

int64_t fastest_update_ahead(ThreadTeam& team, std::byte* data, size_t bytes) {
  return fastest<int64_t>({0, 512, 1024, 2048, 4096},
                          [&](int64_t ahead) { update_bytes(team, data, bytes, ahead); });
}

double run_arithmetic(ThreadTeam& team, Arithmetic arithmetic, int chunks) {
  std::vector<double> flops(static_cast<size_t>(team.size()));
  team.run_tasks(int64_t{chunks} * team.size(), [&](int64_t, int thread) {
    flops[static_cast<size_t>(thread)] += loop_arithmetic(arithmetic);
  });
  return std::accumulate(flops.begin(), flops.end(), 0.0);
}

}  // namespace kvc::bench
