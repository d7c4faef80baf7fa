// Rows out of the pool, dequantised: bit for bit what the codes and scales say.
#include "kernels/cuda/launches.h"
#include "tests/cuda/rows_support.h"

namespace kvc::cuda::row_test {
namespace {

void gather_at_random(uint64_t seed, bool plain) {
  Random random(seed);
  const int64_t page_size = random.pick<int64_t>({1, 3, 16, 48, 256}),
                heads = random.pick<int64_t>({1, 2, 3, 8});
  const int64_t dim = random.pick<int64_t>({2, 33, 64, 80, 128, 192});
  StorageKind kind = random_storage(random, dim);
  if (plain) kind.quant = Quant::kNone;
  const int64_t keys = random.between(1, 70), table_size = (keys + page_size - 1) / page_size;
  StoredPool pool(random, kind, table_size + 2, page_size, heads, dim);
  SCOPED_TRACE("seed " + std::to_string(seed) + ": " + pool.describe());
  std::vector<int32_t> pages(static_cast<size_t>(pool.pages));
  std::iota(pages.begin(), pages.end(), 0);
  std::shuffle(pages.begin(), pages.end(), random.engine());
  for (int64_t key = 0; key < keys; ++key) {
    for (int64_t head = 0; head < heads; ++head)
      pool.fill_row(random, pages[static_cast<size_t>(key / page_size)], head, key % page_size);
  }
  for (size_t i = static_cast<size_t>(table_size); i < pages.size(); ++i) pages[i] = 0x7ffffff0;
  const int64_t dropped = random.chance(0.3) ? random.between(0, table_size - 1) : -1;
  const auto page_of_key = [&](int64_t key) {
    return key / page_size == dropped ? -1 : pages[static_cast<size_t>(key / page_size)];
  };
  std::vector<int32_t> table = pages;
  if (dropped >= 0) table[static_cast<size_t>(dropped)] = -1;
  const int64_t begin = random.chance(0.5) ? 0 : random.between(0, keys - 1),
                end = random.between(begin, keys);
  TensorOwner out(random, end - begin, heads, dim,
                  plain && random.chance(0.7) ? kind.dtype : random.dtype());

  const DevicePool device_pool(pool);
  const DeviceTensor device_out(out);
  const DeviceArray<int32_t> device_table(table);
  const kernels::GatherParams params{device_pool.rows,
                                     device_table.data(),
                                     device_out.rows,
                                     static_cast<int32_t>(page_size),
                                     static_cast<int32_t>(heads),
                                     static_cast<int32_t>(dim)};
  ASSERT_EQ(gather(params, device_pool.storage, begin, end, nullptr), cudaSuccess);
  testing::finish();
  TensorOwner expected = clone(out);
  for (int64_t key = begin; key < end; ++key) {
    for (int64_t head = 0; head < heads; ++head) {
      for (int64_t d = 0; d < dim; ++d) {
        const int64_t page = page_of_key(key);
        kernels::reference::write_element(
            expected.row(key - begin, head), out.rows.dtype, d,
            page < 0 ? 0.0 : pool.read(page, head, key % page_size, d));
      }
    }
  }
  const std::vector<std::byte> found = device_out.memory.read();
  ASSERT_TRUE(std::equal(found.begin(), found.end(), expected.memory.data()));
}

TEST(CudaGather, RowsOfAnyStorageComeOutAsTheyAre) {
  for (int i = 0; i < scaled_count(60); ++i) {
    gather_at_random(100 + static_cast<uint64_t>(i), false);
    if (HasFailure()) return;
  }
}

TEST(CudaGather, PlainRowsAreCopied) {
  for (int i = 0; i < scaled_count(40); ++i) {
    gather_at_random(500 + static_cast<uint64_t>(i), true);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace kvc::cuda::row_test
