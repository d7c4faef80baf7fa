// New rows into the pool: rotated, converted, quantised, and nothing else written.
#include "kernels/cuda/launches.h"
#include "kernels/reference/reference.h"
#include "tests/cuda/rows_support.h"

namespace kvc::cuda::row_test {
namespace {

// Rows to append to a pool of any storage.
class AppendCase {
 public:
  AppendCase(uint64_t seed, bool aligned) : random(seed) {
    page_size = random.pick<int64_t>({1, 3, 16, 48, 256});
    heads = random.pick<int64_t>({1, 2, 3, 8});
    const auto dim = [&] {
      return aligned ? random.pick<int64_t>({64, 80, 128, 192})
                     : random.pick<int64_t>({2, 33, 64, 80, 100});
    };
    k_dim = dim(), v_dim = random.chance(0.5) ? k_dim : dim();
    num_rows = random.pick<int64_t>({1, 2, 7, random.between(1, 40)});
    const int64_t pages = num_rows / page_size + 3;
    k = make_pool(aligned, pages, k_dim), v = make_pool(aligned, pages, v_dim);
    k_in = make_tensor(aligned, k_dim), v_in = make_tensor(aligned, v_dim);
    turn = RotationOwner(random, num_rows, k_dim);
    if (aligned && random.chance(0.7)) {
      turn.rotation.begin = turn.rotation.begin / 8 * 8;
      turn.rotation.rotary_dim = turn.rotation.rotary_dim / 16 * 16;
    }
    slots.resize(static_cast<size_t>(pages * page_size));
    std::iota(slots.begin(), slots.end(), 0);
    std::shuffle(slots.begin(), slots.end(), random.engine());
    slots.resize(static_cast<size_t>(num_rows));
    for (int64_t& slot : slots) slot = random.chance(0.1) ? -1 : slot;
    live_rows = random.chance(0.3) ? random.between(0, num_rows) : num_rows;
  }

  void run(bool with_k, bool with_v) {
    DevicePool k_pool(k), v_pool(v);
    const DeviceTensor k_rows(k_in), v_rows(v_in);
    const DeviceRotation rotation(turn.rotation, num_rows);
    const DeviceArray<int64_t> slots_at(slots);
    const DeviceArray<int32_t> count(std::vector<int32_t>{static_cast<int32_t>(live_rows)});
    AppendLaunch launch{};
    launch.params.k = k_rows.rows, launch.params.v = v_rows.rows;
    if (!with_k) launch.params.k.base = nullptr;
    if (!with_v) launch.params.v.base = nullptr;
    launch.params.k_rotation = rotation.rotation;
    launch.params.k_pages = k_pool.rows, launch.params.v_pages = v_pool.rows;
    launch.params.slots = slots_at.data();
    launch.params.page_size = static_cast<int32_t>(page_size);
    launch.params.num_kv_heads = static_cast<int32_t>(heads);
    launch.params.k_dim = static_cast<int32_t>(k_dim),
    launch.params.v_dim = static_cast<int32_t>(v_dim);
    launch.k_storage = k_pool.storage, launch.v_storage = v_pool.storage;
    launch.num_rows = num_rows;
    launch.num_rows_at = live_rows < num_rows ? count.data() : nullptr;
    ASSERT_EQ(append(launch, nullptr), cudaSuccess);
    testing::finish();
    k_pool.read_back(k), v_pool.read_back(v);
    check(k, k_in, with_k, turn.rotation);
    check(v, v_in, with_v, {});
  }

  std::string describe() const {
    return "k " + k.describe() + ", v " + v.describe() + ", rotary " +
           std::to_string(turn.rotation.rotary_dim) + " from " +
           std::to_string(turn.rotation.begin) + " interleaved " +
           std::to_string(turn.rotation.interleaved) + ", rows " + std::to_string(live_rows) +
           " of " + std::to_string(num_rows);
  }

  Random random;
  int64_t page_size, heads, k_dim, v_dim, num_rows, live_rows;
  StoredPool k, v;
  TensorOwner k_in, v_in;
  RotationOwner turn;
  std::vector<int64_t> slots;

