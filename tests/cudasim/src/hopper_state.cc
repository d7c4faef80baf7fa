// mbarriers (PTX ISA, "mbarrier") and the arrival of TMA boxes.
#include "hopper_state.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "counters.h"

namespace cudasim {
namespace {

// Fills the 8 bytes of an initialised barrier, so that data written over it is noticed.
constexpr uint64_t kMark = 0x6d62617272696572ull;

Mbarrier& find_barrier(HopperState& state, const uint64_t* barrier, const char* function) {
  const auto found = state.barriers.find(barrier);
  if (found == state.barriers.end()) {
    require_shared(barrier, 8, 8, function);
    fail("%s: no mbarrier at byte %td of shared memory", function,
         reinterpret_cast<const std::byte*>(barrier) - here->cta->shared);
  }
  if (*barrier != kMark)
    fail("%s: the mbarrier at byte %td of shared memory has been overwritten", function,
         reinterpret_cast<const std::byte*>(barrier) - here->cta->shared);
  return found->second;
}

void end_phase_if_complete(Mbarrier& barrier) {
  if (barrier.missing != 0 || barrier.bytes != 0) return;
  ++barrier.phase;
  barrier.missing = barrier.count;
  for (Lane* lane : barrier.waiting) wake(*lane);
  barrier.waiting.clear();
}

constexpr int64_t kMostBytes = (1 << 20) - 1;

}  // namespace

HopperState& hopper_of(Cta& cta) {
  if (cta.hopper == nullptr) cta.hopper = new HopperState{};
  return *cta.hopper;
}

bool deliver_some(Cta& cta) {
  HopperState& state = *cta.hopper;
  if (state.boxes.empty()) return false;
  const size_t which = cta.random.next() % state.boxes.size();
  const Box box = state.boxes[which];
  state.boxes.erase(state.boxes.begin() + static_cast<ptrdiff_t>(which));
  copy_box(box.shape, box.at, cta.shared, box.to);
  Mbarrier& barrier = find_barrier(state, box.barrier, "arrival of a TMA box");
  barrier.bytes -= static_cast<int64_t>(box.shape.box_bytes());
  if (barrier.bytes < -kMostBytes) fail("an mbarrier gets more bytes than it was told of");
  end_phase_if_complete(barrier);
  return true;
}

void end_hopper(Cta& cta) {
  if (cta.hopper == nullptr) return;
  // A box that arrives after the CTA's end writes into another's shared memory.
  if (!cta.hopper->boxes.empty()) fail_in(cta, "the CTA has ended with TMA boxes under way");
  for (WgmmaQueue& queue : cta.hopper->wgmmas)
    if (!queue.pending.empty())
      fail_in(cta, "the CTA has ended with a wgmma that nobody waited for");
  *cta.hopper = {};
}

void free_hopper(Cta& cta) {
  delete cta.hopper;
  cta.hopper = nullptr;
}

std::string describe_wait(const Lane& lane) {
  if (lane.waits_at == nullptr) return {};
  const Mbarrier& barrier =
      lane.cta->hopper->barriers.at(static_cast<const uint64_t*>(lane.waits_at));
  char text[160];
  std::snprintf(text, sizeof text,
                " at byte %td of shared memory: phase %u, %u of %u arrivals and %lld bytes missing",
                static_cast<const std::byte*>(lane.waits_at) - lane.cta->shared, barrier.phase,
                barrier.missing, barrier.count, static_cast<long long>(barrier.bytes));
  return text;
}

uint32_t shared_address(const void* shared) {
  // As on the device, where shared memory of a CTA does not begin at 0.
  return 1024 + static_cast<uint32_t>(static_cast<const std::byte*>(shared) - here->cta->shared);
}

void mbarrier_init(uint64_t* barrier, uint32_t count) {
  require_shared(barrier, 8, 8, "mbarrier_init");
  if (count == 0 || count > kMostBytes) fail("mbarrier_init: count %u", count);
  Mbarrier& state = hopper_of(*here->cta).barriers[barrier];
  if (!state.waiting.empty()) fail("mbarrier_init of a barrier that lanes wait at");
  state = {count, count, 0, 0, false, {}};
  *barrier = kMark;
}

void mbarrier_fence_init() {
  for (auto& [address, barrier] : hopper_of(*here->cta).barriers) barrier.fenced = true;
}

void mbarrier_arrive(uint64_t* barrier, uint32_t expected_bytes) {
  memory_access();
  Mbarrier& state = find_barrier(hopper_of(*here->cta), barrier, "mbarrier_arrive");
  if (state.missing == 0)
    fail("mbarrier_arrive: all %u arrivals of the phase have come", state.count);
  state.bytes += expected_bytes;
  if (state.bytes > kMostBytes)
    fail("mbarrier_arrive_expect: %lld bytes", static_cast<long long>(state.bytes));
  --state.missing;
  end_phase_if_complete(state);
}

void mbarrier_wait(uint64_t* barrier, uint32_t parity) {
  memory_access();
  if (parity > 1) fail("mbarrier_wait: parity %u", parity);
  for (;;) {
    Mbarrier& state = find_barrier(hopper_of(*here->cta), barrier, "mbarrier_wait");
    if ((state.phase & 1u) != parity) return;
    state.waiting.push_back(here);
    sleep("mbarrier_wait", barrier);
  }
}

void tma_prefetch(const void* map) { decode_tensor_map(map); }

void tma_load(void* shared, const void* map, uint64_t* barrier, const std::array<int32_t, 5>& at,
              int rank) {
  memory_access();
  Cta& cta = *here->cta;
  HopperState& state = hopper_of(cta);
  const TensorShape shape = decode_tensor_map(map);
  if (shape.rank != rank) fail("tma_load_%dd with a tensor map of rank %d", rank, shape.rank);
  // A swizzle moves pieces inside rows of its own length; what it does to shorter rows is not
  // documented.
  if (shape.swizzle != 0 && shape.box[0] * shape.element_bytes != shape.swizzle)
    fail("tma_load: rows of %u bytes with a swizzle of %u", shape.box[0] * shape.element_bytes,
         shape.swizzle);
  require_shared(shared, shape.box_bytes(), 128, "tma_load to");
  if (!find_barrier(state, barrier, "tma_load").fenced)
    fail("tma_load: no mbarrier_fence_init since mbarrier_init");
  const auto to = static_cast<size_t>(static_cast<std::byte*>(shared) - cta.shared);
  // From now on the destination holds nothing: whoever still reads it has released it too early.
  if ((cta.random.next() & 1u) != 0) std::memset(shared, 0xff, shape.box_bytes());
  state.boxes.push_back({shape, at, to, barrier});
  ++counted().tma_boxes;
}

namespace {

constexpr Meeting kChangeRegisters = {"registers_increase/decrease", [](Cta&, void* const*) {}};

struct StoreMatrix {
  std::byte* row;
  const uint32_t* r;
};

void do_store_matrix(Cta&, void* const* arguments) {
  for (int lane = 0; lane < 32; ++lane)
    for (int i = 0; i < 4; ++i) {
      std::byte* row = static_cast<const StoreMatrix*>(arguments[8 * i + lane / 4])->row;
      std::memcpy(row + 4 * (lane % 4), &static_cast<const StoreMatrix*>(arguments[lane])->r[i], 4);
    }
}
constexpr Meeting kStoreMatrix = {"store_matrix_x4", do_store_matrix};

}  // namespace

void change_registers() { meet_warp(kChangeRegisters, nullptr); }

void store_matrix(void* shared_row, const uint32_t (&r)[4]) {
  require_shared(shared_row, 16, 16, "store_matrix_x4");
  StoreMatrix mine{static_cast<std::byte*>(shared_row), r};
  meet_warp(kStoreMatrix, &mine);
}

}  // namespace cudasim
