// Random problems for the attention kernels that load by TMA (attn_wgmma, attn_latent), on the
// emulator and on a GPU: pools that TMA can address, everything that nobody may read poisoned, work
// cut at random, and the comparison with kernels/reference.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <climits>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/cuda/work.h"
#include "kernels/reference/elements.h"
#include "kernels/reference/reference.h"
#include "tests/cuda/device_memory.h"
#include "tests/unit/kernels_support.h"

namespace kvc::cuda::hopper_test {

using kernels::AttnItem;
using kernels::AttnSequence;
using kernels::DType;
using kernels::test::Poisoned;
using kernels::test::Random;
using testing::DeviceArray;

struct HopperCase {
  DType dtype = DType::kBF16;
  int32_t k_dim = 128, v_dim = 128;
  int32_t num_kv_heads = 2, group_size = 4;
  int32_t page_size = 16;  // INT_MAX: one page per sequence
  bool causal = true;
  bool windows = false, tree = false, spans = false, row_map = false;
  bool rotation = false, sinks = false, same_rows = false;  // same_rows: V is the beginning of K
  float softcap = 0;
  int32_t tile_rows = 128;
  int32_t num_sequences = 2;
  int64_t max_rows = 40, max_keys = 300;
  // Above 0: sequence i sees first_keys + i keys, with one row, and no item is cut
  int64_t first_keys = 0;
  bool split = false;  // items of part of the keys, into slots
  DType out_dtype = DType::kF32;
};

class HopperProblem {
 public:
  HopperProblem(uint64_t seed, const HopperCase& of) : random_(seed), case_(of) {
    make_sequences();
    make_tensors();
    make_work();
  }

  // With pointers of the host, as the reference reads it.
  AttnLaunch launch{};

  // Runs the kernel on a copy of everything, and checks what it wrote.
  template <typename Kernel>
  void run(Kernel kernel) {
    AttnLaunch on_device = launch;
    kernels::AttnParams& params = on_device.params;
    const auto put_bytes = [](Poisoned& memory) {
      return DeviceArray<std::byte>(
          std::vector<std::byte>(memory.data(), memory.data() + memory.size()));
    };
    const DeviceArray<std::byte> q = put_bytes(q_.memory), k = put_bytes(k_), v = put_bytes(v_);
    const DeviceArray<std::byte> out = put_bytes(out_), lse = put_bytes(lse_),
                                 partials = put_bytes(partials_);
    const DeviceArray<float> cos(cos_), sin(sin_), sinks(sinks_);
    const DeviceArray<int32_t> permutation(permutation_), begins(begins_), ends(ends_);
    const DeviceArray<int32_t> counts(counts_), cta_begin(cta_begin_);
    const DeviceArray<WorkItem> items(items_);
    std::vector<DeviceArray<int32_t>> tables;
    std::vector<DeviceArray<uint64_t>> masks;
    std::vector<AttnSequence> sequences = sequences_;
    for (size_t i = 0; i < sequences.size(); ++i) {
      AttnSequence& s = sequences[i];
      tables.emplace_back(tables_[i]);
      masks.emplace_back(masks_[i]);
      s.pages = tables.back().data();
      if (s.tree_mask != nullptr) s.tree_mask = masks.back().data();
      if (s.row_map != nullptr) s.row_map = permutation.data() + s.row_begin;
      if (s.key_begins != nullptr) s.key_begins = begins.data() + s.row_begin;
      if (s.key_ends != nullptr) s.key_ends = ends.data() + s.row_begin;
    }
    const DeviceArray<AttnSequence> sequences_there(sequences);
    params.q.base = q.data();
    params.k.base = k.data();
    params.v.base = case_.same_rows ? k.data() : v.data();
    params.out.base = out.data();
    params.lse = reinterpret_cast<float*>(lse.data());
    for (kernels::Rotation* rotation : {&params.q_rotation, &params.sink_q_rotation}) {
      if (rotation->rotary_dim == 0) continue;
      rotation->cos = cos.data() + (rotation->cos - cos_.data());
      rotation->sin = sin.data() + (rotation->sin - sin_.data());
    }
    if (params.sinks != nullptr) params.sinks = sinks.data();
    params.sequences = sequences_there.data();
    on_device.schedule.counts = counts.data();
    on_device.schedule.cta_begin = cta_begin.data();
    on_device.schedule.items = items.data();
    on_device.schedule.partials = reinterpret_cast<float*>(partials.data());
    kernel(on_device);
    if (::testing::Test::HasFailure()) return;
    testing::finish();
    const auto get_bytes = [](const DeviceArray<std::byte>& from, Poisoned& to) {
      const std::vector<std::byte> bytes = from.read();
      std::copy(bytes.begin(), bytes.end(), to.data());
    };
    get_bytes(out, out_);
    get_bytes(lse, lse_);
    get_bytes(partials, partials_);
    check();
  }

