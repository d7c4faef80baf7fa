#include "tools/demo/contiguous_store.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

namespace kvc::demo {
namespace {

// With a group of 4 query heads: 64 rows share each block of keys
constexpr int64_t kTileTokens = 16;
constexpr int64_t kBlockKeys = 128;
constexpr int64_t kLargestHeadDim = 256;

}  // namespace

ContiguousStore::ContiguousStore(const AttentionShape& shape, int64_t max_length, int max_sequences,
                                 llm::WorkerPool& pool, const llm::BlockKernels& kernels)
    : shape_(shape),
      max_length_((max_length + kBlockKeys - 1) / kBlockKeys * kBlockKeys),
      slot_floats_(2 * int64_t{shape.layers} * shape.kv_heads * shape.head_dim * max_length_),
      max_sequences_(static_cast<size_t>(max_sequences)),
      pool_(pool),
      kernels_(kernels) {
  const int64_t half = shape_.head_dim / 2;
  const kvc_rope& rope = shape_.rope;
  cosines_.resize(static_cast<size_t>(max_length_ * half));
  sines_.resize(cosines_.size());
  for (int64_t position = 0; position < max_length_; ++position) {
    for (int64_t i = 0; i < half; ++i) {
      const double exponent = -2.0 * static_cast<double>(i) / shape_.head_dim;
      double angle = static_cast<double>(position) * std::pow(rope.theta, exponent);
      if (rope.scale != 0) angle *= rope.scale;
      if (rope.num_freq_factors > 0) angle /= rope.freq_factors[i];
      cosines_[static_cast<size_t>(position * half + i)] = static_cast<float>(std::cos(angle));
      sines_[static_cast<size_t>(position * half + i)] = static_cast<float>(std::sin(angle));
    }
  }
  const int64_t rows = kTileTokens * (shape_.q_heads / shape_.kv_heads);
  scratch_.resize(static_cast<size_t>(pool_.size()));
  for (Scratch& s : scratch_) {
    s.queries.resize(static_cast<size_t>(rows * shape_.head_dim));
    s.accumulated.resize(s.queries.size());
    s.scores.resize(static_cast<size_t>(rows * kBlockKeys));
    s.row_max.resize(static_cast<size_t>(rows));
    s.row_sum.resize(static_cast<size_t>(rows));
    s.visible.resize(static_cast<size_t>(rows));
  }
}

bool ContiguousStore::add(int sequence) {
  if (slots_.size() >= max_sequences_) return false;
  slots_[sequence].data = std::make_unique<float[]>(static_cast<size_t>(slot_floats_));
  return true;
}

void ContiguousStore::fork(int, int, int64_t) {
  throw std::logic_error("contiguous buffers cannot be shared");
}

void ContiguousStore::remove(int sequence) { slots_.erase(sequence); }

bool ContiguousStore::begin(std::span<const BatchItem> batch) {
  batch_.assign(batch.begin(), batch.end());
  tiles_.clear();
  int64_t batch_row = 0;
  for (const BatchItem& item : batch_) {
    Slot& slot = slots_.at(item.sequence);
    if (slot.length + item.count > max_length_)
      throw std::logic_error("a request is longer than its buffer");
    for (int64_t begin = 0; begin < item.count; begin += kTileTokens) {
      const int64_t tokens = std::min(kTileTokens, item.count - begin);
      for (int head = 0; head < shape_.kv_heads; ++head) {
        tiles_.push_back({&slot, slot.length + begin, batch_row + begin, tokens, head});
      }
    }
    batch_row += item.count;
  }
  return true;
}

void ContiguousStore::attention(int layer, const float* qkv, int64_t stride, float* out) {
  const auto tiles = static_cast<int64_t>(tiles_.size());
  pool_.for_each(tiles, [&](int64_t t, int32_t) {
    append(layer, qkv, stride, tiles_[static_cast<size_t>(t)]);
  });
  pool_.for_each(tiles, [&](int64_t t, int32_t worker) {
    // The last tiles see the most keys: first come, so that no thread is left with a long one at
    // the end.
    attend(layer, qkv, stride, out, tiles_[static_cast<size_t>(tiles - 1 - t)],
           scratch_[static_cast<size_t>(worker)]);
  });
}

void ContiguousStore::end() {
  for (const BatchItem& item : batch_) slots_.at(item.sequence).length += item.count;
}

MemoryUse ContiguousStore::memory() const {
  MemoryUse use;
  for (const auto& [sequence, slot] : slots_) {
    use.reserved_bytes += slot_bytes();
    use.used_bytes +=
        slot_bytes() / static_cast<uint64_t>(max_length_) * static_cast<uint64_t>(slot.length);
  }
  return use;
}

float* ContiguousStore::keys(const Slot& slot, int layer, int kv_head) const {
  return slot.data.get() +
         (int64_t{layer} * shape_.kv_heads + kv_head) * shape_.head_dim * max_length_;
}

float* ContiguousStore::values(const Slot& slot, int layer, int kv_head) const {
  return keys(slot, layer, kv_head) + slot_floats_ / 2;
}

// Rotary embedding on the pairs (i, i + dim/2), or of neighbours.
void ContiguousStore::rotate(const float* in, int64_t position, float scale, float* out) const {
  const int64_t half = shape_.head_dim / 2;
  const float* cosine = cosines_.data() + position * half;
  const float* sine = sines_.data() + position * half;
  const bool interleaved = shape_.rope.style == KVC_ROPE_INTERLEAVED;
  const int64_t step = interleaved ? 2 : 1, distance = interleaved ? 1 : half;
  for (int64_t i = 0; i < half; ++i) {
    const float low = in[i * step];
    const float high = in[i * step + distance];
    out[i * step] = (low * cosine[i] - high * sine[i]) * scale;
    out[i * step + distance] = (high * cosine[i] + low * sine[i]) * scale;
  }
}

void ContiguousStore::append(int layer, const float* qkv, int64_t stride, const Tile& tile) {
  const int64_t dim = shape_.head_dim;
  float* k_out = keys(*tile.slot, layer, tile.kv_head);
  float* v_out = values(*tile.slot, layer, tile.kv_head);
  float rotated[kLargestHeadDim];
  for (int64_t t = 0; t < tile.tokens; ++t) {
    const float* row = qkv + (tile.batch_row + t) * stride;
    const float* k = row + (shape_.q_heads + tile.kv_head) * dim;
    const float* v = k + shape_.kv_heads * dim;
    const int64_t position = tile.position + t;
    rotate(k, position, 1.0f, rotated);
    for (int64_t i = 0; i < dim; ++i) k_out[i * max_length_ + position] = rotated[i];
    std::copy_n(v, dim, v_out + position * dim);
  }
}

void ContiguousStore::attend(int layer, const float* qkv, int64_t stride, float* out,
                             const Tile& tile, Scratch& s) {
  const int64_t dim = shape_.head_dim;
  const int64_t group = shape_.q_heads / shape_.kv_heads;
  const int64_t rows = tile.tokens * group;
  const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
  for (int64_t t = 0; t < tile.tokens; ++t) {
    const float* q = qkv + (tile.batch_row + t) * stride + tile.kv_head * group * dim;
    for (int64_t g = 0; g < group; ++g) {
      rotate(q + g * dim, tile.position + t, scale, s.queries.data() + (t * group + g) * dim);
    }
  }
  std::fill_n(s.row_max.begin(), rows, -std::numeric_limits<float>::infinity());
  std::fill_n(s.row_sum.begin(), rows, 0.0f);
  std::fill_n(s.accumulated.begin(), rows * dim, 0.0f);

  const float* k = keys(*tile.slot, layer, tile.kv_head);
  const float* v = values(*tile.slot, layer, tile.kv_head);
  const int64_t num_keys = tile.position + tile.tokens;
  const int64_t panel = kernels_.panel;
  for (int64_t begin = 0; begin < num_keys; begin += kBlockKeys) {
    const int64_t count = std::min(kBlockKeys, num_keys - begin);
    // The buffer's own slots, masked below
    const int64_t padded = (count + panel - 1) / panel * panel;
    kernels_.multiply({rows, padded, dim, s.queries.data(), dim, k + begin, max_length_, panel,
                       s.scores.data(), kBlockKeys, false});
    for (int64_t row = 0; row < rows; ++row) {
      s.visible[static_cast<size_t>(row)] = tile.position + row / group + 1 - begin;
    }
    kernels_.softmax({rows, padded, s.scores.data(), kBlockKeys, s.visible.data(), s.row_max.data(),
                      s.row_sum.data(), s.accumulated.data(), dim});
    kernels_.multiply({rows, dim, count, s.scores.data(), kBlockKeys, v + begin * dim, dim, panel,
                       s.accumulated.data(), dim, true});
  }
  for (int64_t row = 0; row < rows; ++row) {
    const float inverse = 1.0f / s.row_sum[static_cast<size_t>(row)];
    const int64_t head = tile.kv_head * group + row % group;
    float* o = out + (tile.batch_row + row / group) * shape_.out_width() + head * dim;
    for (int64_t i = 0; i < dim; ++i)
      o[i] = s.accumulated[static_cast<size_t>(row * dim + i)] * inverse;
  }
}

}  // namespace kvc::demo