 private:
  StoredPool make_pool(bool aligned, int64_t pages, int64_t dim) {
    StorageKind kind = random_storage(random, dim);
    if (aligned && random.chance(0.5))
      kind.quant = Quant::kNone, kind.dtype = random.pick({DType::kF16, DType::kBF16});
    return StoredPool(random, kind, pages, page_size, heads, dim);
  }
  TensorOwner make_tensor(bool aligned, int64_t dim) {
    const DType dtype = aligned ? random.pick({DType::kF16, DType::kBF16}) : random.dtype();
    TensorOwner tensor(random, num_rows, heads, dim, dtype);
    tensor.fill(random);
    return tensor;
  }

  void check(StoredPool& pool, TensorOwner& from, bool present, const Rotation& rotation) {
    std::vector<char> written(pool.memory.size(), 0), scale_written(pool.scales.size(), 0);
    for (int64_t row = 0; present && row < live_rows; ++row) {
      const int64_t slot = slots[static_cast<size_t>(row)];
      if (slot < 0) continue;
      for (int64_t head = 0; head < heads; ++head) {
        std::vector<double> wanted;
        for (int64_t d = 0; d < pool.dim; ++d) {
          wanted.push_back(kernels::reference::rotated_element(from.row(row, head), from.rows.dtype,
                                                               rotation, row, d));
        }
        // A product and a sum in float32; without rotation nothing but the conversion rounds.
        const double slack = rotation.rotary_dim != 0 ? 2.5e-7 : 0;
        pool.expect_row(slot / page_size, head, slot % page_size, wanted, slack);
        if (::testing::Test::HasFatalFailure()) return;
        std::fill_n(written.begin() + pool.row_at(slot / page_size, head, slot % page_size),
                    pool.row_bytes, 1);
        std::fill_n(scale_written.begin() + pool.scale_at(slot / page_size, head, slot % page_size),
                    pool.scale_bytes, 1);
      }
    }
    for (size_t i = 0; i < written.size(); ++i)
      ASSERT_TRUE(written[i] != 0 || pool.memory[i] == std::byte{0xff})
          << "byte " << i << " was written";
    for (size_t i = 0; i < scale_written.size(); ++i)
      ASSERT_TRUE(scale_written[i] != 0 || pool.scales[i] == std::byte{0xff}) << "scale byte " << i;
  }
};

TEST(CudaAppend, RowsOfAnyTypeAndAlignmentLandInTheirSlots) {
  for (int i = 0; i < scaled_count(60); ++i) {
    AppendCase problem(1000 + static_cast<uint64_t>(i), false);
    SCOPED_TRACE("seed " + std::to_string(1000 + i) + ": " + problem.describe());
    problem.run(true, true);
    if (HasFatalFailure()) return;
  }
}

TEST(CudaAppend, AlignedRowsGoSixteenBytesAtATime) {
  for (int i = 0; i < scaled_count(60); ++i) {
    AppendCase problem(2000 + static_cast<uint64_t>(i), true);
    SCOPED_TRACE("seed " + std::to_string(2000 + i) + ": " + problem.describe());
    problem.run(true, true);
    if (HasFatalFailure()) return;
  }
}

TEST(CudaAppend, KOrVAloneLeavesTheOtherHalfAsItWas) {
  for (int i = 0; i < scaled_count(12); ++i) {
    AppendCase problem(3000 + static_cast<uint64_t>(i), i % 2 == 0);
    SCOPED_TRACE("seed " + std::to_string(3000 + i) + ": " + problem.describe());
    problem.run(i % 4 < 2, i % 4 >= 2);
    if (HasFatalFailure()) return;
  }
}

// Keys of one head as they lie in a pool of `to` afterwards, 64 elements each. Rows that begin at
// odd multiples of two bytes are not taken in chunks.
std::vector<std::byte> appended_keys(const std::vector<uint16_t>& keys, DType from, bool in_chunks,
                                     DType to, const Rotation& rotation) {
  constexpr int64_t kDim = 64;
  const int64_t num_rows = static_cast<int64_t>(keys.size()) / kDim, gap = in_chunks ? 0 : 1;
  std::vector<uint16_t> spread(static_cast<size_t>(num_rows * (kDim + gap)));
  for (int64_t row = 0; row < num_rows; ++row)
    std::copy_n(keys.begin() + row * kDim, kDim, spread.begin() + row * (kDim + gap));
  std::vector<int64_t> slots(static_cast<size_t>(num_rows));
  std::iota(slots.begin(), slots.end(), 0);
  const DeviceArray<uint16_t> from_there(spread);
  const DeviceArray<int64_t> slots_there(slots);
  const DeviceRotation turn(rotation, num_rows);
  const int64_t row_bytes = kDim * kernels::dtype_bytes(to);
  const DeviceArray<std::byte> pool(static_cast<size_t>(num_rows * row_bytes));
  AppendLaunch launch{};
  const int64_t stride = 2 * (kDim + gap);
  launch.params.k = {reinterpret_cast<std::byte*>(from_there.data()), stride, stride, from};
  launch.params.k_pages = {pool.data(), row_bytes, row_bytes, row_bytes, to};
  launch.params.k_rotation = turn.rotation;
  launch.params.slots = slots_there.data();
  launch.params.page_size = 1;
  launch.params.num_kv_heads = 1;
  launch.params.k_dim = kDim;
  launch.num_rows = num_rows;
  EXPECT_EQ(append(launch, nullptr), cudaSuccess);
  return pool.read();
}

TEST(CudaAppend, AKeyHasTheSameBitsWhicheverWayItsRowTakes) {
  for (uint64_t seed = 1; seed <= 16; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const DType type = random.pick({DType::kF16, DType::kBF16});
    const int32_t rotary = random.pick<int32_t>({16, 32, 64}), half = rotary / 2;
    const bool interleaved = random.chance(0.5);
    constexpr int64_t kRows = 5, kDim = 64;
    std::vector<uint16_t> keys(kRows * kDim);
    std::vector<float> values(keys.size()), cos, sin;
    for (size_t i = 0; i < keys.size(); ++i) {
      auto* element = reinterpret_cast<std::byte*>(&keys[i]);
      kernels::reference::write_element(element, type, 0, random.normal());
      values[i] = static_cast<float>(kernels::reference::read_element(element, type, 0));
    }
    // Angles that leave one of a pair next to nothing: what is rounded on the way is all that there
    // is.
    for (int64_t row = 0; row < kRows; ++row) {
      for (int32_t pair = 0; pair < half; ++pair) {
        float& x = values[static_cast<size_t>(row * kDim + (interleaved ? 2 * pair : pair))];
        float& y =
            values[static_cast<size_t>(row * kDim + (interleaved ? 2 * pair + 1 : pair + half))];
        const auto t = static_cast<float>(random.normal());
        const float c = (pair % 2 == 0 ? y : x) * t, s = (pair % 2 == 0 ? x : -y) * t;
        cos.push_back(c), sin.push_back(s);
        const float first = std::fmaf(x, c, -(y * s)), second = std::fmaf(y, c, x * s);
        x = first, y = second;
      }
    }
    const Rotation rotation{cos.data(), sin.data(), rotary, interleaved ? 1 : 0, 0};
    const std::vector<std::byte> exact = appended_keys(keys, type, false, DType::kF32, rotation);
    ASSERT_EQ(std::memcmp(exact.data(), values.data(), exact.size()), 0);
    ASSERT_EQ(appended_keys(keys, type, true, type, rotation),
              appended_keys(keys, type, false, type, rotation));
    std::vector<std::byte> rounded(2 * values.size());
    for (size_t i = 0; i < values.size(); ++i)
      kernels::reference::write_element(rounded.data(), type, static_cast<int64_t>(i), values[i]);
    ASSERT_EQ(appended_keys(keys, type, true, type, rotation), rounded);
  }
}

TEST(CudaAppend, NothingToDoIsNoLaunch) { EXPECT_EQ(append(AppendLaunch{}, nullptr), cudaSuccess); }

}  // namespace
}  // namespace kvc::cuda::row_test