 private:
  void check() {
    const int64_t group = case_.group_size, v_dim = case_.v_dim;
    const double tolerance = case_.dtype == DType::kBF16 ? 1.6e-2 : 3e-3;
    for (size_t i = 0; i < items_.size() && !::testing::Test::HasFailure(); ++i) {
      const WorkItem& item = items_[i];
      const AttnSequence& sequence = sequences_[static_cast<size_t>(item.sequence)];
      const int64_t row_begin = item.row_begin / group;
      const int64_t row_end = (item.row_begin + item.num_rows - 1) / group + 1;
      std::vector<float> partials(static_cast<size_t>((row_end - row_begin) * group * (2 + v_dim)));
      kernels::AttnParams params = launch.params;
      params.partials = partials.data();
      AttnItem whole =
          kernels::test::make_item(item.sequence, item.kv_head, item.kv_head + 1, row_begin,
                                   row_end, item.key_begin, item.key_end, 0);
      whole.sink_part = item.sink_part;
      std::vector<std::byte> scratch(kernels::reference::attention_scratch_bytes(params, 1));
      kernels::reference::attention(params, whole, scratch.data());
      for (int64_t row = 0; row < item.num_rows; ++row) {
        const int64_t packed = item.row_begin + row, token = packed / group;
        const float* want =
            partials.data() + ((token - row_begin) * group + packed % group) * (2 + v_dim);
        const std::string where =
            "item " + std::to_string(i) + " row " + std::to_string(packed) + " head " +
            std::to_string(item.kv_head) + " keys " + std::to_string(item.key_begin) + "-" +
            std::to_string(item.key_end) + " slot " + std::to_string(item.split);
        if (item.split >= 0)
          check_partial(want, item, row, tolerance, where);
        else
          check_output(want, sequence, item, token, packed % group, tolerance, where);
        if (::testing::Test::HasFailure()) return;
      }
    }
  }

  void check_partial(const float* want, const WorkItem& item, int64_t row, double tolerance,
                     const std::string& where) {
    const float* got = partials_.floats() +
                       item.split * split_floats(case_.tile_rows, case_.v_dim) +
                       row * (2 + case_.v_dim);
    if (std::isinf(want[0])) {
      ASSERT_EQ(got[0], want[0]) << where;
      ASSERT_EQ(got[1], 0.0f) << where;
      for (int64_t d = 0; d < case_.v_dim; ++d) ASSERT_EQ(got[2 + d], 0.0f) << where;
      return;
    }
    ASSERT_NEAR(got[0] + std::log2(got[1]), want[0] + std::log2(want[1]), tolerance) << where;
    for (int64_t d = 0; d < case_.v_dim; ++d)
      ASSERT_NEAR(got[2 + d] / got[1], want[2 + d] / want[1], tolerance)
          << where << " element " << d;
  }

  void check_output(const float* want, const AttnSequence& sequence, const WorkItem& item,
                    int64_t token, int64_t head_of_group, double tolerance,
                    const std::string& where) {
    const int64_t packed =
        sequence.row_map != nullptr ? sequence.row_map[token] : sequence.row_begin + token;
    const int64_t q_head = item.kv_head * case_.group_size + head_of_group;
    const std::byte* out = launch.params.out.base + packed * launch.params.out.token_stride +
                           q_head * launch.params.out.head_stride;
    const float lse = lse_.floats()[packed * launch.params.lse_token_stride + q_head];
    const bool empty = std::isinf(want[0]);
    double denominator = want[1];
    if (launch.params.sinks != nullptr)
      denominator += std::exp2(launch.params.sinks[q_head] * 1.4426950408889634 - want[0]);
    if (empty)
      ASSERT_EQ(lse, -std::numeric_limits<float>::infinity()) << where;
    else
      ASSERT_NEAR(lse, 0.69314718056 * (want[0] + std::log2(want[1])), tolerance) << where;
    for (int64_t d = 0; d < case_.v_dim; ++d) {
      const double expected = empty ? 0.0 : want[2 + d] / denominator;
      const double got = kernels::reference::read_element(out, launch.params.out.dtype, d);
      ASSERT_NEAR(got, expected, tolerance + 0.004 * std::fabs(expected))
          << where << " element " << d;
    }
  }

