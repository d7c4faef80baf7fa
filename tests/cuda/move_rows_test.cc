// Rows from slot to slot inside a pool, in the order of their lists, with their scales, turned
// where asked.
#include "kernels/cuda/launches.h"
#include "kernels/reference/reference.h"
#include "tests/cuda/rows_support.h"

namespace kvc::cuda::row_test {
namespace {

struct Lists {
  std::vector<int64_t> from, to, first{0};
};

// One list per page or pair of pages. `in_place`: every slot to itself; else down the page, where a
// destination may have been a source and the other way round.
Lists random_lists(Random& random, int64_t pages, int64_t page_size, bool in_place) {
  Lists lists;
  for (int64_t page = 0; page < pages; ++page) {
    int64_t free = 0;
    for (int64_t offset = 0; offset < page_size; ++offset) {
      if (random.chance(0.4)) continue;
      lists.from.push_back(page * page_size + offset);
      lists.to.push_back(page * page_size + (in_place ? offset : free++));
    }
    if (page % 2 == 1 || page + 1 == pages)
      lists.first.push_back(static_cast<int64_t>(lists.from.size()));
  }
  return lists;
}

void move_at_random(uint64_t seed, bool turns) {
  Random random(seed);
  const int64_t page_size = random.pick<int64_t>({1, 3, 16, 17}),
                heads = random.pick<int64_t>({1, 2, 3, 8});
  const int64_t dim = random.pick<int64_t>({2, 33, 64, 80, 128}), pages = random.between(1, 5);
  StoredPool pool(random, random_storage(random, dim), pages, page_size, heads, dim);
  RotationOwner turn(random, 1, dim);
  if (!turns) turn.rotation = {};
  SCOPED_TRACE("seed " + std::to_string(seed) + ": " + pool.describe() + ", rotary " +
               std::to_string(turn.rotation.rotary_dim) + " from " +
               std::to_string(turn.rotation.begin));
  for (int64_t page = 0; page < pages; ++page) {
    for (int64_t offset = 0; offset < page_size; ++offset) {
      for (int64_t head = 0; head < heads; ++head) pool.fill_row(random, page, head, offset);
    }
  }
  const Lists lists = random_lists(random, pages, page_size, turns && random.chance(0.5));
  const DevicePool device_pool(pool);
  const DeviceRotation rotation(turn.rotation, 1);
  const DeviceArray<int64_t> from(lists.from), to(lists.to), first(lists.first);
  MoveParams params{};
  params.rows = device_pool.rows, params.storage = device_pool.storage;
  params.page_size = static_cast<int32_t>(page_size),
  params.num_heads = static_cast<int32_t>(heads);
  params.dim = static_cast<int32_t>(dim);
  params.rotation = rotation.rotation;
  params.from = from.data(), params.to = to.data(), params.first = first.data();
  params.num_lists = static_cast<int32_t>(lists.first.size()) - 1;
  params.num_pairs = static_cast<int64_t>(lists.from.size());
  ASSERT_EQ(move_rows(params, nullptr), cudaSuccess);
  testing::finish();

  // A slot is written once at most and read before that, so every row comes from the pool as it
  // was.
  StoredPool moved = pool;
  device_pool.read_back(moved);
  StoredPool expected = pool;
  for (size_t pair = 0; pair < lists.from.size(); ++pair) {
    const int64_t source = lists.from[pair], target = lists.to[pair];
    for (int64_t head = 0; head < heads; ++head) {
      const auto place = [&](int64_t slot) {
        return pool.row_at(slot / page_size, head, slot % page_size);
      };
      const auto scale = [&](int64_t slot) {
        return pool.scale_at(slot / page_size, head, slot % page_size);
      };
      if (turn.rotation.rotary_dim == 0) {
        std::copy_n(pool.memory.begin() + place(source), pool.row_bytes,
                    expected.memory.begin() + place(target));
        std::copy_n(pool.scales.begin() + scale(source), pool.scale_bytes,
                    expected.scales.begin() + scale(target));
        continue;
      }
      std::vector<float> row;
      for (int64_t d = 0; d < dim; ++d)
        row.push_back(
            static_cast<float>(pool.read(source / page_size, head, source % page_size, d)));
      std::vector<double> wanted;
      for (int64_t d = 0; d < dim; ++d) {
        wanted.push_back(kernels::reference::rotated_element(
            reinterpret_cast<const std::byte*>(row.data()), DType::kF32, turn.rotation, 0, d));
      }
      moved.expect_row(target / page_size, head, target % page_size, wanted, 2.5e-7);
      if (::testing::Test::HasFatalFailure()) return;
      std::copy_n(moved.memory.begin() + place(target), pool.row_bytes,
                  expected.memory.begin() + place(target));
      std::copy_n(moved.scales.begin() + scale(target), pool.scale_bytes,
                  expected.scales.begin() + scale(target));
    }
  }
  ASSERT_TRUE(moved.memory == expected.memory && moved.scales == expected.scales);
}

TEST(CudaMoveRows, RowsAndScalesMoveBitForBitInTheOrderOfTheirList) {
  for (int i = 0; i < scaled_count(50); ++i) {
    move_at_random(1500 + static_cast<uint64_t>(i), false);
    if (HasFailure()) return;
  }
}

TEST(CudaMoveRows, RowsTurnOnTheirWayAlsoInPlace) {
  for (int i = 0; i < scaled_count(60); ++i) {
    move_at_random(1600 + static_cast<uint64_t>(i), true);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace kvc::cuda::row_test
