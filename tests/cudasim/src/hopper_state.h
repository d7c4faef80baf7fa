// What is under way in a CTA beside its lanes: TMA boxes and wgmmas.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "cudasim/engine.h"
#include "cudasim/hopper.h"

namespace cudasim {

struct Mbarrier {
  uint32_t count;
  uint32_t missing;  // arrivals of this phase
  int64_t bytes;     // announced and not yet there; negative: there and not yet announced
  uint32_t phase;
  bool fenced;  // mbarrier_fence_init since init
  std::vector<Lane*> waiting;
};

// A tensor map as encode_tensor_map packs it.
struct TensorShape {
  const std::byte* address;
  int rank;
  uint32_t element_bytes;
  uint32_t swizzle;  // bytes: 0, 32, 64, 128
  uint64_t dims[5];
  uint64_t strides[5];  // bytes; strides[0] is element_bytes
  uint32_t box[5];
  uint64_t box_bytes() const;
};
// Ends the program where `map` was not made by encode_tensor_map.
TensorShape decode_tensor_map(const void* map);
// The box at `at`, zeros outside of the tensor, into shared memory from offset `to` on.
void copy_box(const TensorShape& shape, const std::array<int32_t, 5>& at, std::byte* shared,
              size_t to);
// Where byte `offset` of shared memory lies; mode in bytes. Shared memory begins 1024-byte aligned.
size_t swizzled(size_t offset, uint32_t swizzle);

struct Box {
  TensorShape shape;
  std::array<int32_t, 5> at;
  size_t to;
  uint64_t* barrier;
};

struct PendingWgmma {
  std::array<Wgmma, 128> parts;
  uint32_t group;
};
struct WgmmaQueue {
  std::deque<PendingWgmma> pending;
  uint32_t open_group;
  bool fenced;  // since the last wait
};

struct HopperState {
  std::map<const uint64_t*, Mbarrier> barriers;
  std::vector<Box> boxes;
  WgmmaQueue wgmmas[kMaxWarps / 4];
};
HopperState& hopper_of(Cta& cta);

// One box arrives; false: none is under way.
bool deliver_some(Cta& cta);
// All lanes have ended.
void end_hopper(Cta& cta);
void free_hopper(Cta& cta);
// For reports: the state of the mbarrier that a lane waits at.
std::string describe_wait(const Lane& lane);

}  // namespace cudasim
