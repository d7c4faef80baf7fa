// wgmma (PTX ISA, "Asynchronous warpgroup level matrix instructions"): done when waited for,
// operands in shared memory found by the bits of their descriptors.
#include <cstring>

#include "cudasim/matrix.h"
#include "hopper_state.h"

namespace cudasim {
namespace {

struct Descriptor {
  size_t start, leading, stride;
  uint32_t swizzle;
};

Descriptor decode(uint64_t bits) {
  constexpr uint32_t kSwizzles[] = {0, 128, 64, 32};
  if ((bits & 0x3fff'c000'c000'c000ull) != 0)
    fail("wgmma: descriptor %016llx has bits beyond its fields, or a base offset",
         static_cast<unsigned long long>(bits));
  const Descriptor d{(bits & 0x3fff) << 4, (bits >> 16 & 0x3fff) << 4, (bits >> 32 & 0x3fff) << 4,
                     kSwizzles[bits >> 62]};
  if (d.start < 1024)
    fail("wgmma: descriptor %016llx does not begin in shared memory",
         static_cast<unsigned long long>(bits));
  return {d.start - 1024, d.leading, d.stride, d.swizzle};
}

// Element (i, k) of an operand, i along M or N: the canonical layouts of 8 x 16-byte core matrices.
size_t k_major(const Descriptor& d, size_t i, size_t k) {
  if (d.swizzle == 0)
    return d.start + i % 8 * 16 + i / 8 * d.stride + k % 8 * 2 + k / 8 * d.leading;
  return d.start + i % 8 * d.swizzle + i / 8 * d.stride + k * 2;
}
size_t n_major(const Descriptor& d, size_t n, size_t k) {
  if (d.swizzle == 0)
    return d.start + n % 8 * 2 + n / 8 * d.stride + k % 8 * 16 + k / 8 * d.leading;
  const size_t span = d.swizzle / 2;  // columns that lie together
  return d.start + n % span * 2 + n / span * d.leading + k % 8 * d.swizzle + k / 8 * d.stride;
}

float element(const Cta& cta, size_t offset, uint32_t swizzle, bool is_bf16) {
  const size_t at = swizzled(offset, swizzle);
  if (at + 2 > cta.shared_bytes)
    fail("wgmma: an operand at byte %zu, the CTA has %zu bytes of shared memory", at,
         cta.shared_bytes);
  uint16_t bits;
  std::memcpy(&bits, cta.shared + at, 2);
  return is_bf16 ? std::bit_cast<float>(uint32_t{bits} << 16) : f16_to_float(bits);
}

float half(uint32_t pair, int which, bool is_bf16) {
  const auto bits = static_cast<uint16_t>(pair >> (16 * which));
  return is_bf16 ? std::bit_cast<float>(uint32_t{bits} << 16) : f16_to_float(bits);
}

void perform(const Cta& cta, const PendingWgmma& pending) {
  const Wgmma& common = pending.parts[0];
  const bool is_bf16 = common.is_bf16;
  const auto columns = static_cast<size_t>(common.n);
  double a[64][16], b[16][256], d[64][256];
  if (common.a != nullptr) {
    for (size_t t = 0; t < 128; ++t) {
      const uint32_t* mine = pending.parts[t].a;
      const size_t row = 16 * (t / 32) + t % 32 / 4, pair = 2 * (t % 4);
      for (int i = 0; i < 2; ++i) {
        const size_t k = pair + static_cast<size_t>(i);
        a[row][k] = half(mine[0], i, is_bf16);
        a[row + 8][k] = half(mine[1], i, is_bf16);
        a[row][k + 8] = half(mine[2], i, is_bf16);
        a[row + 8][k + 8] = half(mine[3], i, is_bf16);
      }
    }
  } else {
    const Descriptor descriptor = decode(common.descriptor_a);
    for (size_t row = 0; row < 64; ++row)
      for (size_t k = 0; k < 16; ++k)
        a[row][k] = element(cta, k_major(descriptor, row, k), descriptor.swizzle, is_bf16);
  }
  const Descriptor descriptor = decode(common.descriptor_b);
  for (size_t k = 0; k < 16; ++k)
    for (size_t n = 0; n < columns; ++n) {
      const size_t at =
          common.is_b_transposed ? n_major(descriptor, n, k) : k_major(descriptor, n, k);
      b[k][n] = element(cta, at, descriptor.swizzle, is_bf16);
    }
  // Where thread t's accumulator i lies.
  const auto place = [&](size_t t, size_t i) -> double& {
    return d[16 * (t / 32) + t % 32 / 4 + (i % 4 / 2) * 8][i / 4 * 8 + 2 * (t % 4) + i % 2];
  };
  for (size_t t = 0; t < 128; ++t)
    for (size_t i = 0; i < columns / 2; ++i)
      place(t, i) = common.accumulates ? pending.parts[t].d[i] : 0.0;
  for (size_t row = 0; row < 64; ++row)
    for (size_t k = 0; k < 16; ++k)
      for (size_t n = 0; n < columns; ++n) d[row][n] += a[row][k] * b[k][n];
  for (size_t t = 0; t < 128; ++t)
    for (size_t i = 0; i < columns / 2; ++i)
      pending.parts[t].d[i] = static_cast<float>(place(t, i));
}

WgmmaQueue& queue_of(Cta& cta) { return hopper_of(cta).wgmmas[here->warp / 4]; }

bool same_instruction(const Wgmma& x, const Wgmma& y) {
  return (x.a == nullptr) == (y.a == nullptr) && x.descriptor_a == y.descriptor_a &&
         x.descriptor_b == y.descriptor_b && x.n == y.n && x.is_bf16 == y.is_bf16 &&
         x.is_b_transposed == y.is_b_transposed && x.accumulates == y.accumulates;
}

void issue(Cta& cta, void* const* arguments) {
  WgmmaQueue& queue = queue_of(cta);
  if (!queue.fenced) fail("wgmma without wgmma_fence since the beginning or the last wgmma_wait");
  queue.pending.emplace_back();
  PendingWgmma& pending = queue.pending.back();
  pending.group = queue.open_group;
  for (size_t t = 0; t < 128; ++t) {
    pending.parts[t] = *static_cast<const Wgmma*>(arguments[t]);
    if (!same_instruction(pending.parts[t], pending.parts[0]))
      fail("wgmma: thread %zu of the warpgroup has other operands than thread 0", t);
  }
  decode(pending.parts[0].descriptor_b);
  if (pending.parts[0].a == nullptr) decode(pending.parts[0].descriptor_a);
}

void wait_until(Cta& cta, void* const* arguments) {
  const uint32_t pending = *static_cast<const uint32_t*>(arguments[0]);
  WgmmaQueue& queue = queue_of(cta);
  while (!queue.pending.empty() && queue.pending.front().group + pending < queue.open_group) {
    perform(cta, queue.pending.front());
    queue.pending.pop_front();
  }
  queue.fenced = false;
}

constexpr Meeting kIssue = {"wgmma", issue};
constexpr Meeting kFence = {"wgmma_fence",
                            [](Cta& cta, void* const*) { queue_of(cta).fenced = true; }};
constexpr Meeting kCommit = {"wgmma_commit",
                             [](Cta& cta, void* const*) { ++queue_of(cta).open_group; }};
constexpr Meeting kWait = {"wgmma_wait", wait_until};

}  // namespace

uint64_t wgmma_descriptor(const void* shared, int leading_bytes, int stride_bytes, int swizzle) {
  require_shared(shared, 16, 16, "wgmma_descriptor");
  if (leading_bytes % 16 != 0 || stride_bytes % 16 != 0)
    fail("wgmma_descriptor: strides %d and %d", leading_bytes, stride_bytes);
  if (swizzle != 0 && swizzle != 32 && swizzle != 64 && swizzle != 128)
    fail("wgmma_descriptor: swizzle %d", swizzle);
  const uint64_t mode = swizzle == 128 ? 1 : swizzle == 64 ? 2 : swizzle == 32 ? 3 : 0;
  return static_cast<uint64_t>((shared_address(shared) & 0x3ffffu) >> 4) |
         static_cast<uint64_t>((leading_bytes & 0x3ffff) >> 4) << 16 |
         static_cast<uint64_t>((stride_bytes & 0x3ffff) >> 4) << 32 | mode << 62;
}

void wgmma(const Wgmma& part) {
  Wgmma mine = part;
  meet_warpgroup(kIssue, &mine);
}
void wgmma_fence() { meet_warpgroup(kFence, nullptr); }
void wgmma_commit() { meet_warpgroup(kCommit, nullptr); }
void wgmma_wait(uint32_t pending) { meet_warpgroup(kWait, &pending); }

}  // namespace cudasim
