#include "tools/llm/weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <string>

#include "tools/gguf/unpack.h"

namespace kvc::llm {
namespace {

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Empty where the system does not say.
std::optional<int64_t> available_bytes() {
  std::ifstream file("/proc/meminfo");
  for (std::string key; file >> key;) {
    if (key != "MemAvailable:") continue;
    int64_t kibibytes = 0;
    if (file >> kibibytes) return kibibytes * 1024;
  }
  return {};
}

class Loader {
 public:
  Loader(const gguf::File& file, const Shape& shape, const LoadOptions& options, WorkerPool& pool,
         const BlockKernels& kernels)
      : file_(file), shape_(shape), options_(options), pool_(pool), kernels_(kernels) {}

  Weights load() {
    Weights weights;
    weights.type = options_.type;
    weights.embedding = matrix("token_embd.weight", shape_.width, shape_.vocabulary);
    require_memory();
    weights.output_norm = vector("output_norm.weight", shape_.width);
    for (size_t i = 0; i < shape_.layers.size(); ++i) {
      weights.layers.push_back(layer("blk." + std::to_string(i) + "."));
      report(static_cast<double>(i + 1) / static_cast<double>(shape_.layers.size() + 1));
    }
    const char* head =
        file_.tensor("output.weight") != nullptr ? "output.weight" : "token_embd.weight";
    weights.head = pack({&matrix(head, shape_.width, shape_.vocabulary)});
    report(1);
    return weights;
  }

 private:
  void report(double done) const {
    if (options_.progress) options_.progress(done);
  }

  void require_memory() const {
    const Shape& s = shape_;
    const auto layers = static_cast<int64_t>(s.layers.size());
    const int64_t per_layer = s.width * (s.qkv_width() + s.q_width()) + 3 * s.width * s.ffn_width;
    const double needed = static_cast<double>(weight_bytes(options_.type)) *
                          static_cast<double>(layers * per_layer + s.width * s.vocabulary);
    const std::optional<int64_t> available = available_bytes();
    if (!available || needed <= static_cast<double>(*available)) return;
    const auto gib = [](double bytes) {
      return std::to_string(std::lround(bytes / (1 << 20))) + " MiB";
    };
    throw std::runtime_error(
        file_.path() + ": its weights take " + gib(needed) + ", and " +
        gib(static_cast<double>(*available)) + " of memory are available" +
        (options_.type == WeightType::kFloat32 ? "; bfloat16 takes half" : ""));
  }

  const gguf::Tensor& tensor(const std::string& name, const std::vector<int64_t>& shape) const {
    const gguf::Tensor* found = file_.tensor(name);
    if (found == nullptr) throw std::runtime_error(file_.path() + ": has no tensor " + name);
    if (found->shape != shape)
      throw std::runtime_error(file_.path() + ": tensor " + name + " has the shape " +
                               shape_text(found->shape) + ", expected " + shape_text(shape));
    return *found;
  }
  const gguf::Tensor& matrix(const std::string& name, int64_t depth, int64_t width) const {
    return tensor(name, {depth, width});
  }
  std::vector<float> vector(const std::string& name, int64_t count) const {
    const gguf::Tensor& found = tensor(name, {count});
    std::vector<float> values(static_cast<size_t>(count));
    gguf::unpack(found, 0, count, values.data());
    return values;
  }
  std::vector<float> vector_if(bool wanted, const std::string& name, int64_t count) const {
    return wanted ? vector(name, count) : std::vector<float>();
  }