  int64_t end_of(const AttnSequence& s, int64_t row) const {
    return s.key_ends != nullptr ? s.key_ends[row] : s.first_key_end + (case_.causal ? row : 0);
  }

  void make_sequences() {
    int64_t tokens = 0;
    for (int32_t i = 0; i < case_.num_sequences; ++i) {
      AttnSequence s{};
      s.row_begin = tokens;
      s.num_rows = random_.pick<int64_t>({random_.between(1, case_.max_rows), 1, case_.max_rows});
      const int64_t page = case_.page_size == INT_MAX ? 64 : case_.page_size;
      s.first_key_end =
          random_.pick<int64_t>({random_.between(0, case_.max_keys), 1, page - 1, page, page + 1,
                                 2 * page, 64, 128, 129, random_.between(0, 3)});
      s.first_key_end = std::min(s.first_key_end, case_.max_keys);
      if (case_.tree) s.first_key_end += random_.between(0, 90);
      if (case_.page_size == INT_MAX && case_.causal && random_.chance(0.7)) s.first_key_end = 1;
      if (case_.first_keys > 0) s.num_rows = 1, s.first_key_end = case_.first_keys + i;
      tokens += s.num_rows;
      sequences_.push_back(s);
    }
    tokens_ = tokens;
    permutation_.resize(static_cast<size_t>(tokens));
    std::iota(permutation_.begin(), permutation_.end(), 0);
    begins_.resize(static_cast<size_t>(tokens));
    ends_.resize(static_cast<size_t>(tokens));
    masks_.resize(sequences_.size());
    for (size_t i = 0; i < sequences_.size(); ++i) make_visibility(sequences_[i], masks_[i]);
  }

  void make_visibility(AttnSequence& s, std::vector<uint64_t>& mask) {
    if (case_.row_map) {
      std::shuffle(permutation_.begin() + s.row_begin,
                   permutation_.begin() + s.row_begin + s.num_rows, random_.engine());
      s.row_map = permutation_.data() + s.row_begin;
    }
    if (case_.spans) {
      int64_t end = s.first_key_end;
      for (int64_t row = 0; row < s.num_rows; ++row) {
        // Never less than causal.
        end = std::max(end, s.first_key_end + row) + random_.pick<int64_t>({0, 0, 0, 5});
        ends_[static_cast<size_t>(s.row_begin + row)] = static_cast<int32_t>(end);
      }
      s.key_ends = ends_.data() + s.row_begin;
    }
    if (case_.windows) {
      const int64_t window = random_.pick<int64_t>({1, 20, 64, 100});
      for (int64_t row = 0; row < s.num_rows; ++row) {
        // Windows of neighbours touch: what lies between the first and the last row's keys is
        // written.
        const int64_t begin =
            std::max<int64_t>(0, s.first_key_end + (case_.causal ? row : 0) - window);
        begins_[static_cast<size_t>(s.row_begin + row)] = static_cast<int32_t>(begin);
      }
      s.key_begins = begins_.data() + s.row_begin;
      s.sink_end = random_.pick<int64_t>({0, 0, 4, 40});
    }
    if (case_.tree) {
      const int64_t nodes = std::min<int64_t>(end_of(s, s.num_rows - 1), random_.between(1, 150));
      s.tree_begin = end_of(s, s.num_rows - 1) - nodes;
      s.tree_words = (nodes + 63) / 64;
      for (int64_t word = 0; word < s.num_rows * s.tree_words; ++word)
        mask.push_back(random_.engine()() | random_.engine()());
      s.tree_mask = mask.data();
    }
  }

  bool anybody_sees(const AttnSequence& s, int64_t key) const {
    for (int64_t row = 0; row < s.num_rows; ++row) {
      if (key < end_of(s, row) &&
          (s.key_begins == nullptr || key >= s.key_begins[row] || key < s.sink_end))
        return true;
    }
    return false;
  }

