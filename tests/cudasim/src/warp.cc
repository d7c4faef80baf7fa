// Shuffles and votes.
#include <cstdint>

#include "cudasim/engine.h"
#include "cudasim/lanes.h"

namespace cudasim {
namespace {

struct Shuffle {
  uint64_t value;
  uint64_t result;
  ShuffleFrom from;
  int operand;
};

void do_shuffle(Cta&, void* const* arguments) {
  auto of = [&](int lane) { return static_cast<Shuffle*>(arguments[lane]); };
  for (int lane = 0; lane < 32; ++lane) {
    int source = lane;
    const int operand = of(lane)->operand;
    switch (of(lane)->from) {
      case ShuffleFrom::kLane:
      case ShuffleFrom::kWarpId: source = operand & 31; break;
      case ShuffleFrom::kXor: source = lane ^ (operand & 31); break;
      case ShuffleFrom::kUp: source = lane >= (operand & 31) ? lane - (operand & 31) : lane; break;
    }
    of(lane)->result = of(source)->value;
  }
}

struct Vote {
  bool predicate;
  uint32_t result;
};

void do_vote(Cta&, void* const* arguments) {
  uint32_t mask = 0;
  for (int lane = 0; lane < 32; ++lane)
    mask |= uint32_t{static_cast<Vote*>(arguments[lane])->predicate} << lane;
  for (int lane = 0; lane < 32; ++lane) static_cast<Vote*>(arguments[lane])->result = mask;
}

constexpr Meeting kShuffles[] = {{"shuffle", do_shuffle},
                                 {"shuffle_xor", do_shuffle},
                                 {"shuffle_up", do_shuffle},
                                 {"warp_id", do_shuffle}};
constexpr Meeting kVote = {"ballot/any/all", do_vote};
constexpr Meeting kSyncWarp = {"sync_warp", [](Cta&, void* const*) {}};

}  // namespace

uint64_t shuffle(uint64_t value, ShuffleFrom from, int operand) {
  Shuffle mine{value, 0, from, operand};
  meet_warp(kShuffles[static_cast<int>(from)], &mine);
  return mine.result;
}

uint32_t ballot(bool predicate) {
  Vote mine{predicate, 0};
  meet_warp(kVote, &mine);
  return mine.result;
}

void sync_warp() { meet_warp(kSyncWarp, nullptr); }

}  // namespace cudasim
