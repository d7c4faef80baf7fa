// Append, gather, merge and copy: every instruction set against the double reference.
#include "kernels_support.h"

namespace kvc::kernels::test {
namespace {

class Rows : public testing::TestWithParam<const KernelTable*> {};

INSTANTIATE_TEST_SUITE_P(Isa, Rows, testing::ValuesIn(available_tables()),
                         [](const auto& info) { return std::string(info.param->name); });

std::vector<double> elements(PoolOwner& pool, int64_t pages, int64_t page_size, int64_t heads,
                             int64_t dim) {
  std::vector<double> all;
  for (int64_t page = 0; page < pages; ++page) {
    for (int64_t head = 0; head < heads; ++head) {
      for (int64_t offset = 0; offset < page_size; ++offset) {
        const std::byte* row = row_address(pool.rows, page, head, offset);
        for (int64_t d = 0; d < dim; ++d)
          all.push_back(reference::read_element(row, pool.rows.dtype, d));
      }
    }
  }
  return all;
}

// One unit in the last place of the storage type, which a rotation in fp32 may be off by at a
// rounding boundary.
double rounding(DType dtype) {
  return dtype == DType::kF32 ? 3e-7 : dtype == DType::kF16 ? 1.0 / 1024 : 1.0 / 128;
}

TEST_P(Rows, AppendRotatesConvertsAndTouchesNothingElse) {
  for (uint64_t seed = 1; seed < 1 + rounds(60); ++seed) {
    Random random(seed);
    const int64_t heads = random.pick<int64_t>({1, 2, 3, 8}),
                  k_dim = random.pick<int64_t>({16, 33, 64, 72, 80, 128});
    const int64_t v_dim = random.pick<int64_t>({k_dim, 17, 128}),
                  page_size = random.pick<int64_t>({1, 3, 16, 48}), pages = 5;
    const int64_t tokens = random.between(1, std::min<int64_t>(9, pages * page_size));
    SCOPED_TRACE("seed " + std::to_string(seed) + ": heads " + std::to_string(heads) + " dims " +
                 std::to_string(k_dim) + "/" + std::to_string(v_dim) + " page " +
                 std::to_string(page_size));
    TensorOwner k(random, tokens, heads, k_dim, random.dtype()),
        v(random, tokens, heads, v_dim, random.dtype());
    k.fill(random), v.fill(random);
    RotationOwner rotation(random, tokens, k_dim);
    std::vector<int64_t> slots(static_cast<size_t>(pages * page_size));
    std::iota(slots.begin(), slots.end(), 0);
    std::shuffle(slots.begin(), slots.end(), random.engine());
    slots.resize(static_cast<size_t>(tokens));
    if (tokens > 2) slots[1] = -1;
    const DType k_dtype = random.dtype(), v_dtype = random.dtype();
    const uint64_t pool_seed = seed + 1000;
    const bool without_v = random.chance(0.2);

    const auto run = [&](const KernelTable& table, PoolOwner& k_pool, PoolOwner& v_pool) {
      Random same(pool_seed);
      k_pool = PoolOwner(same, pages, page_size, heads, k_dim, k_dtype);
      v_pool = PoolOwner(same, pages, page_size, heads, v_dim, v_dtype);
      AppendParams params{k.rows,
                          v.rows,
                          rotation.rotation,
                          k_pool.rows,
                          v_pool.rows,
                          slots.data(),
                          static_cast<int32_t>(page_size),
                          static_cast<int32_t>(heads),
                          static_cast<int32_t>(k_dim),
                          static_cast<int32_t>(v_dim)};
      if (without_v) params.v.base = nullptr;
      const int64_t cut = tokens / 2;  // in two calls, as two workers would
      table.append(params, 0, cut);
      table.append(params, cut, tokens);
      EXPECT_TRUE(k_pool.memory.guards_intact() && v_pool.memory.guards_intact());
    };
    PoolOwner expected_k, expected_v, actual_k, actual_v;
    run(reference_table(), expected_k, expected_v);
    run(*GetParam(), actual_k, actual_v);

    const std::vector<double> want = elements(expected_k, pages, page_size, heads, k_dim);
    const std::vector<double> have = elements(actual_k, pages, page_size, heads, k_dim);
    const double tolerance = rotation.rotation.rotary_dim > 0 ? rounding(k_dtype) : 0;
    int64_t written = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_EQ(std::isnan(have[i]), std::isnan(want[i])) << "element " << i;
      if (std::isnan(want[i])) continue;
      ++written;
      // Near a rotation's zero the error is relative to the size of the pair.
      ASSERT_NEAR(have[i], want[i], tolerance * std::max(std::fabs(want[i]), 1.0))
          << "element " << i;
    }
    ASSERT_EQ(written, std::count_if(slots.begin(), slots.end(), [](int64_t s) { return s >= 0; }) *
                           heads * k_dim);
    ASSERT_EQ(0, std::memcmp(expected_v.memory.data(), actual_v.memory.data(),
                             static_cast<size_t>(actual_v.memory.size())));
  }
}

TEST_P(Rows, AppendWithoutRotationStoresTheSameBitsAsTheReference) {
  for (uint64_t seed = 100; seed < 100 + rounds(30); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const int64_t dim = random.pick<int64_t>({33, 80, 128});
    TensorOwner k(random, 3, 2, dim, random.dtype());
    k.fill(random, random.pick({1.0, 1e-6, 1e5}));
    const DType dtype = random.dtype();
    const std::vector<int64_t> slots{4, 0, 2};
    PoolOwner pools[2];
    const KernelTable* tables[2] = {&reference_table(), GetParam()};
    for (int i = 0; i < 2; ++i) {
      Random same(seed);
      pools[i] = PoolOwner(same, 3, 2, 2, dim, dtype);
      AppendParams params{};
      params.k = k.rows, params.k_pages = pools[i].rows, params.slots = slots.data();
      params.page_size = 2, params.num_kv_heads = 2, params.k_dim = static_cast<int32_t>(dim);
      tables[i]->append(params, 0, 3);
    }
    EXPECT_EQ(0, std::memcmp(pools[0].memory.data(), pools[1].memory.data(),
                             static_cast<size_t>(pools[0].memory.size())));
  }
}

// Values of rows that a quantised append may meet.
enum class RowValues { kNormal, kZeros, kTiny, kHuge, kNaN, kInfinity, kLast };

void fill_rows(Random& random, TensorOwner& tensor, RowValues values) {
  const double spread = values == RowValues::kZeros  ? 0
                        : values == RowValues::kTiny ? 1e-39
                        : values == RowValues::kHuge ? 3e37
                                                     : 1;
  tensor.fill(random, spread);
  if (values == RowValues::kNaN)
    reference::write_element(tensor.row(1, 0), tensor.rows.dtype, tensor.dim - 1, NAN);
  if (values == RowValues::kInfinity)
    reference::write_element(tensor.row(1, 0), tensor.rows.dtype, 0, INFINITY);
}

TEST_P(Rows, AppendQuantisesLikeTheReference) {
  for (uint64_t seed = 200; seed < 200 + rounds(120); ++seed) {
    Random random(seed);
    const int64_t heads = random.pick<int64_t>({1, 2, 3}),
                  k_dim = random.pick<int64_t>({16, 33, 64, 72, 80, 128, 576}),
                  v_dim = random.pick<int64_t>({k_dim, 17, 128}),
                  page_size = random.pick<int64_t>({1, 3, 16, 48}), pages = 6, tokens = 4;
    const auto values = static_cast<RowValues>(random.between(0, 5));
    SCOPED_TRACE("seed " + std::to_string(seed) + ": heads " + std::to_string(heads) + " dims " +
                 std::to_string(k_dim) + "/" + std::to_string(v_dim) + " page " +
                 std::to_string(page_size) + " values " + std::to_string(static_cast<int>(values)));
    TensorOwner k(random, tokens, heads, k_dim, random.dtype()),
        v(random, tokens, heads, v_dim, random.dtype());
    fill_rows(random, k, values), fill_rows(random, v, values);
    RotationOwner rotation(random, tokens, k_dim);
    if (random.chance(0.5)) rotation.rotation.rotary_dim = 0;
    std::vector<int64_t> slots(static_cast<size_t>(pages * page_size));
    std::iota(slots.begin(), slots.end(), 0);
    if (random.chance(0.5)) std::shuffle(slots.begin(), slots.end(), random.engine());
    slots.resize(static_cast<size_t>(tokens));
    const DType k_dtype = random.quantised_dtype(), v_dtype = random.quantised_dtype();
    PoolOwner k_pools[2], v_pools[2];
    const KernelTable* tables[2] = {&reference_table(), GetParam()};
    for (int i = 0; i < 2; ++i) {
      Random same(seed);
      k_pools[i] = PoolOwner(same, pages, page_size, heads, k_dim, k_dtype);
      v_pools[i] = PoolOwner(same, pages, page_size, heads, v_dim, v_dtype);
      const AppendParams params{k.rows,
                                v.rows,
                                rotation.rotation,
                                k_pools[i].rows,
                                v_pools[i].rows,
                                slots.data(),
                                static_cast<int32_t>(page_size),
                                static_cast<int32_t>(heads),
                                static_cast<int32_t>(k_dim),
                                static_cast<int32_t>(v_dim)};
      tables[i]->append(params, 0, 1);
      tables[i]->append(params, 1, tokens);
      EXPECT_TRUE(k_pools[i].guards_intact() && v_pools[i].guards_intact());
    }
    const auto same_bits = [](Poisoned& a, Poisoned& b) {
      return std::memcmp(a.data(), b.data(), static_cast<size_t>(a.size())) == 0;
    };
    EXPECT_TRUE(same_bits(v_pools[0].memory, v_pools[1].memory));
    EXPECT_TRUE(same_bits(v_pools[0].scales, v_pools[1].scales));
    if (rotation.rotation.rotary_dim == 0) {
      EXPECT_TRUE(same_bits(k_pools[0].memory, k_pools[1].memory));
      EXPECT_TRUE(same_bits(k_pools[0].scales, k_pools[1].scales));
    }
    for (int64_t token = 0; token < tokens; ++token) {
      const int64_t page = slots[static_cast<size_t>(token)] / page_size,
                    offset = slots[static_cast<size_t>(token)] % page_size;
      for (int64_t head = 0; head < heads; ++head) {
        double largest = 0;
        const auto element = [&](int i, int64_t d) {
          const PagedRows& rows = k_pools[i].rows;
          return reference::read_element(row_address(rows, page, head, offset), rows.dtype, d) *
                 static_cast<double>(row_scale(rows, page, head, offset));
        };
        for (int64_t d = 0; d < k_dim; ++d) largest = std::max(largest, std::fabs(element(0, d)));
        for (int64_t d = 0; d < k_dim; ++d) {
          const double want = element(0, d), have = element(1, d);
          ASSERT_EQ(std::isnan(have), std::isnan(want)) << "element " << d;
          // A rotation in float32 may end on the other side of a rounding boundary.
          const double step =
              k_dtype == DType::kInt8 ? largest / 120 : std::fabs(want) / 3 + largest / 3e4;
          if (!std::isnan(want)) {
            ASSERT_NEAR(have, want, step) << "element " << d;
          }
        }
      }
    }
  }
}

TEST_P(Rows, ARowThatIsNotFiniteIsReadAsNaN) {
  for (const double poison : {static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
    for (const DType dtype : {DType::kInt8, DType::kE4M3, DType::kE5M2}) {
      std::byte row[40], scale[8];
      PagedRows rows{row, 80, 40, 40, dtype};
      rows.scales = {scale, 8, 8, 8};
      float values[40];
      for (int d = 0; d < 40; ++d) values[d] = static_cast<float>(d);
      values[37] = static_cast<float>(poison);
      const int64_t slot = 0;
      AppendParams params{};
      params.k = {reinterpret_cast<std::byte*>(values), 0, 0, DType::kF32};
      params.k_pages = rows, params.slots = &slot, params.page_size = 1;
      params.num_kv_heads = 1, params.k_dim = 40;
      GetParam()->append(params, 0, 1);
      float out[40];
      const int32_t page = 0;
      GetParam()->gather(
          {rows, &page, {reinterpret_cast<std::byte*>(out), 0, 0, DType::kF32}, 1, 1, 40}, 0, 1);
      for (const float value : out) EXPECT_TRUE(std::isnan(value));
    }
  }
}

TEST_P(Rows, GatherReadsAnyRangeOfKeysInAnyType) {
  for (uint64_t seed = 1; seed < 1 + rounds(60); ++seed) {
    Random random(seed);
    const int64_t heads = random.pick<int64_t>({1, 3, 8}),
                  dim = random.pick<int64_t>({16, 33, 80, 128});
    const int64_t page_size = random.pick<int64_t>({1, 3, 16, 48}), pages = 4;
    SCOPED_TRACE("seed " + std::to_string(seed) + ": heads " + std::to_string(heads) + " dim " +
                 std::to_string(dim));
    PoolOwner pool(random, pages, page_size, heads, dim,
                   random.chance(0.5) ? random.dtype() : random.quantised_dtype());
    for (int64_t page = 0; page < pages; ++page) {
      for (int64_t head = 0; head < heads; ++head) {
        for (int64_t offset = 0; offset < page_size; ++offset)
          store_row(pool.rows, page, head, offset, dim, [&](int64_t) { return random.normal(); });
      }
    }
    const std::vector<int32_t> table{2, 0, 3, 1};
    const int64_t begin = random.between(0, pages * page_size),
                  end = random.between(begin, pages * page_size);
    const DType out_dtype = random.dtype();
    TensorOwner outs[2];
    const KernelTable* tables[2] = {&reference_table(), GetParam()};
    for (int i = 0; i < 2; ++i) {
      Random same(seed);
      outs[i] = TensorOwner(same, end - begin, heads, dim, out_dtype);
      tables[i]->gather({pool.rows, table.data(), outs[i].rows, static_cast<int32_t>(page_size),
                         static_cast<int32_t>(heads), static_cast<int32_t>(dim)},
                        begin, end);
      EXPECT_TRUE(outs[i].memory.guards_intact());
    }
    EXPECT_EQ(0, std::memcmp(outs[0].memory.data(), outs[1].memory.data(),
                             static_cast<size_t>(outs[0].memory.size())));
  }
}

TEST_P(Rows, MergeWeighsTwoPartsByTheirLse) {
  const float minus_infinity = -std::numeric_limits<float>::infinity();
  for (uint64_t seed = 1; seed < 1 + rounds(40); ++seed) {
    Random random(seed);
    const int64_t tokens = 5, heads = random.pick<int64_t>({1, 3}),
                  dim = random.pick<int64_t>({16, 33, 80, 128});
    SCOPED_TRACE("seed " + std::to_string(seed));
    const DType dtype = random.dtype(), other_dtype = random.dtype();
    TensorOwner outs[2], other(random, tokens, heads, dim, other_dtype);
    other.fill(random);
    std::vector<float> other_lse, lses[2];
    for (int64_t i = 0; i < tokens * heads; ++i) {
      lses[0].push_back(random.chance(0.3) ? minus_infinity
                                           : static_cast<float>(20 * random.normal()));
      other_lse.push_back(random.chance(0.3)
                              ? minus_infinity
                              : lses[0].back() + static_cast<float>(random.normal()));
      if (std::isnan(other_lse.back())) other_lse.back() = 1.0f;
    }
    lses[1] = lses[0];
    const KernelTable* tables[2] = {&reference_table(), GetParam()};
    for (int i = 0; i < 2; ++i) {
      Random same(seed + 1);
      outs[i] = TensorOwner(same, tokens, heads, dim, dtype);
      outs[i].fill(same);
      for (int64_t t = 0; t < tokens; ++t) {  // a part that saw nothing may hold anything
        for (int64_t h = 0; h < heads; ++h) {
          if (lses[i][static_cast<size_t>(t * heads + h)] != minus_infinity) continue;
          for (int64_t d = 0; d < dim; ++d)
            reference::write_element(outs[i].row(t, h), dtype, d, NAN);
        }
      }
      tables[i]->merge({outs[i].rows, other.rows, lses[i].data(), other_lse.data(), heads, heads,
                        static_cast<int32_t>(heads), static_cast<int32_t>(dim)},
                       0, tokens);
      EXPECT_TRUE(outs[i].memory.guards_intact());
    }
    for (size_t i = 0; i < lses[0].size(); ++i) {
      if (std::isinf(lses[0][i])) {
        EXPECT_EQ(lses[1][i], lses[0][i]);
      } else {
        EXPECT_NEAR(lses[1][i], lses[0][i], 1e-6 * std::max(1.0f, std::fabs(lses[0][i])));
      }
    }
    EXPECT_LE(relative_error(outs[1], outs[0]), dtype == DType::kF32 ? 2e-7 : rounding(dtype));
  }
}

TEST_P(Rows, MergeLeavesThePartThatSawKeysBitForBit) {
  const float minus_infinity = -std::numeric_limits<float>::infinity();
  Random random(5);
  TensorOwner out(random, 1, 2, 33, DType::kF32), other(random, 1, 2, 33, DType::kF32);
  out.fill(random), other.fill(random);
  const double kept = out.at(0, 0, 32), taken = other.at(0, 1, 32);
  reference::write_element(other.row(0, 0), DType::kF32, 32, NAN);
  float lse[2] = {3.5f, minus_infinity};
  const float other_lse[2] = {minus_infinity, -7.25f};
  GetParam()->merge({out.rows, other.rows, lse, other_lse, 2, 2, 2, 33}, 0, 1);
  EXPECT_EQ(out.at(0, 0, 32), kept);
  EXPECT_EQ(out.at(0, 1, 32), taken);
  EXPECT_EQ(lse[0], 3.5f);
  EXPECT_EQ(lse[1], -7.25f);
}

TEST_P(Rows, CopyMovesExactlyTheBytesAtAnyAlignment) {
  Random random(11);
  for (int64_t bytes : {0, 1, 63, 64, 4095, 32767, 32768, 32769, 65536, 70001}) {
    for (int64_t to_shift : {0, 1, 17, 63}) {
      for (int64_t from_shift : {0, 5}) {
        SCOPED_TRACE(std::to_string(bytes) + " bytes, shifts " + std::to_string(to_shift) +
                     " and " + std::to_string(from_shift));
        std::vector<std::byte> from(static_cast<size_t>(bytes + from_shift + 1));
        for (std::byte& b : from) b = static_cast<std::byte>(random.between(0, 254));
        Poisoned to(bytes + to_shift + 1);
        GetParam()->copy(to.data() + to_shift, from.data() + from_shift,
                         static_cast<size_t>(bytes));
        ASSERT_EQ(0, std::memcmp(to.data() + to_shift, from.data() + from_shift,
                                 static_cast<size_t>(bytes)));
        ASSERT_EQ(to.data()[bytes + to_shift], std::byte{0xff}) << "one byte too many";
        if (to_shift > 0) {
          ASSERT_EQ(to.data()[to_shift - 1], std::byte{0xff}) << "one byte too early";
        }
        ASSERT_TRUE(to.guards_intact());
      }
    }
  }
}

}  // namespace
}  // namespace kvc::kernels::test
