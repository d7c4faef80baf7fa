// A model that runs on a cache: q, k and v of a token depend on its sequence, position and layer
// alone, so that any two ways of feeding the same tokens must give the same outputs.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "kvcache.h"
#include "tests/model/host_tensor.h"

namespace kvc::test {

struct DecoderShape {
  Elem storage = Elem::kBF16;
  int32_t num_layers = 2;
  int32_t q_heads = 6;
  int32_t kv_heads = 2;
  int32_t k_dim = 80;
  int32_t v_dim = 80;
  int32_t page_size = 16;
  int64_t num_pages = 256;
  kvc_rope_mode rope = KVC_ROPE_ON_APPEND;
  int64_t window = 0, sink = 0;  // of every sequence
  kvc_cpu_isa isa = KVC_CPU_ISA_AUTO;
  int32_t num_threads = 1;
  const kvc_executor* executor = nullptr;
};

// Outputs of one token: all layers, heads and dims, as bits.
using TokenOutput = std::vector<std::byte>;

class Decoder {
 public:
  explicit Decoder(const DecoderShape& shape) : shape_(shape) {
    kvc_rope rope{};
    rope.struct_size = sizeof rope;
    rope.mode = shape.rope;
    std::vector<kvc_layer> layers(static_cast<size_t>(shape.num_layers));
    for (kvc_layer& layer : layers) {
      layer.struct_size = sizeof layer;
      layer.num_q_heads = shape.q_heads;
      layer.num_kv_heads = shape.kv_heads;
      layer.k_dim = shape.k_dim;
      layer.v_dim = shape.v_dim;
      layer.k_dtype = dl_type(shape.storage);
      layer.rope = &rope;
    }
    kvc_config config{};
    config.struct_size = sizeof config;
    config.page_size = shape.page_size;
    config.num_layers = shape.num_layers;
    config.layers = layers.data();
    config.num_pages = shape.num_pages;
    config.cpu_isa = shape.isa;
    config.num_threads = shape.executor != nullptr ? 0 : shape.num_threads;
    config.executor = shape.executor;
    kvc_error error{};
    kvc_plan* plan = nullptr;
    EXPECT_EQ(kvc_plan_create(&config, &plan, &error), KVC_OK) << error.message;
    if (plan == nullptr) return;
    EXPECT_EQ(kvc_cache_create(plan, &cache_, &error), KVC_OK) << error.message;
    kvc_plan_destroy(plan);
  }
  ~Decoder() { kvc_cache_destroy(cache_); }
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  kvc_cache* cache() const { return cache_; }

  // Appends so many tokens to each sequence (added when new) and returns the outputs in the order
  // of the packed rows.
  std::vector<TokenOutput> step(const std::vector<std::pair<kvc_seq, int64_t>>& batch,
                                uint64_t flags) {
    std::vector<kvc_seq> seqs;
    std::vector<int64_t> lengths;
    std::vector<std::pair<kvc_seq, int64_t>> rows;  // (sequence, position)
    for (const auto& [seq, append] : batch) {
      int64_t length = 0;
      if (kvc_seq_length(cache_, seq, &length, nullptr) == KVC_E_NOT_FOUND) {
        EXPECT_EQ(kvc_seq_add(cache_, seq, nullptr), KVC_OK);
        if (shape_.window != 0) {
          EXPECT_EQ(kvc_seq_set_window(cache_, seq, shape_.window, shape_.sink, nullptr), KVC_OK);
        }
      }
      seqs.push_back(seq);
      lengths.push_back(append);
      for (int64_t i = 0; i < append; ++i) rows.emplace_back(seq, length + i);
    }
    kvc_forward_desc desc{};
    desc.struct_size = sizeof desc;
    desc.num_seqs = seqs.size();
    desc.seqs = seqs.data();
    desc.append_lengths = lengths.data();
    kvc_forward* forward = nullptr;
    kvc_error error{};
    EXPECT_EQ(kvc_forward_begin(cache_, &desc, &forward, &error), KVC_OK) << error.message;
    if (forward == nullptr) return {};
    kvc_attn_opt opt{};
    opt.struct_size = sizeof opt;
    opt.flags = flags;
    const auto num_rows = static_cast<int64_t>(rows.size());
    std::vector<TokenOutput> outputs(rows.size());
    for (int32_t layer = 0; layer < shape_.num_layers; ++layer) {
      HostTensor q(Elem::kF32, {num_rows, shape_.q_heads, shape_.k_dim}),
          k(Elem::kF32, {num_rows, shape_.kv_heads, shape_.k_dim});
      HostTensor v(Elem::kF32, {num_rows, shape_.kv_heads, shape_.v_dim}),
          out(Elem::kF32, {num_rows, shape_.q_heads, shape_.v_dim});
      HostTensor lse(Elem::kF32, {num_rows, shape_.q_heads});
      for (int64_t row = 0; row < num_rows; ++row) {
        const auto& [seq, position] = rows[static_cast<size_t>(row)];
        Random random(static_cast<uint64_t>(seq * 1000003 + position * 31 + layer));
        fill_row(q, row, random);
        fill_row(k, row, random);
        fill_row(v, row, random);
      }
      EXPECT_EQ(kvc_attn(forward, layer, &opt, q.dl(), k.dl(), v.dl(), out.dl(), lse.dl(), &error),
                KVC_OK)
          << error.message;
      const int64_t out_bytes = int64_t{4} * shape_.q_heads * shape_.v_dim;
      for (int64_t row = 0; row < num_rows; ++row) {
        TokenOutput& output = outputs[static_cast<size_t>(row)];
        output.insert(output.end(), out.at(row), out.at(row) + out_bytes);
        output.insert(output.end(), lse.at(row), lse.at(row) + 4 * shape_.q_heads);
      }
    }
    EXPECT_EQ(kvc_forward_end(forward, nullptr), KVC_OK);
    return outputs;
  }

 private:
  static void fill_row(HostTensor& tensor, int64_t row, Random& random) {
    for (int64_t h = 0; h < tensor.size(1); ++h) {
      for (int64_t d = 0; d < tensor.size(2); ++d) {
        const auto value = static_cast<float>(random.symmetric());
        std::memcpy(tensor.at(row, h, d), &value, sizeof value);
      }
    }
  }

  DecoderShape shape_;
  kvc_cache* cache_ = nullptr;
};

}  // namespace kvc::test
