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
int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

ContiguousStore::ContiguousStore(const llm::Shape& shape, int64_t max_length, int max_sequences,
                                 llm::WorkerPool& pool, const llm::BlockKernels& kernels)
    : shape_(shape),
      max_length_(round_up(max_length, kBlockKeys)),
      padded_dim_(round_up(shape.head_dim, kernels.panel)),
      slot_floats_(static_cast<int64_t>(shape.layers.size()) * shape.kv_heads *
                   (shape.head_dim + padded_dim_) * max_length_),
      max_sequences_(static_cast<size_t>(max_sequences)),
      pool_(pool),
      kernels_(kernels) {
  for (const kvc_rope& rope : shape_.ropes) rotations_.push_back(make_rotation(rope));
  const int64_t rows = kTileTokens * (shape_.q_heads / shape_.kv_heads);
  scratch_.resize(static_cast<size_t>(pool_.size()));
  for (Scratch& s : scratch_) {
    s.queries.resize(static_cast<size_t>(rows * shape_.head_dim));
    s.accumulated.resize(static_cast<size_t>(rows * padded_dim_));
    s.scores.resize(static_cast<size_t>(rows * kBlockKeys));
    s.row_max.resize(static_cast<size_t>(rows));
    s.row_sum.resize(static_cast<size_t>(rows));
    s.visible.resize(static_cast<size_t>(rows));
    s.rotated.resize(static_cast<size_t>(shape_.head_dim));
  }
}