  void make_tensors() {
    kernels::AttnParams& params = launch.params;
    const int32_t heads = case_.num_kv_heads, q_heads = heads * case_.group_size;
    params.num_kv_heads = heads;
    params.num_q_heads = q_heads;
    params.k_dim = case_.k_dim;
    params.v_dim = case_.v_dim;
    params.page_size = case_.page_size;
    params.causal = case_.causal ? 1 : 0;
    params.softcap = case_.softcap * 1.44269504f;
    const double scale = 1 / std::sqrt(case_.k_dim);
    params.q_scale =
        static_cast<float>(case_.softcap != 0 ? scale / case_.softcap : scale * 1.4426950408889634);
    q_ = kernels::test::TensorOwner(
        random_, tokens_, q_heads, case_.k_dim,
        random_.chance(0.8) ? case_.dtype : random_.pick({DType::kF32, DType::kF16, DType::kBF16}));
    // Products stay exact enough for tight tolerances: queries are representable in the kernel's
    // type.
    for (int64_t t = 0; t < tokens_; ++t) {
      for (int64_t h = 0; h < q_heads; ++h) {
        for (int64_t d = 0; d < case_.k_dim; ++d)
          kernels::reference::write_element(q_.row(t, h), q_.rows.dtype, d,
                                            static_cast<double>(random_.between(-16, 16)) / 8);
      }
    }
    params.q = q_.rows;
    if (case_.rotation) make_rotation(params);
    make_pools(params);
    const int64_t element = kernels::dtype_bytes(case_.out_dtype);
    const int64_t head_stride = (case_.v_dim + random_.pick<int64_t>({0, 2, 8})) * element;
    out_ = Poisoned(tokens_ * q_heads * head_stride);
    params.out = {out_.data(), q_heads * head_stride, head_stride, case_.out_dtype};
    lse_ = Poisoned(tokens_ * q_heads * 4);
    params.lse = lse_.floats();
    params.lse_token_stride = q_heads;
    if (case_.sinks) {
      for (int32_t h = 0; h < q_heads; ++h)
        sinks_.push_back(h % 5 == 4 ? -std::numeric_limits<float>::infinity()
                                    : static_cast<float>(random_.normal()));
      params.sinks = sinks_.data();
    }
    params.sequences = sequences_.data();
  }

  void make_rotation(kernels::AttnParams& params) {
    const auto dim = static_cast<int32_t>(case_.k_dim);
    const int32_t rotary = random_.pick<int32_t>({dim / 16 * 16, 64, 32, 6});
    for (int64_t i = 0; i < 2 * tokens_ * (rotary / 2); ++i) {
      const double angle = 10 * random_.normal();
      cos_.push_back(static_cast<float>(std::cos(angle)));
      sin_.push_back(static_cast<float>(std::sin(angle)));
    }
    const int32_t begin = random_.pick<int32_t>({0, dim - rotary});
    params.q_rotation = {cos_.data(), sin_.data(), rotary, random_.chance(0.5) ? 1 : 0, begin};
    params.sink_q_rotation = params.q_rotation;
    params.sink_q_rotation.cos += tokens_ * (rotary / 2);
    params.sink_q_rotation.sin += tokens_ * (rotary / 2);
  }

  // Rows of a pool, head-major or token-major; gaps of multiples of 16 bytes.
  kernels::PagedRows make_pool(Poisoned& memory, int64_t pages, int64_t page_rows, int64_t dim) {
    const int64_t row = dim * 2 + random_.pick<int64_t>({0, 0, 16, 48});
    const int64_t heads = case_.num_kv_heads;
    if (case_.page_size == INT_MAX) {
      // As the core stages new keys: the page is the sequence's first row.
      memory = Poisoned(pages * page_rows * heads * row);
      return {memory.data(), heads * row, row, heads * row, case_.dtype};
    }
    const bool token_major = random_.chance(0.3);
    const int64_t page = heads * page_rows * row + random_.pick<int64_t>({0, 0, 64});
    memory = Poisoned(pages * page);
    return {memory.data(), page, token_major ? row : page_rows * row,
            token_major ? heads * row : row, case_.dtype};
  }

  void make_pools(kernels::AttnParams& params) {
    const bool ragged = case_.page_size == INT_MAX;
    int64_t pages = ragged ? 0 : 3, rows = 0;
    for (const AttnSequence& s : sequences_) {
      const int64_t end = end_of(s, s.num_rows - 1);
      pages += ragged ? 0 : (end + case_.page_size - 1) / case_.page_size;
      rows += end;
    }
    params.k = make_pool(k_, ragged ? 1 : pages, ragged ? rows : case_.page_size, case_.k_dim);
    params.v = case_.same_rows ? params.k
                               : make_pool(v_, ragged ? 1 : pages, ragged ? rows : case_.page_size,
                                           case_.v_dim);
    std::vector<int32_t> order(static_cast<size_t>(pages));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random_.engine());
    tables_.resize(sequences_.size());
    size_t next_page = 0;
    int64_t first_row = 0;
    for (size_t i = 0; i < sequences_.size(); ++i) {
      AttnSequence& s = sequences_[i];
      const int64_t end = end_of(s, s.num_rows - 1);
      std::vector<int32_t>& table = tables_[i];
      if (ragged) table.push_back(static_cast<int32_t>(first_row));
      for (int64_t key = 0; key < end; ++key) {
        if (!ragged && key % case_.page_size == 0) table.push_back(-1);
        if (!anybody_sees(s, key)) continue;
        int32_t& page = table[ragged ? 0 : static_cast<size_t>(key / case_.page_size)];
        if (page < 0) page = order[next_page++];
        write_key(params, page, ragged ? key : key % case_.page_size);
      }
      first_row += end;
      table.push_back(0x3fffffff);
      s.pages = table.data();
    }
  }

