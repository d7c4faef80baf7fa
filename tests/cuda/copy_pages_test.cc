// Pages, or slots of pages, to other pages and to pinned host memory.
#include "kernels/cuda/launches.h"
#include "tests/cuda/rows_support.h"

namespace kvc::cuda::row_test {
namespace {

struct Part {
  int64_t begin, bytes;  // inside a page
  int32_t group;
};

// Parts of a page one behind the other, some bytes between them.
std::vector<Part> random_parts(Random& random, int64_t unit) {
  std::vector<Part> parts;
  int64_t at = 0;
  for (int64_t i = random.between(1, 4); i > 0; --i) {
    const int64_t bytes = random.pick<int64_t>({1, 31, 128, 129, 500, 2000}) * unit;
    parts.push_back({at, bytes, static_cast<int32_t>(random.between(0, 2))});
    at += bytes + random.pick<int64_t>({0, 0, 1}) * unit;
  }
  return parts;
}

std::vector<PageRegion> slots_of(const std::vector<Part>& parts, std::byte* base,
                                 int64_t page_stride) {
  std::vector<PageRegion> slots;
  for (const Part& part : parts)
    slots.push_back({base + part.begin, page_stride, part.bytes, part.group, 0});
  return slots;
}

void copy_at_random(uint64_t seed, bool to_host) {
  Random random(seed);
  const int64_t unit = random.pick<int64_t>({1, 4, 16, 16}), pages = random.between(2, 9);
  const std::vector<Part> parts = random_parts(random, unit);
  const int64_t stride =
      parts.back().begin + parts.back().bytes + random.pick<int64_t>({0, 2}) * unit;
  SCOPED_TRACE("seed " + std::to_string(seed) + ": units of " + std::to_string(unit) +
               " bytes, pages of " + std::to_string(stride));
  std::vector<std::byte> memory(static_cast<size_t>(pages * stride));
  for (std::byte& byte : memory) byte = static_cast<std::byte>(random.between(0, 255));
  const DeviceArray<std::byte> pool(memory);
  const testing::PinnedArray<std::byte> host(memory.size());
  std::byte* to_base = to_host ? host.data() : pool.data();

  std::vector<int32_t> order(static_cast<size_t>(pages));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random.engine());
  const auto pairs = static_cast<size_t>(random.between(0, pages / 2));
  const std::vector<int32_t> from(order.begin(), order.begin() + static_cast<ptrdiff_t>(pairs));
  const std::vector<int32_t> to(order.end() - static_cast<ptrdiff_t>(pairs), order.end());
  const DeviceArray<int32_t> device_from(from), device_to(to);
  const DeviceArray<PageRegion> from_layers(slots_of(parts, pool.data(), stride));
  const DeviceArray<PageRegion> to_layers(slots_of(parts, to_base, stride));
  const auto group = static_cast<int32_t>(random.between(-1, 2));
  ASSERT_EQ(copy_pages({from_layers.data(), to_layers.data(), static_cast<int32_t>(parts.size()),
                        device_from.data(), device_to.data(), static_cast<int64_t>(pairs), group},
                       nullptr),
            cudaSuccess);
  testing::finish();

  std::vector<std::byte> expected = to_host ? std::vector<std::byte>(memory.size()) : memory;
  for (size_t pair = 0; pair < pairs; ++pair) {
    for (const Part& part : parts) {
      if (group >= 0 && part.group != group) continue;
      std::copy_n(memory.begin() + from[pair] * stride + part.begin, part.bytes,
                  expected.begin() + to[pair] * stride + part.begin);
    }
  }
  ASSERT_TRUE(pool.read() == (to_host ? memory : expected));
  ASSERT_TRUE(!to_host || std::equal(expected.begin(), expected.end(), host.data()));
}

TEST(CudaCopyPages, PartsOfTheGroupAreCopiedAndNothingElse) {
  for (int i = 0; i < scaled_count(40); ++i) {
    copy_at_random(1200 + static_cast<uint64_t>(i), false);
    if (HasFailure()) return;
  }
}

TEST(CudaCopyPages, PinnedMemoryIsADestinationLikeAnyOther) {
  for (int i = 0; i < scaled_count(20); ++i) {
    copy_at_random(1300 + static_cast<uint64_t>(i), true);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace kvc::cuda::row_test