  LayerWeights layer(const std::string& prefix) const {
    const Shape& s = shape_;
    LayerWeights out;
    out.attention_norm = vector(prefix + "attn_norm.weight", s.width);
    out.q_norm = vector_if(s.has_head_norms, prefix + "attn_q_norm.weight", s.head_dim);
    out.k_norm = vector_if(s.has_head_norms, prefix + "attn_k_norm.weight", s.head_dim);
    out.post_attention_norm =
        vector_if(s.has_post_norms, prefix + "post_attention_norm.weight", s.width);
    out.ffn_norm = vector(prefix + "ffn_norm.weight", s.width);
    out.post_ffn_norm = vector_if(s.has_post_norms, prefix + "post_ffw_norm.weight", s.width);
    out.qkv = pack({&matrix(prefix + "attn_q.weight", s.width, s.q_width()),
                    &matrix(prefix + "attn_k.weight", s.width, s.kv_width()),
                    &matrix(prefix + "attn_v.weight", s.width, s.kv_width())});
    if (file_.tensor(prefix + "attn_q.bias") != nullptr) {
      for (const char* part : {"attn_q.bias", "attn_k.bias", "attn_v.bias"}) {
        const bool is_q = part[5] == 'q';
        const std::vector<float> bias = vector(prefix + part, is_q ? s.q_width() : s.kv_width());
        out.qkv_bias.insert(out.qkv_bias.end(), bias.begin(), bias.end());
      }
    }
    out.out = pack({&matrix(prefix + "attn_output.weight", s.q_width(), s.width)});
    out.gate_up = pack({&matrix(prefix + "ffn_gate.weight", s.width, s.ffn_width),
                        &matrix(prefix + "ffn_up.weight", s.width, s.ffn_width)});
    out.down = pack({&matrix(prefix + "ffn_down.weight", s.ffn_width, s.width)});
    return out;
  }

  // Matrices of one depth side by side.
  PackedMatrix pack(const std::vector<const gguf::Tensor*>& parts) const {
    PackedMatrix out;
    out.type = options_.type;
    out.depth = parts[0]->shape[0];
    std::vector<std::pair<const gguf::Tensor*, int64_t>> columns;  // Rows of the file's tensors.
    for (const gguf::Tensor* part : parts) {
      for (int64_t row = 0; row < part->shape[1]; ++row) columns.emplace_back(part, row);
    }
    out.width = static_cast<int64_t>(columns.size());
    const int64_t panel = kernels_.panel, depth = out.depth;
    out.padded_width = round_up(out.width, panel);
    const auto elements = static_cast<size_t>(depth * out.padded_width);
    out.type == WeightType::kFloat32 ? out.floats.resize(elements) : out.halves.resize(elements);
    std::vector<std::vector<float>> scratch(static_cast<size_t>(pool_.size()));
    pool_.for_each(out.padded_width / panel, [&](int64_t p, int32_t worker) {
      std::vector<float>& rows = scratch[static_cast<size_t>(worker)];
      rows.assign(static_cast<size_t>(panel * depth), 0.0f);
      for (int64_t j = 0; j < panel && p * panel + j < out.width; ++j) {
        const auto& [tensor, row] = columns[static_cast<size_t>(p * panel + j)];
        gguf::unpack(*tensor, row * depth, depth, rows.data() + j * depth);
      }
      const int64_t first = p * panel * depth;
      for (int64_t k = 0; k < depth; ++k) {
        for (int64_t j = 0; j < panel; ++j) {
          const auto at = static_cast<size_t>(first + k * panel + j);
          const float value = rows[static_cast<size_t>(j * depth + k)];
          if (out.type == WeightType::kFloat32) {
            out.floats[at] = value;
          } else {
            out.halves[at] = to_bfloat16(value);
          }
        }
      }
    });
    return out;
  }

  const gguf::File& file_;
  const Shape& shape_;
  const LoadOptions& options_;
  WorkerPool& pool_;
  const BlockKernels& kernels_;
};

}  // namespace

uint16_t to_bfloat16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if (std::isnan(value)) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float from_bfloat16(uint16_t half) {
  const uint32_t bits = uint32_t{half} << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

int64_t Weights::bytes() const {
  int64_t elements = 0;
  const auto add = [&](const PackedMatrix& matrix) {
    elements += matrix.depth * matrix.padded_width;
  };
  for (const LayerWeights& layer : layers) {
    for (const PackedMatrix* matrix : {&layer.qkv, &layer.out, &layer.gate_up, &layer.down})
      add(*matrix);
  }
  add(head);
  return elements * weight_bytes(type);
}

Weights load_weights(const gguf::File& file, const Shape& shape, const LoadOptions& options,
                     WorkerPool& pool, const BlockKernels& kernels) {
  return Loader(file, shape, options, pool, kernels).load();
}

}  // namespace kvc::llm
