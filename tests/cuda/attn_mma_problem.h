// Random attention problems for the kernels that carry out a plan: built on the host with NaN
// wherever nothing may be read, copied to the device, the answer by kernels/reference.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/reference/reference.h"
#include "tests/cuda/attn_mma_pool.h"
#include "tests/cuda/schedule_executor.h"

namespace kvc::cuda::test {

using kernels::AttnParams;
using kernels::AttnSequence;

struct SequenceArrays {
  Twin<int32_t> pages, begins, ends, map, row_positions, key_positions;
  Twin<uint64_t> tree;
};

class DeviceAttnProblem {
 public:
  DeviceAttnProblem(uint64_t seed, const AttnProblemShape& wanted) : random(seed), shape(wanted) {
    num_q_heads = shape.group * shape.kv_heads;
    for (size_t s = 0; s < shape.rows.size(); ++s) add_sequence(s);
    add_pool();
    add_query();
    add_rules();
    make_host_params();
  }

  static constexpr float kLog2E = 1.44269504f;

  int32_t num_sequences() const { return static_cast<int32_t>(sequences.size()); }
  int64_t max_keys(size_t s) const { return shape.keys[s]; }

  // What kernels get, but for the plan. Sinks and alibi in natural units.
  AttnLaunch device_launch() {
    AttnLaunch launch{};
    AttnParams& p = launch.params;
    p = params;
    p.q.base = q.on_device();
    if (shape.rotation) {
      p.q_rotation.cos = cos.on_device(), p.q_rotation.sin = sin.on_device();
      p.sink_q_rotation.cos = sink_cos.on_device(), p.sink_q_rotation.sin = sink_sin.on_device();
    }
    p.k = k.on_device(), p.v = v.on_device();
    launch.k_storage = k.storage_on_device(), launch.v_storage = v.storage_on_device();
    p.sinks = sinks.on_device(), p.alibi = alibi.on_device(), p.bias = bias.on_device();
    out.device = nullptr, lse.device = nullptr;
    p.out.base = out.on_device(), p.lse = lse.on_device();
    on_device.host = sequences;
    for (size_t s = 0; s < sequences.size(); ++s) {
      AttnSequence& target = on_device.host[s];
      SequenceArrays& own = *arrays[s];
      target.pages = own.pages.on_device();
      target.key_begins = own.begins.on_device(), target.key_ends = own.ends.on_device();
      target.row_map = own.map.on_device();
      target.row_positions = own.row_positions.on_device(),
      target.key_positions = own.key_positions.on_device();
      target.tree_mask = own.tree.on_device();
    }
    on_device.device = nullptr;
    p.sequences = on_device.on_device();
    return launch;
  }

  // For functions on the host. alibi in log2 units, as kernels/reference wants it; sinks in natural
  // ones, as plan_executor.h does. `out` is float32 [tokens][heads][v_dim], `lse` [tokens][heads].
  AttnParams host_params(std::vector<float>& out_values, std::vector<float>& lse_values) {
    AttnParams p = params;
    scaled_slopes_ = alibi.host;
    for (float& x : scaled_slopes_) x *= kLog2E;
    p.sinks = sinks.host.empty() ? nullptr : sinks.host.data();
    p.alibi = scaled_slopes_.empty() ? nullptr : scaled_slopes_.data();
    p.bias = bias.host.empty() ? nullptr : bias.host.data();
    p.q.base = q.host.data();
    p.out = {reinterpret_cast<std::byte*>(out_values.data()),
             int64_t{num_q_heads} * shape.v_dim * 4, shape.v_dim * 4, DType::kF32};
    p.lse = lse_values.data(), p.lse_token_stride = num_q_heads;
    p.sequences = sequences.data();
    return p;
  }

  // The reference over whole sequences.
  void reference(std::vector<float>* out_values, std::vector<float>* lse_values) {
    clear(out_values, lse_values);
    AttnParams p = host_params(*out_values, *lse_values);
    std::vector<float> scaled_sinks = sinks.host;
    for (float& x : scaled_sinks) x *= kLog2E;
    p.sinks = scaled_sinks.empty() ? nullptr : scaled_sinks.data();
    std::vector<std::byte> scratch(kernels::reference::attention_scratch_bytes(p, 1));
    for (size_t s = 0; s < sequences.size(); ++s) {
      kernels::AttnItem item{};
      item.sequence = static_cast<int32_t>(s), item.head_end = shape.kv_heads,
      item.row_end = sequences[s].num_rows;
      item.key_end = max_keys(s), item.partial = -1, item.merge_group = -1;
      kernels::reference::attention(p, item, scratch.data());
    }
  }
  // Outputs of the right size, full of NaN.
  void clear(std::vector<float>* out_values, std::vector<float>* lse_values) const {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    out_values->assign(static_cast<size_t>(tokens * num_q_heads * shape.v_dim), nan);
    lse_values->assign(static_cast<size_t>(tokens * num_q_heads), nan);
  }