  void write_key(const kernels::AttnParams& params, int64_t page, int64_t slot) {
    for (int64_t head = 0; head < case_.num_kv_heads; ++head) {
      std::byte* k = kernels::row_address(params.k, page, head, slot);
      std::byte* v = kernels::row_address(params.v, page, head, slot);
      for (int64_t d = 0; d < case_.k_dim; ++d)
        kernels::reference::write_element(k, case_.dtype, d, random_.normal());
      if (case_.same_rows) continue;
      for (int64_t d = 0; d < case_.v_dim; ++d)
        kernels::reference::write_element(v, case_.dtype, d, random_.normal());
    }
  }

  void make_work() {
    int32_t slots = 0;
    for (int32_t sequence = 0; sequence < case_.num_sequences; ++sequence) {
      const AttnSequence& s = sequences_[static_cast<size_t>(sequence)];
      const auto end = static_cast<int32_t>(end_of(s, s.num_rows - 1));
      const auto rows = static_cast<int32_t>(s.num_rows * case_.group_size);
      for (int32_t head = 0; head < case_.num_kv_heads; ++head) {
        for (int32_t row = 0; row < rows;) {
          const auto count = static_cast<int32_t>(std::min<int64_t>(
              rows - row, random_.pick<int64_t>({case_.tile_rows, case_.tile_rows, 37})));
          WorkItem item{sequence, head, row, count, 0, end, -1, 0};
          if (case_.split) {
            item.split = slots++;
            item.key_begin = static_cast<int32_t>(random_.pick<int64_t>(
                {0, std::min<int64_t>(64, end), std::min<int64_t>(s.sink_end, end),
                 random_.between(0, end)}));
            item.key_end = static_cast<int32_t>(random_.pick<int64_t>(
                {end, end, item.key_begin, random_.between(item.key_begin, end)}));
            item.sink_part = case_.rotation && random_.chance(0.3) ? 1 : 0;
          }
          items_.push_back(item);
          row += count;
        }
      }
    }
    std::shuffle(items_.begin(), items_.end(), random_.engine());
    const auto ctas = static_cast<int32_t>(random_.between(1, 3));
    const auto num_items = static_cast<int32_t>(items_.size());
    for (int32_t cta = 0; cta < ctas; ++cta)
      cta_begin_.push_back(
          cta == 0 ? 0 : static_cast<int32_t>(random_.between(cta_begin_.back(), num_items)));
    cta_begin_.push_back(num_items);
    counts_ = {num_items, 0, 0, slots};
    partials_ = Poisoned(slots * split_floats(case_.tile_rows, case_.v_dim) * 4);
    launch.schedule = {counts_.data(), cta_begin_.data(),  items_.data(), nullptr,
                       nullptr,        partials_.floats(), ctas,          case_.tile_rows};
  }

  Random random_;
  HopperCase case_;
  int64_t tokens_ = 0;
  std::vector<AttnSequence> sequences_;
  std::vector<std::vector<int32_t>> tables_;
  std::vector<int32_t> permutation_, begins_, ends_, cta_begin_, counts_;
  std::vector<std::vector<uint64_t>> masks_;
  std::vector<float> cos_, sin_, sinks_;
  std::vector<WorkItem> items_;
  kernels::test::TensorOwner q_;
  Poisoned k_, v_, out_, lse_, partials_;
};

// Times that a random test runs, more with KVC_TEST_SCALE.
inline int64_t repeats(int64_t count) {
  const char* scale = std::getenv("KVC_TEST_SCALE");
  return scale != nullptr ? std::max<int64_t>(1, static_cast<int64_t>(count * std::atof(scale)))
                          : count;
}

}  // namespace kvc::cuda::hopper_test
