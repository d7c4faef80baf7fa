// Random attention problems in NaN-poisoned memory, for the tests that compare kernel tables with
// the reference.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/table.h"
#include "kernels/reference/elements.h"
#include "tests/support/environment.h"

namespace kvc::kernels::test {

using ::kvc::test::rounds;

using cpu::Isa;
using cpu::KernelTable;

inline std::vector<const KernelTable*> available_tables(bool with_reference = false) {
  std::vector<const KernelTable*> tables;
  for (Isa isa : {Isa::kReference, Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16}) {
    if (isa == Isa::kReference && !with_reference) continue;
    if (const KernelTable* table = cpu::kernel_table(isa)) tables.push_back(table);
  }
  return tables;
}

inline const KernelTable& reference_table() { return *cpu::kernel_table(Isa::kReference); }

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  int64_t between(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(engine_);
  }
  bool chance(double p) { return std::bernoulli_distribution(p)(engine_); }
  double normal() { return std::normal_distribution<double>()(engine_); }
  template <typename T>
  T pick(std::initializer_list<T> choices) {
    return choices.begin()[between(0, static_cast<int64_t>(choices.size()) - 1)];
  }
  DType dtype() { return pick({DType::kF32, DType::kF16, DType::kBF16}); }
  DType quantised_dtype() { return pick({DType::kInt8, DType::kE4M3, DType::kE5M2}); }
  std::mt19937_64& engine() { return engine_; }

 private:
  std::mt19937_64 engine_;
};

// Bytes of 0xff: NaN in every storage type. 64-byte aligned, with a guard that must still hold 0xff
// at the end.
class Poisoned {
 public:
  Poisoned() = default;
  explicit Poisoned(int64_t bytes)
      : bytes_(bytes), memory_(static_cast<size_t>(bytes) + 2 * kGuard + 64, std::byte{0xff}) {}
  std::byte* data() {
    const auto address = reinterpret_cast<uintptr_t>(memory_.data()) + kGuard;
    return reinterpret_cast<std::byte*>((address + 63) / 64 * 64);
  }
  float* floats() { return reinterpret_cast<float*>(data()); }
  int64_t size() const { return bytes_; }
  bool guards_intact() {
    const auto intact = [](std::byte b) { return b == std::byte{0xff}; };
    return std::all_of(memory_.data(), data(), intact) &&
           std::all_of(data() + bytes_, memory_.data() + memory_.size(), intact);
  }

 private:
  static constexpr int64_t kGuard = 128;
  int64_t bytes_ = 0;
  std::vector<std::byte> memory_;
};

// Packed rows with free strides between tokens and heads.
struct TensorOwner {
  Poisoned memory;
  TokenRows rows{};
  int64_t tokens = 0, heads = 0, dim = 0;

  TensorOwner() = default;
  TensorOwner(Random& random, int64_t tokens_in, int64_t heads_in, int64_t dim_in, DType dtype)
      : tokens(tokens_in), heads(heads_in), dim(dim_in) {
    const int64_t element = dtype_bytes(dtype);
    const int64_t head_stride = (dim + random.pick<int64_t>({0, 0, 3, 16})) * element;
    const int64_t token_stride = head_stride * heads + random.pick<int64_t>({0, 0, 5}) * element;
    memory = Poisoned(tokens * token_stride);
    rows = {memory.data(), token_stride, head_stride, dtype};
  }
  std::byte* row(int64_t token, int64_t head) {
    return rows.base + token * rows.token_stride + head * rows.head_stride;
  }
  void fill(Random& random, double spread = 1.0) {
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t d = 0; d < dim; ++d)
          reference::write_element(row(t, h), rows.dtype, d, spread * random.normal());
      }
    }
  }
  double at(int64_t token, int64_t head, int64_t d) {
    return reference::read_element(row(token, head), rows.dtype, d);
  }
};

// One half of a pool, head-major or token-major inside a page, with gaps.
struct PoolOwner {
  Poisoned memory;
  Poisoned scales;  // Of quantised rows; empty where they share one.
  PagedRows rows{};