  bool sees(size_t s, int64_t row, int64_t key) const {
    const AttnSequence& q = sequences[s];
    const int64_t end =
        q.key_ends != nullptr ? q.key_ends[row] : q.first_key_end + (shape.causal ? row : 0);
    if (key >= end) return false;
    if (q.key_begins != nullptr && key < q.key_begins[row] && key >= q.sink_end) return false;
    if (q.tree_mask == nullptr || key < q.tree_begin) return true;
    const int64_t node = key - q.tree_begin;
    return (q.tree_mask[row * q.tree_words + node / 64] >> (node % 64) & 1) != 0;
  }

  std::string describe() const {
    const auto flag = [](bool on, const char* name) {
      return on ? std::string(", ") + name : std::string();
    };
    std::string text =
        "group " + std::to_string(shape.group) + ", kv heads " + std::to_string(shape.kv_heads) +
        ", dims " + std::to_string(shape.k_dim) + "/" + std::to_string(shape.v_dim) + ", page " +
        std::to_string(shape.page_size) + ", stored " +
        std::to_string(static_cast<int>(shape.stored)) +
        flag(shape.scales_per_row, "scales per row") + ", q type " +
        std::to_string(static_cast<int>(shape.q_type)) + flag(shape.causal, "causal") +
        flag(shape.window, "window") + flag(shape.spans, "spans") + flag(shape.tree, "tree") +
        flag(shape.row_map, "row map") + flag(shape.positions, "positions") +
        flag(shape.rotation, "rotation") + flag(shape.softcap, "softcap") +
        flag(shape.alibi, "alibi") + flag(shape.bias, "bias") +
        flag(shape.hidden_by_bias, "hidden by bias") + flag(shape.sinks, "sinks");
    for (size_t s = 0; s < shape.rows.size(); ++s)
      text += "; " + std::to_string(shape.rows[s]) + " rows, " + std::to_string(shape.keys[s]) +
              " keys";
    return text;
  }

  AttnRandom random;
  AttnProblemShape shape;
  int64_t tokens = 0;
  int32_t num_q_heads = 0;
  std::vector<AttnSequence> sequences;  // host
  std::vector<std::unique_ptr<SequenceArrays>> arrays;
  AttnParams params{};  // host; q, out, lse, sinks, alibi, bias are set per use
  TwinPool k, v;
  Twin<std::byte> q, out;
  Twin<float> cos, sin, sink_cos, sink_sin, sinks, alibi, bias, lse;
  Twin<AttnSequence> on_device;

 private:
  std::vector<float> scaled_slopes_;

  void add_sequence(size_t s) {
    arrays.push_back(std::make_unique<SequenceArrays>());
    SequenceArrays& own = *arrays.back();
    AttnSequence q{};
    q.num_rows = shape.rows[s];
    const int64_t keys = shape.keys[s];
    // Row 0 may see nothing
    if (shape.causal) shape.rows[s] = q.num_rows = std::min(q.num_rows, keys + 1);
    q.first_key_end = shape.causal ? keys - (q.num_rows - 1) : keys;
    q.row_begin = tokens;
    q.key_position = random.pick<int64_t>({0, 0, 5});
    q.position = std::max<int64_t>(q.first_key_end - 1, 0) + q.key_position;
    const auto end_of = [&](int64_t row) { return q.first_key_end + (shape.causal ? row : 0); };
    if (shape.spans && q.num_rows > 0) {
      int64_t end = 0;
      for (int64_t row = 0; row < q.num_rows; ++row) {
        end = std::max(end, std::min(keys, end_of(row) + random.between(0, 9)));
        own.ends.host.push_back(static_cast<int32_t>(row == q.num_rows - 1 ? keys : end));
      }
      q.key_ends = own.ends.host.data();
    }
    if (shape.window && q.num_rows > 0) {
      const int64_t window =
          shape.window_tokens > 0 ? shape.window_tokens : random.pick<int64_t>({1, 3, 16, 40, 100});
      const int64_t kind = random.between(0, 1);
      for (int64_t row = 0; row < q.num_rows; ++row) {
        const int64_t end = q.key_ends != nullptr ? q.key_ends[row] : end_of(row);
        const int64_t begin = kind == 0 ? end - window : (end - 1) / window * window;
        own.begins.host.push_back(static_cast<int32_t>(std::max<int64_t>(begin, 0)));
      }
      q.key_begins = own.begins.host.data();
      q.sink_end = random.pick<int64_t>({0, 4, 17, 80});
    }
    if (shape.tree && shape.causal && q.key_ends == nullptr && q.first_key_end > 0)
      add_tree(q, own, keys);
    if (shape.positions) {
      for (int64_t row = 0; row < q.num_rows; ++row)
        own.row_positions.host.push_back(static_cast<int32_t>(random.between(0, 300)));
      for (int64_t key = 0; key < keys; ++key)
        own.key_positions.host.push_back(static_cast<int32_t>(random.between(0, 300)));
      q.row_positions = own.row_positions.host.data(),
      q.key_positions = own.key_positions.host.data();
      if (keys == 0) q.key_positions = nullptr;
    }
    if (shape.row_map) {
      own.map.host.resize(static_cast<size_t>(q.num_rows));
      std::iota(own.map.host.begin(), own.map.host.end(), static_cast<int32_t>(tokens));
      std::shuffle(own.map.host.begin(), own.map.host.end(), random.engine);
      q.row_map = own.map.host.data();
      q.row_begin = -1000000;
    }
    tokens += q.num_rows;
    sequences.push_back(q);
  }