ContiguousStore::Rotation ContiguousStore::make_rotation(const kvc_rope& rope) const {
  if (rope.scaling != KVC_ROPE_SCALING_NONE)
    throw std::runtime_error(
        "the model scales its RoPE by YaRN, which row 1 of the demo does not have; `kvcache chat` "
        "does");
  Rotation rotation;
  const int64_t dim = rope.rotary_dim > 0 ? rope.rotary_dim : shape_.head_dim;
  rotation.is_interleaved = rope.style == KVC_ROPE_INTERLEAVED;
  rotation.pairs = dim / 2;
  for (int64_t position = 0; position < max_length_; ++position) {
    for (int64_t i = 0; i < rotation.pairs; ++i) {
      const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(dim);
      double angle = static_cast<double>(position) * std::pow(rope.theta, exponent);
      if (rope.scale != 0) angle *= rope.scale;
      if (rope.num_freq_factors > 0) angle /= static_cast<double>(rope.freq_factors[i]);
      rotation.cosines.push_back(static_cast<float>(std::cos(angle)));
      rotation.sines.push_back(static_cast<float>(std::sin(angle)));
    }
  }
  return rotation;
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

void ContiguousStore::attend(int32_t layer, const float* qkv, int64_t stride, float* out) {
  const auto tiles = static_cast<int64_t>(tiles_.size());
  pool_.for_each(tiles, [&](int64_t t, int32_t worker) {
    append(layer, qkv, stride, tiles_[static_cast<size_t>(t)],
           scratch_[static_cast<size_t>(worker)]);
  });
  pool_.for_each(tiles, [&](int64_t t, int32_t worker) {
    // The last tiles see the most keys: first come, so that no thread is left with a long one at
    // the end.
    attend_tile(layer, qkv, stride, out, tiles_[static_cast<size_t>(tiles - 1 - t)],
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

float* ContiguousStore::keys(const Slot& slot, int32_t layer, int kv_head) const {
  return slot.data.get() + plane(layer, kv_head) * shape_.head_dim * max_length_;
}

float* ContiguousStore::values(const Slot& slot, int32_t layer, int kv_head) const {
  const auto layers = static_cast<int32_t>(shape_.layers.size());
  return keys(slot, layers, 0) + plane(layer, kv_head) * padded_dim_ * max_length_;
}

// Pairs are (i, i + pairs), or neighbours. What is behind the pairs is not rotated.
void ContiguousStore::rotate(const Rotation& rotation, const float* in, int64_t position,
                             float scale, float* out) const {
  const int64_t pairs = rotation.pairs;
  const float* cosine = rotation.cosines.data() + position * pairs;
  const float* sine = rotation.sines.data() + position * pairs;
  const int64_t step = rotation.is_interleaved ? 2 : 1;
  const int64_t distance = rotation.is_interleaved ? 1 : pairs;
  for (int64_t i = 0; i < pairs; ++i) {
    const float low = in[i * step];
    const float high = in[i * step + distance];
    out[i * step] = (low * cosine[i] - high * sine[i]) * scale;
    out[i * step + distance] = (high * cosine[i] + low * sine[i]) * scale;
  }
  for (int64_t i = 2 * pairs; i < shape_.head_dim; ++i) out[i] = in[i] * scale;
}

void ContiguousStore::append(int32_t layer, const float* qkv, int64_t stride, const Tile& tile,
                             Scratch& s) {
  const int64_t dim = shape_.head_dim;
  const Rotation& rotation = rotations_[shape_.layers[static_cast<size_t>(layer)].rope];
  float* k_out = keys(*tile.slot, layer, tile.kv_head);
  float* v_out = values(*tile.slot, layer, tile.kv_head);
  for (int64_t t = 0; t < tile.tokens; ++t) {
    const float* row = qkv + (tile.batch_row + t) * stride;
    const float* k = row + (shape_.q_heads + tile.kv_head) * dim;
    const float* v = k + shape_.kv_heads * dim;
    const int64_t position = tile.position + t;
    rotate(rotation, k, position, 1.0f, s.rotated.data());
    for (int64_t i = 0; i < dim; ++i)
      k_out[i * max_length_ + position] = s.rotated[static_cast<size_t>(i)];
    std::copy_n(v, dim, v_out + position * padded_dim_);
  }
}

void ContiguousStore::attend_tile(int32_t layer, const float* qkv, int64_t stride, float* out,
                                  const Tile& tile, Scratch& s) {
  const llm::LayerShape& of = shape_.layers[static_cast<size_t>(layer)];
  const int64_t dim = shape_.head_dim;
  const int64_t group = shape_.q_heads / shape_.kv_heads;
  const int64_t rows = tile.tokens * group;
  const float scale =
      static_cast<float>(shape_.attention_scale != 0 ? shape_.attention_scale
                                                     : 1.0 / std::sqrt(static_cast<double>(dim)));
  for (int64_t t = 0; t < tile.tokens; ++t) {
    const float* q = qkv + (tile.batch_row + t) * stride + tile.kv_head * group * dim;
    for (int64_t g = 0; g < group; ++g) {
      rotate(rotations_[of.rope], q + g * dim, tile.position + t, scale,
             s.queries.data() + (t * group + g) * dim);
    }
  }
  constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
  std::fill_n(s.row_max.begin(), rows, kMinusInfinity);
  std::fill_n(s.row_sum.begin(), rows, 0.0f);
  std::fill_n(s.accumulated.begin(), rows * padded_dim_, 0.0f);

  const float* k = keys(*tile.slot, layer, tile.kv_head);
  const float* v = values(*tile.slot, layer, tile.kv_head);
  const int64_t num_keys = tile.position + tile.tokens;
  const int64_t panel = kernels_.panel;
  const auto first_key = [&](int64_t position) {
    return of.window > 0 ? std::max<int64_t>(0, position + 1 - of.window) : 0;
  };
  for (int64_t begin = first_key(tile.position) / kBlockKeys * kBlockKeys; begin < num_keys;
       begin += kBlockKeys) {
    const int64_t count = std::min(kBlockKeys, num_keys - begin);
    // The buffer's own slots, masked below
    const int64_t padded = round_up(count, panel);
    kernels_.multiply({rows, padded, dim, s.queries.data(), dim, k + begin, max_length_, panel,
                       s.scores.data(), kBlockKeys, false});
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t position = tile.position + row / group;
      const int64_t hidden = first_key(position) - begin;  // Keys of the block before the window.
      s.visible[static_cast<size_t>(row)] = hidden >= count ? 0 : position + 1 - begin;
      if (hidden > 0 && hidden < count)
        std::fill_n(s.scores.begin() + row * kBlockKeys, hidden, kMinusInfinity);
    }
    kernels_.softmax({rows, padded, s.scores.data(), kBlockKeys, s.visible.data(), s.row_max.data(),
                      s.row_sum.data(), s.accumulated.data(), padded_dim_});
    kernels_.multiply({rows, padded_dim_, count, s.scores.data(), kBlockKeys,
                       v + begin * padded_dim_, padded_dim_, panel, s.accumulated.data(),
                       padded_dim_, true});
  }
  for (int64_t row = 0; row < rows; ++row) {
    const float inverse = 1.0f / s.row_sum[static_cast<size_t>(row)];
    const int64_t head = tile.kv_head * group + row % group;
    float* o = out + (tile.batch_row + row / group) * shape_.q_width() + head * dim;
    for (int64_t i = 0; i < dim; ++i)
      o[i] = s.accumulated[static_cast<size_t>(row * padded_dim_ + i)] * inverse;
  }
}

}  // namespace kvc::demo