  PoolOwner() = default;
  // `like`: whether rows share a scale is as there, else drawn.
  PoolOwner(Random& random, int64_t pages, int64_t page_size, int64_t heads, int64_t dim,
            DType dtype, const PagedRows* like = nullptr) {
    const int64_t row = (dim + random.pick<int64_t>({0, 0, 1, 8})) * dtype_bytes(dtype);
    const bool token_major = random.chance(0.3);
    const int64_t gap = random.pick<int64_t>({0, 0, 2}) * dtype_bytes(dtype);
    const int64_t page = heads * page_size * row + gap;
    memory = Poisoned(pages * page);
    rows = {memory.data(), page, token_major ? row : page_size * row,
            token_major ? heads * row : row, dtype};
    if (!is_quantised(dtype)) return;
    if (like != nullptr && like->scales.base == nullptr) {
      rows.scales.shared = like->scales.shared;
      return;
    }
    if (like == nullptr && random.chance(0.3)) {
      rows.scales.shared = random.pick({1.0f, 0.03125f, 0.0173f});
      return;
    }
    const int64_t scale_page = heads * page_size * 4 + random.pick<int64_t>({0, 4, 64});
    scales = Poisoned(pages * scale_page);
    rows.scales = {scales.data(), scale_page, token_major ? 4 : page_size * 4,
                   token_major ? heads * 4 : 4};
  }
  bool guards_intact() {
    return memory.guards_intact() && (scales.size() == 0 || scales.guards_intact());
  }
};

// Stores a row of `dim` values as an append does.
template <typename Value>
void store_row(const PagedRows& rows, int64_t page, int64_t head, int64_t offset, int64_t dim,
               const Value& value) {
  std::byte* row = row_address(rows, page, head, offset);
  if (is_quantised(rows.dtype)) {
    std::vector<double> values;
    for (int64_t d = 0; d < dim; ++d) values.push_back(value(d));
    std::byte* scale_at =
        rows.scales.base == nullptr ? nullptr : scale_address(rows, page, head, offset);
    reference::write_quantised(row, scale_at, rows.scales.shared, rows.dtype, dim,
                               [&](int64_t d) { return values[static_cast<size_t>(d)]; });
    return;
  }
  for (int64_t d = 0; d < dim; ++d) reference::write_element(row, rows.dtype, d, value(d));
}

struct RotationOwner {
  std::vector<float> cos, sin;
  Rotation rotation{};

  RotationOwner() = default;
  RotationOwner(Random& random, int64_t tokens, int64_t dim) {
    const int32_t rotary =
        static_cast<int32_t>(random.pick<int64_t>({0, dim / 2 * 2, dim / 2 / 2 * 2, 2}));
    for (int64_t i = 0; i < tokens * (rotary / 2); ++i) {
      const double angle = 10 * random.normal();
      cos.push_back(static_cast<float>(std::cos(angle)));
      sin.push_back(static_cast<float>(std::sin(angle)));
    }
    const auto begin =
        static_cast<int32_t>(random.pick<int64_t>({0, dim - rotary, (dim - rotary) / 2}));
    rotation = {cos.data(), sin.data(), rotary, random.chance(0.5) ? 1 : 0, begin};
  }
};

// One item whose result is merged with nothing (partial < 0), or its part of a split.
inline AttnItem make_item(int32_t sequence, int32_t head_begin, int32_t head_end, int64_t row_begin,
                          int64_t row_end, int64_t key_begin, int64_t key_end,
                          int64_t partial = -1) {
  return {.sequence = sequence,
          .head_begin = head_begin,
          .head_end = head_end,
          .sink_part = 0,
          .merge_group = partial < 0 ? -1 : 0,
          .num_merge_groups = partial < 0 ? 0 : 1,
          .row_begin = row_begin,
          .row_end = row_end,
          .key_begin = key_begin,
          .key_end = key_end,
          .partial = partial};
}

// Merges `splits` partial results that lie `stride` floats apart.
inline void merge_even_splits(const KernelTable& table, AttnParams params, const AttnItem& any,
                              int32_t splits, int64_t stride) {
  std::vector<int64_t> offsets;
  for (int32_t split = 0; split < splits; ++split) offsets.push_back(split * stride);
  params.split_offsets = offsets.data();
  table.attn_merge_splits(params, {.sequence = any.sequence,
                                   .head_begin = any.head_begin,
                                   .head_end = any.head_end,
                                   .num_splits = splits,
                                   .row_begin = any.row_begin,
                                   .row_end = any.row_end,
                                   .first_split = 0});
}