  // Rows are the newest nodes of a random tree: a row sees itself and its ancestors.
  void add_tree(AttnSequence& q, SequenceArrays& own, int64_t keys) {
    q.tree_begin = random.between(std::max<int64_t>(0, keys - q.num_rows - 70), keys - q.num_rows);
    const int64_t nodes = keys - q.tree_begin;
    q.tree_words = (nodes + 63) / 64;
    std::vector<int64_t> parents;
    for (int64_t node = 0; node < nodes; ++node) parents.push_back(random.between(-1, node - 1));
    own.tree.host.resize(static_cast<size_t>(q.num_rows * q.tree_words), 0);
    for (int64_t row = 0; row < q.num_rows; ++row) {
      uint64_t* words = own.tree.host.data() + row * q.tree_words;
      for (int64_t node = nodes - q.num_rows + row; node >= 0;
           node = parents[static_cast<size_t>(node)])
        words[node / 64] |= uint64_t{1} << node % 64;
      for (int64_t node = nodes - q.num_rows + row + 1; node < nodes; ++node)
        // Beyond the row's end: of no matter
        words[node / 64] |= uint64_t{random.chance(0.5)} << node % 64;
    }
    q.tree_mask = own.tree.host.data();
  }

  // Rows of the pool that no row of the batch sees stay 0xff: NaN. Their pages, where nobody sees
  // any of them, are dropped.
  void add_pool() {
    const int64_t size = shape.page_size;
    int64_t pages = 3;
    for (size_t s = 0; s < sequences.size(); ++s) pages += (max_keys(s) + size - 1) / size;
    std::vector<int32_t> order(static_cast<size_t>(pages));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random.engine);
    k.make(random, shape, pages, shape.k_dim);
    v.make(random, shape, pages, shape.v_dim);
    size_t next = 0;
    for (size_t s = 0; s < sequences.size(); ++s) {
      std::vector<int32_t>& table = arrays[s]->pages.host;
      for (int64_t first = 0; first < max_keys(s); first += size) {
        bool used = false;
        for (int64_t key = first; key < std::min(first + size, max_keys(s)); ++key) {
          bool seen = false;
          for (int64_t row = 0; row < sequences[s].num_rows && !seen; ++row)
            seen = sees(s, row, key);
          used = used || seen;
          for (int64_t head = 0; head < shape.kv_heads && seen; ++head) {
            k.write(random, order[next], head, key - first);
            v.write(random, order[next], head, key - first);
          }
          if (!seen && sequences[s].key_positions != nullptr)
            arrays[s]->key_positions.host[static_cast<size_t>(key)] = INT32_MIN / 2;
        }
        table.push_back(used ? order[next] : -1);
        ++next;
      }
      for (int i = 0; i < 5; ++i) table.push_back(0x7f7f7f7f);  // behind the last page
      sequences[s].pages = table.data();
    }
  }

