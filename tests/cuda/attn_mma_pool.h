// What a random attention problem is to be like, and its pools: as they are stored and in float32
// for the reference.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "kernels/cuda/ptx/elements.h"
#include "kernels/reference/elements.h"
#include "tests/cuda/device_memory.h"

namespace kvc::cuda::test {

using kernels::DType;

class AttnRandom {
 public:
  explicit AttnRandom(uint64_t seed) : engine(seed) {}
  int64_t between(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(engine);
  }
  bool chance(double p) { return std::bernoulli_distribution(p)(engine); }
  double normal() { return std::normal_distribution<double>()(engine); }
  template <typename T>
  T pick(const std::vector<T>& choices) {
    return choices[static_cast<size_t>(between(0, static_cast<int64_t>(choices.size()) - 1))];
  }
  std::mt19937_64 engine;
};

struct AttnProblemShape {
  int32_t group = 4, kv_heads = 2, k_dim = 64, v_dim = 64, page_size = 16;
  bool causal = true;
  Element stored = Element::kBF16;
  bool scales_per_row = false;  // 8-bit
  DType q_type = DType::kBF16, out_type = DType::kF32;
  int64_t window_tokens = 0;         // with `window`; 0: random
  std::vector<int64_t> rows = {1};   // of each sequence
  std::vector<int64_t> keys = {17};  // that its last row sees
  // Features.
  bool window = false, spans = false, tree = false, row_map = false, positions = false;
  bool rotation = false, softcap = false, alibi = false, bias = false, hidden_by_bias = false,
       sinks = false;
};

// An array on the host and its copy on the device.
template <typename T>
struct Twin {
  std::vector<T> host;
  std::unique_ptr<testing::DeviceArray<T>> device;
  T* on_device() {
    if (host.empty()) return nullptr;
    if (device == nullptr) device = std::make_unique<testing::DeviceArray<T>>(host);
    return device->data();
  }
};

// One half of a pool: as it is stored, and in float32 for the reference.
struct TwinPool {
  Twin<std::byte> bytes;
  Twin<float> scales;
  std::vector<float> values;
  kernels::PagedRows stored{}, plain{};
  RowStorage storage{};
  int32_t dim = 0;
  Element element{};

  void make(AttnRandom& random, const AttnProblemShape& shape, int64_t pages, int32_t row_dim) {
    dim = row_dim, element = shape.stored;
    const int64_t heads = shape.kv_heads, size = shape.page_size;
    const int64_t row = row_bytes(element, dim) + random.pick<int64_t>({0, 0, 16});
    const bool token_major = random.chance(0.4);
    const int64_t page = heads * size * row + random.pick<int64_t>({0, 0, 48});
    bytes.host.assign(static_cast<size_t>(pages * page), std::byte{0xff});
    stored = {nullptr, page, token_major ? row : size * row, token_major ? heads * row : row,
              DType::kF32};
    if (element_bits(element) == 16)
      stored.dtype = element == Element::kF16 ? DType::kF16 : DType::kBF16;
    values.assign(static_cast<size_t>(pages * heads * size * dim),
                  std::numeric_limits<float>::quiet_NaN());
    plain = {reinterpret_cast<std::byte*>(values.data()), heads * size * dim * 4, size * dim * 4,
             dim * 4, DType::kF32};
    if (element_bits(element) == 16) return;
    storage.quant = shape.scales_per_row ? Quant::kPerTokenHead : Quant::kPerTensor;
    storage.type = static_cast<Stored>(static_cast<int32_t>(element) - 3);
    storage.scale = 0.037f;
    if (!shape.scales_per_row) return;
    scales.host.assign(static_cast<size_t>(pages * heads * size),
                       std::numeric_limits<float>::quiet_NaN());
    storage.scale_page_stride = heads * size * 4;
    storage.scale_head_stride = size * 4;
    storage.scale_token_stride = 4;
  }
  void write(AttnRandom& random, int64_t page, int64_t head, int64_t offset) {
    std::byte* to = bytes.host.data() + page * stored.page_stride + head * stored.head_stride +
                    offset * stored.token_stride;
    auto* plain_row = reinterpret_cast<float*>(row_address(plain, page, head, offset));
    float scale = storage.scale;
    if (!scales.host.empty()) {
      scale = static_cast<float>(std::exp2(random.between(-9, 3))) * 0.01f;
      scales.host[static_cast<size_t>((page * stored_heads() + head) * page_size() + offset)] =
          scale;
    }
    for (int32_t d = 0; d < dim; ++d) {
      const double x = random.normal();
      if (element_bits(element) == 16) {
        kernels::reference::write_element(to, stored.dtype, d, x);
        plain_row[d] = static_cast<float>(kernels::reference::read_element(to, stored.dtype, d));
      } else {
        const uint32_t code = encode(element, static_cast<float>(x) / 0.037f);
        to[d] = static_cast<std::byte>(code);
        plain_row[d] = decode(element, code) * scale;
      }
    }
  }
  // Inf in the stored row and in the reference's.
  void write_infinity(int64_t page, int64_t head, int64_t offset, int32_t d) {
    std::byte* to = bytes.host.data() + page * stored.page_stride + head * stored.head_stride +
                    offset * stored.token_stride;
    if (element_bits(element) == 16)
      kernels::reference::write_element(to, stored.dtype, d,
                                        std::numeric_limits<double>::infinity());
    else
      to[d] = std::byte{0xff};
    reinterpret_cast<float*>(row_address(plain, page, head, offset))[d] =
        std::numeric_limits<float>::infinity();
  }
  int64_t page_size() const { return plain.head_stride / plain.token_stride; }
  int64_t stored_heads() const { return plain.page_stride / plain.head_stride; }
  kernels::PagedRows on_device() {
    kernels::PagedRows rows = stored;
    rows.base = bytes.on_device();
    return rows;
  }
  RowStorage storage_on_device() {
    RowStorage on_device = storage;
    on_device.scales = reinterpret_cast<std::byte*>(scales.on_device());
    return on_device;
  }
};

}  // namespace kvc::cuda::test