// What a random attention problem may contain.
struct AttnFeatures {
  bool rules = true;       // soft cap, ALiBi, bias, sinks
  bool infinities = true;  // bias of -inf, NaN in V behind it
  int64_t max_rows = 5;
  int64_t max_keys = 300;
  DType out_dtype = DType::kF32;
  bool small = false;     // few heads, short rows
  int64_t rows = 0;       // of every sequence; 0: up to max_rows
  int64_t sequences = 0;  // 0: a few
  int64_t min_keys = 0;
  bool plain = false;  // No quantised rows.
};

// A batch of sequences with everything attention reads, filled at random; unused slots hold NaN.
// Every third seed has quantised rows.
class AttnProblem {
 public:
  AttnProblem(uint64_t seed, const AttnFeatures& features)
      : random(seed), is_quantised_(seed % 3 == 2 && !features.plain) {
    params.num_kv_heads = static_cast<int32_t>(random.pick<int64_t>({1, 2, 3, 8}));
    params.num_q_heads =
        params.num_kv_heads * static_cast<int32_t>(random.pick<int64_t>({1, 2, 3, 4, 5, 8, 12}));
    params.k_dim = static_cast<int32_t>(random.pick<int64_t>({16, 33, 64, 72, 80, 128, 192}));
    if (features.small) params.num_kv_heads = 1, params.num_q_heads = 2, params.k_dim = 16;
    params.v_dim = random.chance(0.6)
                       ? params.k_dim
                       : static_cast<int32_t>(random.pick<int64_t>({16, 40, 65, 128, 512}));
    if (features.small) params.v_dim = 17;
    params.page_size = static_cast<int32_t>(random.pick<int64_t>({1, 3, 16, 16, 48, 256}));
    params.causal = random.chance(0.7) ? 1 : 0;
    make_sequences(features);
    make_tensors(features);
    if (features.rules) make_rules(features);
  }

  // Every row and key of a sequence in one item that writes the result itself.
  AttnItem whole_item(int32_t sequence) const {
    return make_item(sequence, 0, params.num_kv_heads, 0,
                     sequences[static_cast<size_t>(sequence)].num_rows, 0, max_keys(sequence));
  }
  int64_t max_keys(int32_t sequence) const {
    const AttnSequence& s = sequences[static_cast<size_t>(sequence)];
    return s.first_key_end + (params.causal != 0 ? s.num_rows - 1 : 0);
  }
  int32_t num_sequences() const { return static_cast<int32_t>(sequences.size()); }

  // Points the outputs of `params` at fresh poisoned memory.
  void reset_outputs(DType out_dtype) {
    out = TensorOwner(random, tokens, params.num_q_heads, params.v_dim, out_dtype);
    lse = Poisoned(tokens * params.num_q_heads * 4);
    params.out = out.rows;
    params.lse = lse.floats();
    params.lse_token_stride = params.num_q_heads;
  }
  float lse_at(int64_t token, int64_t head) {
    return lse.floats()[token * params.num_q_heads + head];
  }

  std::string describe() const {
    return "q heads " + std::to_string(params.num_q_heads) + ", kv heads " +
           std::to_string(params.num_kv_heads) + ", dims " + std::to_string(params.k_dim) + "/" +
           std::to_string(params.v_dim) + ", page " + std::to_string(params.page_size) +
           ", causal " + std::to_string(params.causal) + ", k dtype " +
           std::to_string(static_cast<int>(params.k.dtype)) + ", v dtype " +
           std::to_string(static_cast<int>(params.v.dtype)) + ", tokens " + std::to_string(tokens) +
           ", softcap " + std::to_string(params.softcap) + ", bias " +
           std::to_string(params.bias != nullptr);
  }

  Random random;
  AttnParams params{};
  std::vector<AttnSequence> sequences;
  std::vector<std::vector<int32_t>> page_tables;
  int64_t tokens = 0;
  TensorOwner q, out;
  PoolOwner k, v;
  RotationOwner rotation;
  Poisoned lse;
  std::vector<float> sinks, alibi, bias;

 private:
  bool is_quantised_;

