// Runs the CTAs of a launch: lanes take turns, waits are found out when nobody can go on.
#include "cudasim/engine.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <thread>
#include <utility>

#include "cudasim/cudasim.h"
#include "cudasim/launch.h"
#include "fibers.h"
#include "hopper_state.h"
#include "report.h"
#include "settings.h"

namespace cudasim {
namespace {

// The fibers of one OS thread, kept from launch to launch.
class LanePool {
 public:
  LanePool() : main_{} { adopt_thread_stack(main_); }
  ~LanePool() {
    for (Lane* lane : lanes_) {
      free_fiber(*lane);
      delete lane;
    }
  }
  Lane* const* first(size_t count);
  Lane& main() { return main_; }

 private:
  Lane main_;
  std::vector<Lane*> lanes_;
};

thread_local LanePool pool;

// The CTA that this thread runs.
Cta& running() { return *here->cta; }

uint32_t rotate_find(uint32_t mask, uint32_t rotation, bool descending) {
  const uint32_t turned = std::rotr(mask, static_cast<int>(rotation));
  const int bit = descending ? 31 - std::countl_zero(turned) : std::countr_zero(turned);
  return (static_cast<uint32_t>(bit) + rotation) & 31u;
}

void set_runnable(Warp& warp, uint32_t index, uint32_t lanes) {
  warp.runnable |= lanes;
  running().active_warps |= 1u << index;
}

void turn(Cta& cta, Warp& warp) {
  const uint32_t r = cta.random.next();
  warp.rotation = r & 31u;
  warp.descending = (r & 32u) != 0;
}

constexpr const char* kWait = "wait_for_previous_kernel";

bool is_early(const Cta& cta) { return cta.before != nullptr && *cta.before; }

// Nobody goes on before the kernel before has run: it does, on another OS thread, for fibers belong
// to theirs.
void run_kernel_before(Cta& cta) {
  const std::function<void()> before = std::exchange(*cta.before, nullptr);
  std::thread(before).join();
  for (uint32_t i = 0; i < cta.block_dim.x; ++i)
    if (cta.lanes[i]->waits_for == kWait) wake(*cta.lanes[i]);
}

// Who goes on. Mostly the same warp, so that its lanes meet soon.
Lane& choose(Cta& cta) {
  const uint32_t r = cta.random.next();
  if (cta.hopper != nullptr && (r >> 16) < cta.arrival_rate) deliver_some(cta);
  while (cta.active_warps == 0) {
    if (is_early(cta))
      run_kernel_before(cta);
    else if (cta.hopper == nullptr || !deliver_some(cta))
      report_deadlock(cta);
  }
  uint32_t index = here->warp;
  if (here->cta != &cta || ((cta.active_warps >> index) & 1u) == 0 || (r & 15u) == 0)
    index = rotate_find(cta.active_warps, (r >> 8) & 31u, false);
  Warp& warp = cta.warps[index];
  return *cta.lanes[32 * index + rotate_find(warp.runnable, warp.rotation, warp.descending)];
}

void go_on(Cta& cta) {
  Lane& next = choose(cta);
  if (&next != here) switch_to(next);
}

void stop_running(Lane& lane) {
  Warp& warp = lane.cta->warps[lane.warp];
  warp.runnable &= ~(1u << lane.lane);
  if (warp.runnable == 0) lane.cta->active_warps &= ~(1u << lane.warp);
}

void lane_ends() {
  Lane& self = *here;
  Cta& cta = *self.cta;
  Warp& warp = cta.warps[self.warp];
  if (!self.may_access) fail("ends without %s, for which it was launched early", kWait);
  finish_copies(self);
  if (warp.arrived != 0)
    fail("a lane has ended while others of its warp (lanes %08x) wait in %s", warp.arrived,
         warp.meeting->name);
  warp.alive &= ~(1u << self.lane);
  stop_running(self);
  if (--cta.num_alive == 0)
    switch_to(pool.main());
  else
    go_on(cta);
}

void lane_main() {
  for (;;) {
    here->cta->launch->body();
    lane_ends();
  }
}

Lane* const* LanePool::first(size_t count) {
  while (lanes_.size() < count) {
    lanes_.push_back(new Lane{});
    make_fiber(*lanes_.back(), lane_main);
  }
  return lanes_.data();
}

void require_whole_warp(const Warp& warp, const char* name) {
  if (warp.alive != kAllLanes) fail("%s, but lanes %08x of the warp have ended", name, ~warp.alive);
}

void run_cta(Cta& cta) {
  const uint32_t num_threads = cta.block_dim.x;
  if (cta.shared_bytes != 0) std::memset(cta.shared, 0xff, cta.shared_bytes);
  cta.lanes = pool.first(num_threads);
  cta.num_warps = num_threads / 32;
  cta.num_alive = num_threads;
  cta.active_warps = cta.num_warps == 32 ? kAllLanes : (1u << cta.num_warps) - 1;
  cta.countdown = 1 + cta.random.next() % 64;
  // Soon (buffers released too early show), late, or when everybody waits (waits that are missing
  // show).
  constexpr uint32_t kArrivalRates[] = {4096, 16, 0};
  cta.arrival_rate = kArrivalRates[cta.random.next() % 3];
  for (uint32_t w = 0; w < cta.num_warps; ++w) {
    Warp& warp = cta.warps[w];
    warp = {};
    warp.runnable = warp.alive = kAllLanes;
    turn(cta, warp);
  }
  for (Warpgroup& group : cta.groups) group = {};
  for (Barrier& barrier : cta.barriers) barrier = {};
  for (uint32_t i = 0; i < num_threads; ++i) {
    Lane& lane = *cta.lanes[i];
    lane.thread = {i, 0, 0};
    lane.lane = i % 32;
    lane.warp = i / 32;
    lane.cta = &cta;
    lane.waits_for = nullptr;
    lane.waits_at = nullptr;
    lane.may_access = !cta.launch->overlaps;
    lane.copies.clear();
    lane.first_copy = 0;
    lane.open_group = 0;
  }
  Lane& main = pool.main();
  main.cta = nullptr;
  main.warp = 0;
  Lane* outer = here;
  here = &main;
  const uint32_t first = cta.random.next() % num_threads;
  switch_to(*cta.lanes[first]);
  here = outer;
  end_hopper(cta);
}

// CTAs of one OS thread, in the order that all threads draw from.
void run_share(const Launch& launch, const std::vector<uint64_t>& order, std::atomic<size_t>& next,
               uint64_t seed, std::function<void()>* before) {
  auto cta = std::make_unique<Cta>();
  cta->block_dim = {launch.threads, 1, 1};
  cta->grid_dim = {launch.grid[0], launch.grid[1], launch.grid[2]};
  cta->launch = &launch;
  cta->before = before;
  cta->shared_bytes = launch.shared_bytes;
  // Exactly as large as launched, so that the address sanitizer sees the end of it.
  void* shared = nullptr;
  if (launch.shared_bytes != 0 && posix_memalign(&shared, 1024, launch.shared_bytes) != 0)
    fail("no memory for %u bytes of shared memory", launch.shared_bytes);
  cta->shared = static_cast<std::byte*>(shared);
  for (size_t i = next++; i < order.size(); i = next++) {
    const uint64_t n = order[i];
    cta->block = {static_cast<uint32_t>(n % launch.grid[0]),
                  static_cast<uint32_t>(n / launch.grid[0] % launch.grid[1]),
                  static_cast<uint32_t>(n / launch.grid[0] / launch.grid[1])};
    cta->random.state = (seed ^ (n * 0x9e3779b97f4a7c15ull)) | 1;
    run_cta(*cta);
  }
  std::free(shared);
  free_hopper(*cta);
}

}  // namespace

void execute(const Launch& launch, std::function<void()> before) {
  report_crashes();
  Random random{next_seed()};
  std::vector<uint64_t> order(uint64_t{launch.grid[0]} * launch.grid[1] * launch.grid[2]);
  std::iota(order.begin(), order.end(), uint64_t{0});
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.next() % i]);
  const uint64_t seed = (uint64_t{random.next()} << 32) | random.next();
  std::atomic<size_t> next{0};
  const size_t num_threads = std::min<size_t>(cta_threads(), order.size());
  // One CTA at a time also where one of them waits for the kernel before.
  if (num_threads <= 1 || before) {
    run_share(launch, order, next, seed, &before);
    return;
  }
  std::vector<std::thread> threads;
  for (size_t i = 0; i < num_threads; ++i)
    threads.emplace_back([&] { run_share(launch, order, next, seed, nullptr); });
  for (std::thread& thread : threads) thread.join();
}

