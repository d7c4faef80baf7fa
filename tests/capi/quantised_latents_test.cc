// Quantised rows that hold K and V (MLA latents, K = V layers): one scale per token and head serves
// both. Against attention written out in double.
#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "tests/capi/layers.h"
#include "tests/model/naive_quant.h"

namespace kvc::test {
namespace {

struct LatentShape {
  bool is_mla;
  int64_t q_heads, kv_heads, k_dim, v_dim;
};
constexpr LatentShape kShapes[] = {
    {true, 5, 1, 81, 65}, {true, 4, 1, 576, 512}, {false, 6, 3, 65, 65}, {false, 2, 1, 80, 80}};
constexpr NaiveStorage kStorages[] = {
    {Elem::kF32, Code::kInt8}, {Elem::kF32, Code::kE4M3}, {Elem::kF32, Code::kE5M2}};

kvc_layer layer_of(const LatentShape& shape, const NaiveStorage& storage) {
  kvc_layer layer = shape.is_mla ? mla_layer() : joint_layer();
  layer.num_q_heads = static_cast<int32_t>(shape.q_heads);
  if (shape.is_mla) {
    layer.latent_rank = static_cast<int32_t>(shape.v_dim);
    layer.latent_rope_dim = static_cast<int32_t>(shape.k_dim - shape.v_dim);
  } else {
    layer.num_kv_heads = static_cast<int32_t>(shape.kv_heads);
    layer.k_dim = static_cast<int32_t>(shape.k_dim);
  }
  layer.quant = KVC_QUANT_PER_TOKEN_HEAD;
  layer.k_dtype = dl_type(storage);
  return layer;
}

class LatentRows {
 public:
  LatentRows(LatentShape shape, const NaiveStorage& storage, int32_t page_size, kvc_cpu_isa isa)
      : shape_(shape), storage_(storage), net_({layer_of(shape, storage)}, 300) {
    net_.config.page_size = page_size;
    net_.config.cpu_isa = isa;
    net_.config.num_threads = 2;
    cache_ = std::make_unique<Cache>(net_.config);
    EXPECT_EQ(kvc_seq_add(cache_->get(), 1, nullptr), KVC_OK);
  }

  // Appends and compares rows of the cache and outputs with what double says.
  void step(int64_t count, double tolerance) {
    const auto before = static_cast<int64_t>(rows_.size());
    HostTensor q(Elem::kF32, {count, shape_.q_heads, shape_.k_dim}),
        k(Elem::kF32, {count, shape_.kv_heads, shape_.k_dim}),
        out(Elem::kF32, {count, shape_.q_heads, shape_.v_dim});
    q.fill_random(random_);
    k.fill_random(random_);
    for (int64_t t = 0; t < count; ++t) {
      std::vector<double> row;
      for (int64_t h = 0; h < shape_.kv_heads; ++h) {
        for (int64_t d = 0; d < shape_.k_dim; ++d) row.push_back(k.get(t, h, d));
      }
      rows_.push_back(stored_row(storage_, row, shape_.kv_heads));
    }
    ASSERT_EQ(cache_->begin({1}, {count}), KVC_OK);
    const kvc_attn_opt opt = scaled();
    kvc_error error{};
    ASSERT_EQ(
        kvc_attn(cache_->forward, 0, &opt, q.dl(), k.dl(), nullptr, out.dl(), nullptr, &error),
        KVC_OK)
        << error.message;
    cache_->end();
    HostTensor stored(Elem::kF32, {before + count, shape_.kv_heads, shape_.k_dim});
    ASSERT_EQ(kvc_debug_get_layer(cache_->get(), 1, 0, 0, before + count, stored.dl(), nullptr,
                                  nullptr, nullptr),
              KVC_OK);
    for (int64_t t = 0; t < before + count; ++t) {
      for (int64_t i = 0; i < shape_.kv_heads * shape_.k_dim; ++i)
        ASSERT_EQ(stored.get(t, i / shape_.k_dim, i % shape_.k_dim), row(t)[i]) << t << " " << i;
    }
    double error_sum = 0, size = 0;
    for (int64_t t = 0; t < count; ++t) {
      for (int64_t head = 0; head < shape_.q_heads; ++head) {
        const std::vector<double> want = attended(q, t, head, before + t + 1);
        for (int64_t d = 0; d < shape_.v_dim; ++d) {
          const double got = out.get(t, head, d), expected = want[static_cast<size_t>(d)];
          error_sum += (got - expected) * (got - expected);
          size += expected * expected;
        }
      }
    }
    EXPECT_LE(std::sqrt(error_sum), tolerance * std::sqrt(size));
  }

 private:
  const double* row(int64_t token) const { return rows_[static_cast<size_t>(token)].data(); }

  std::vector<double> attended(HostTensor& q, int64_t t, int64_t head, int64_t keys) {
    const int64_t begin = head / (shape_.q_heads / shape_.kv_heads) * shape_.k_dim;
    std::vector<double> scores, out(static_cast<size_t>(shape_.v_dim));
    double most = -HUGE_VAL, sum = 0;
    for (int64_t key = 0; key < keys; ++key) {
      double score = 0;
      for (int64_t d = 0; d < shape_.k_dim; ++d) score += q.get(t, head, d) * row(key)[begin + d];
      scores.push_back(score * static_cast<double>(kScale));
      most = std::max(most, scores.back());
    }
    for (const double score : scores) sum += std::exp(score - most);
    for (int64_t key = 0; key < keys; ++key) {
      const double weight = std::exp(scores[static_cast<size_t>(key)] - most) / sum;
      for (int64_t d = 0; d < shape_.v_dim; ++d)
        out[static_cast<size_t>(d)] += weight * row(key)[begin + d];
    }
    return out;
  }

  LatentShape shape_;
  NaiveStorage storage_;
  Net net_;
  std::unique_ptr<Cache> cache_;
  Random random_{7};
  std::vector<std::vector<double>> rows_;
};

TEST(QuantisedLatents, OneScalePerTokenServesKAndV) {
  kvc_device_caps caps{};
  caps.struct_size = sizeof caps;
  ASSERT_EQ(kvc_device_query({kDLCPU, 0}, &caps, nullptr), KVC_OK);
  for (kvc_cpu_isa isa = KVC_CPU_ISA_REFERENCE; isa <= KVC_CPU_ISA_AVX512_BF16; ++isa) {
    if ((caps.isas >> isa & 1) == 0) continue;
    // Dot products of words or of bfloat16, the scores being some 3 here.
    const double tolerance = isa == KVC_CPU_ISA_AVX512_BF16 ? 2e-2 : 2e-4;
    for (const LatentShape& shape : kShapes) {
      for (const NaiveStorage& storage : kStorages) {
        for (const int32_t page_size : {1, 16, 48}) {
          if (shape.k_dim == 576 && page_size != 16) continue;  // The oracle is slow.
          SCOPED_TRACE(testing::Message()
                       << "isa " << isa << " " << name_of(storage) << " " << shape.k_dim << ":"
                       << shape.v_dim << " pages of " << page_size);
          LatentRows rows(shape, storage, page_size, isa);
          for (const int64_t count : {1, 1, 70, 1, 3}) rows.step(count, tolerance);
          if (HasFailure()) return;
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvc::test