  void make_sequences(const AttnFeatures& features) {
    const int64_t count = features.sequences > 0 ? features.sequences
                          : features.small       ? 1
                                                 : random.between(1, 3);
    for (int64_t i = 0; i < count; ++i) {
      AttnSequence s{};
      s.row_begin = tokens;
      s.num_rows = features.rows > 0 ? features.rows : random.between(1, features.max_rows);
      const int64_t page = params.page_size;
      s.first_key_end = random.pick<int64_t>(
          {random.between(0, features.max_keys), 0, 1, page - 1, page, page + 1, 2 * page, 64});
      s.first_key_end = std::min(s.first_key_end, features.max_keys);
      if (s.first_key_end < features.min_keys)
        s.first_key_end = random.between(features.min_keys, features.max_keys);
      s.position = std::max<int64_t>(s.first_key_end - 1, 0);
      s.key_position = random.pick<int64_t>({0, 0, 5});
      s.position += s.key_position;
      tokens += s.num_rows;
      sequences.push_back(s);
    }
  }

  void make_tensors(const AttnFeatures& features) {
    const DType q_dtype = random.dtype();
    DType k_dtype = random.dtype();
    DType v_dtype = random.chance(0.7) ? k_dtype : random.dtype();
    if (is_quantised_) {
      // Some pairs are of one quantised half and a plain one.
      const int64_t halves = random.pick<int64_t>({0, 0, 0, 1, 2});
      if (halves != 1) k_dtype = random.quantised_dtype();
      if (halves != 2)
        v_dtype = halves == 0 && random.chance(0.7) ? k_dtype : random.quantised_dtype();
    }
    q = TensorOwner(random, tokens, params.num_q_heads, params.k_dim, q_dtype);
    q.fill(random);
    params.q = q.rows;
    rotation = RotationOwner(random, tokens, params.k_dim);
    params.q_rotation = rotation.rotation;
    params.q_scale = static_cast<float>(1.4426950408889634 / std::sqrt(params.k_dim));

    int64_t pages = 3;  // some that nobody uses
    for (int32_t s = 0; s < num_sequences(); ++s)
      pages += (max_keys(s) + params.page_size - 1) / params.page_size;
    std::vector<int32_t> order(static_cast<size_t>(pages));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random.engine());
    k = PoolOwner(random, pages, params.page_size, params.num_kv_heads, params.k_dim, k_dtype);
    v = PoolOwner(random, pages, params.page_size, params.num_kv_heads, params.v_dim, v_dtype);
    params.k = k.rows;
    params.v = v.rows;
    size_t next_page = 0;
    page_tables.resize(sequences.size());
    for (int32_t s = 0; s < num_sequences(); ++s) {
      std::vector<int32_t>& table = page_tables[static_cast<size_t>(s)];
      for (int64_t key = 0; key < max_keys(s); ++key) {
        if (key % params.page_size == 0) table.push_back(order[next_page++]);
        write_key(table[static_cast<size_t>(key / params.page_size)], key % params.page_size);
      }
      sequences[static_cast<size_t>(s)].pages = table.data();
    }
    params.sequences = sequences.data();
    reset_outputs(features.out_dtype);
  }

  void write_key(int64_t page, int64_t offset) {
    for (int64_t head = 0; head < params.num_kv_heads; ++head) {
      const auto normal = [&](int64_t) { return random.normal(); };
      store_row(params.k, page, head, offset, params.k_dim, normal);
      store_row(params.v, page, head, offset, params.v_dim, normal);
    }
  }

  void make_rules(const AttnFeatures& features) {
    const float log2e = 1.44269504f;
    if (random.chance(0.3)) {
      const float cap = 3.0f;
      params.q_scale = static_cast<float>(1 / std::sqrt(params.k_dim)) / cap;
      params.softcap = cap * log2e;
    }
    for (int32_t h = 0; h < params.num_q_heads; ++h) {
      sinks.push_back(h % 5 == 4 ? -std::numeric_limits<float>::infinity()
                                 : static_cast<float>(3 * random.normal()));
      alibi.push_back(log2e * static_cast<float>(std::exp2(-1 - random.between(0, 7))));
    }
    if (random.chance(0.4)) params.sinks = sinks.data();
    if (random.chance(0.3)) params.alibi = alibi.data();
    if (random.chance(0.3)) make_bias(features);
  }

  void make_bias(const AttnFeatures& features) {
    int64_t columns = 0;
    for (int32_t s = 0; s < num_sequences(); ++s) {
      columns = std::max(columns, max_keys(s) + sequences[static_cast<size_t>(s)].key_position);
    }
    const bool per_head = random.chance(0.5);
    bias.resize(static_cast<size_t>((per_head ? params.num_q_heads : 1) * tokens * columns));
    const double hidden = features.infinities ? random.pick({0.0, 0.1, 0.95}) : 0.0;
    for (float& b : bias) {
      b = random.chance(hidden) ? -std::numeric_limits<float>::infinity()
                                : static_cast<float>(random.normal());
    }
    params.bias_token_stride = columns;
    params.bias_head_stride = per_head ? tokens * columns : 0;
    params.bias = bias.data();
    if (hidden > 0) poison_hidden_keys();
  }

  // The first key of every sequence: hidden from all rows by the bias, its V is NaN.
  void poison_hidden_keys() {
    for (int32_t s = 0; s < num_sequences(); ++s) {
      const AttnSequence& sequence = sequences[static_cast<size_t>(s)];
      if (max_keys(s) == 0) continue;
      for (int64_t head = 0; head < params.num_q_heads; ++head) {
        for (int64_t row = 0; row < sequence.num_rows; ++row) {
          bias[static_cast<size_t>(head * params.bias_head_stride +
                                   (sequence.row_begin + row) * params.bias_token_stride +
                                   sequence.key_position)] =
              -std::numeric_limits<float>::infinity();
        }
      }
      for (int64_t head = 0; head < params.num_kv_heads; ++head) {
        store_row(params.v, sequence.pages[0], head, 0, params.v_dim, [](int64_t) { return NAN; });
      }
    }
  }
};