// Whoever waits sleeps until all others do: as much as possible happens before the kernel before.
void wait_for_previous_kernel() {
  if (is_early(running())) sleep(kWait, nullptr);
  here->may_access = true;
}

void pause() {
  Cta& cta = running();
  cta.countdown = 1 + cta.random.next() % 128;
  Warp& warp = cta.warps[here->warp];
  if (cta.random.next() & 1u) turn(cta, warp);
  go_on(cta);
}

void sleep(const char* waits_for, const void* waits_at) {
  Lane& self = *here;
  self.waits_for = waits_for;
  self.waits_at = waits_at;
  stop_running(self);
  go_on(*self.cta);
  self.waits_for = nullptr;
  self.waits_at = nullptr;
}

void wake(Lane& lane) { set_runnable(lane.cta->warps[lane.warp], lane.warp, 1u << lane.lane); }

void meet_warp(const Meeting& meeting, void* argument) {
  Lane& self = *here;
  Cta& cta = *self.cta;
  Warp& warp = cta.warps[self.warp];
  require_whole_warp(warp, meeting.name);
  if (warp.arrived != 0 && warp.meeting != &meeting)
    fail("%s, but other lanes of the warp (%08x) are in %s", meeting.name, warp.arrived,
         warp.meeting->name);
  warp.meeting = &meeting;
  warp.arguments[self.lane] = argument;
  warp.arrived |= 1u << self.lane;
  if (warp.arrived != kAllLanes) {
    sleep(meeting.name, nullptr);
    return;
  }
  meeting.happens(cta, warp.arguments);
  warp.arrived = 0;
  turn(cta, warp);
  set_runnable(warp, self.warp, kAllLanes);
  if (--cta.countdown == 0) pause();
}

void meet_warpgroup(const Meeting& meeting, void* argument) {
  Lane& self = *here;
  Cta& cta = *self.cta;
  if (cta.num_warps % 4 != 0)
    fail("%s needs warpgroups, the CTA has %u warps", meeting.name, cta.num_warps);
  require_whole_warp(cta.warps[self.warp], meeting.name);
  const uint32_t first_warp = self.warp & ~3u;
  Warpgroup& group = cta.groups[self.warp / 4];
  if (group.arrived != 0 && group.meeting != &meeting)
    fail("%s, but other lanes of the warpgroup are in %s", meeting.name, group.meeting->name);
  group.meeting = &meeting;
  group.arguments[(self.warp - first_warp) * 32 + self.lane] = argument;
  if (++group.arrived != 128) {
    sleep(meeting.name, nullptr);
    return;
  }
  meeting.happens(cta, group.arguments);
  group.arrived = 0;
  for (uint32_t w = first_warp; w < first_warp + 4; ++w) {
    turn(cta, cta.warps[w]);
    set_runnable(cta.warps[w], w, kAllLanes);
  }
}

}  // namespace cudasim