  void add_query() {
    const int64_t element = kernels::dtype_bytes(shape.q_type);
    const int64_t head_stride =
        (shape.k_dim * element + 15) / 16 * 16 + random.pick<int64_t>({0, 16});
    params.q = {nullptr, head_stride * num_q_heads + random.pick<int64_t>({0, 32}), head_stride,
                shape.q_type};
    q.host.assign(static_cast<size_t>(tokens * params.q.token_stride), std::byte{0xff});
    for (int64_t t = 0; t < tokens; ++t)
      for (int64_t h = 0; h < num_q_heads; ++h)
        for (int64_t d = 0; d < shape.k_dim; ++d)
          kernels::reference::write_element(
              q.host.data() + t * params.q.token_stride + h * head_stride, shape.q_type, d,
              random.normal());
    if (!shape.rotation) return;
    const int32_t dim = shape.k_dim;
    const auto rotary = random.pick<int32_t>({dim, dim / 2, 16, 6});
    kernels::Rotation rotation{};
    rotation.rotary_dim = rotary;
    rotation.interleaved = random.chance(0.4) ? 1 : 0;
    rotation.begin = random.pick<int32_t>({0, dim - rotary, (dim - rotary) / 2});
    for (int64_t i = 0; i < tokens * (rotary / 2); ++i) {
      const double angle = 10 * random.normal();
      cos.host.push_back(static_cast<float>(std::cos(angle)));
      sin.host.push_back(static_cast<float>(std::sin(angle)));
      sink_cos.host.push_back(static_cast<float>(std::cos(3 * angle)));
      sink_sin.host.push_back(static_cast<float>(std::sin(3 * angle)));
    }
    params.q_rotation = params.sink_q_rotation = rotation;
    params.q_rotation.cos = cos.host.data(), params.q_rotation.sin = sin.host.data();
    params.sink_q_rotation.cos = sink_cos.host.data(),
    params.sink_q_rotation.sin = sink_sin.host.data();
  }

  void add_rules() {
    params.q_scale = static_cast<float>(kLog2E / std::sqrt(shape.k_dim));
    if (shape.softcap) {
      params.q_scale = static_cast<float>(1 / std::sqrt(shape.k_dim)) / 3.0f;
      params.softcap = 3.0f * kLog2E;
    }
    for (int32_t h = 0; h < num_q_heads && shape.sinks; ++h)
      sinks.host.push_back(h % 5 == 4 ? -std::numeric_limits<float>::infinity()
                                      : static_cast<float>(2 * random.normal()));
    for (int32_t h = 0; h < num_q_heads && shape.alibi; ++h)
      alibi.host.push_back(static_cast<float>(std::exp2(-random.between(2, 8))));
    if (!shape.bias) return;
    int64_t columns = 1;
    for (size_t s = 0; s < sequences.size(); ++s)
      columns = std::max(columns, max_keys(s) + sequences[s].key_position);
    const bool per_head = random.chance(0.5);
    bias.host.resize(static_cast<size_t>((per_head ? num_q_heads : 1) * tokens * columns));
    for (float& b : bias.host)
      b = shape.hidden_by_bias && random.chance(0.3) ? -std::numeric_limits<float>::infinity()
                                                     : static_cast<float>(random.normal());
    params.bias_token_stride = columns, params.bias_head_stride = per_head ? tokens * columns : 0;
    if (shape.hidden_by_bias) hide_first_keys();
  }

  // Key 0 of every sequence is hidden from all rows by the bias, and is NaN.
  void hide_first_keys() {
    for (size_t s = 0; s < sequences.size(); ++s) {
      const int32_t page = sequences[s].pages[0];
      if (max_keys(s) == 0 || page < 0) continue;
      for (int64_t head = 0; head < num_q_heads; ++head)
        for (int64_t row = 0; row < sequences[s].num_rows; ++row) {
          const int64_t packed = sequences[s].row_map != nullptr ? sequences[s].row_map[row]
                                                                 : sequences[s].row_begin + row;
          bias.host[static_cast<size_t>(
              head * params.bias_head_stride + packed * params.bias_token_stride +
              sequences[s].key_position)] = -std::numeric_limits<float>::infinity();
        }
      for (int64_t head = 0; head < shape.kv_heads; ++head)
        for (TwinPool* pool : {&k, &v})
          std::fill_n(pool->bytes.host.begin() + page * pool->stored.page_stride +
                          head * pool->stored.head_stride,
                      row_bytes(pool->element, pool->dim), std::byte{0xff});
    }
  }

  void make_host_params() {
    params.k = k.plain, params.v = v.plain;
    params.page_size = shape.page_size;
    params.num_q_heads = num_q_heads, params.num_kv_heads = shape.kv_heads;
    params.k_dim = shape.k_dim, params.v_dim = shape.v_dim;
    params.causal = shape.causal ? 1 : 0;
    const int64_t element = kernels::dtype_bytes(shape.out_type);
    const int64_t head_stride = (shape.v_dim + random.pick<int64_t>({0, 0, 3})) * element;
    params.out = {nullptr, head_stride * num_q_heads, head_stride, shape.out_type};
    out.host.assign(static_cast<size_t>(tokens * params.out.token_stride), std::byte{0xff});
    lse.host.assign(static_cast<size_t>(tokens * num_q_heads),
                    std::numeric_limits<float>::quiet_NaN());
    params.lse_token_stride = num_q_heads;
  }
};

}  // namespace kvc::cuda::test