using AttnFunction = void (*)(const AttnParams&, const AttnItem&, void*);

// Runs one item with scratch memory full of NaN.
inline void run_item(AttnFunction attend, size_t scratch_bytes, const AttnParams& params,
                     const AttnItem& item) {
  Poisoned scratch(static_cast<int64_t>(scratch_bytes));
  attend(params, item, scratch.data());
  EXPECT_TRUE(scratch.guards_intact()) << "the kernel wrote outside its scratch memory";
}

inline void run_decode(const KernelTable& table, const AttnParams& params, const AttnItem& item) {
  run_item(table.attn_decode,
           table.attn_decode_scratch_bytes(params, item.row_end - item.row_begin), params, item);
}

// Distance of two tensors relative to the size of the expected one; infinite when NaN shows up in
// one only.
inline double relative_error(TensorOwner& actual, TensorOwner& expected) {
  double difference = 0, size = 0;
  for (int64_t t = 0; t < expected.tokens; ++t) {
    for (int64_t h = 0; h < expected.heads; ++h) {
      for (int64_t d = 0; d < expected.dim; ++d) {
        const double a = actual.at(t, h, d), e = expected.at(t, h, d);
        if (std::isnan(a) || std::isnan(e)) return std::numeric_limits<double>::infinity();
        difference += (a - e) * (a - e), size += e * e;
      }
    }
  }
  return difference == 0 ? 0 : std::sqrt(difference / size);
}

// What tile kernels of AVX512-BF16 multiply as bfloat16.
inline bool is_bf16_or_shorter(DType dtype) { return dtype == DType::kBF16 || is_quantised(dtype); }

// How far decode kernels that make words of elements may be from float32, see table.h. 0: they do
// not run here.
inline double words_error(const KernelTable& table, const AttnParams& params) {
  if (params.k.dtype != params.v.dtype || params.k_dim > 512 ||
      params.k_rotations[0].rotary_dim > 0 || params.k_rotations[1].rotary_dim > 0)
    return 0;
  if (params.k.dtype == DType::kInt8 && table.isa >= Isa::kScalar) return 2e-4;
  const bool scales = params.k.scales.base != nullptr && params.v.scales.base != nullptr;
  return params.k.dtype == DType::kE4M3 && scales && table.isa == Isa::kAvx512Bf16 ? 6e-3 : 0;
}

// The limits the kernels promise against the reference on the same stored values.
inline double error_limit(DType storage) { return storage == DType::kF32 ? 2e-6 : 1e-5; }

}  // namespace kvc::kernels::test
