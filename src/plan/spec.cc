#include "src/plan/spec.h"

#include <cmath>
#include <string>

#include "src/base/dtype.h"
#include "src/base/error.h"
#include "src/base/math.h"
#include "src/base/tensor.h"

namespace kvc {
namespace {

using kernels::DType;

long long ll(int64_t value) { return static_cast<long long>(value); }

// Fields whose values this version does not serve are refused by name, never ignored.
void refuse_unless(bool supported, const char* field, int64_t value, const char* expected) {
  if (!supported)
    fail_with(KVC_E_UNSUPPORTED, value, "%s = %lld is not supported: %s", field, ll(value), expected);
}

void check_range(const char* field, int64_t value, int64_t least, int64_t most) {
  if (value < least || value > most) {
    fail_with(KVC_E_OUT_OF_RANGE, value, "%s = %lld out of range: %lld to %lld", field, ll(value), ll(least),
              ll(most));
  }
}

// "config.layers[3].k_dim"
std::string layer_field(size_t layer, const char* field) {
  return "config.layers[" + std::to_string(layer) + "]." + field;
}

DType storage_type(DLDataType type, DType fallback, const std::string& field) {
  if (type.code == 0 && type.bits == 0 && type.lanes == 0) return fallback;
  DType dtype;
  if (!dtype_from_dlpack(type, &dtype)) {
    fail(KVC_E_UNSUPPORTED, "%s = %s is not supported: storage is float32, float16 or bfloat16",
         field.c_str(), describe(type).text);
  }
  return dtype;
}

RopeSpec make_rope(const kvc_rope& rope, size_t layer, int32_t k_dim) {
  const auto field = [&](const char* name) { return layer_field(layer, "rope->") + name; };
  RopeSpec spec;
  if (rope.mode == KVC_ROPE_NONE) {
    const bool empty = rope.style == 0 && rope.rotary_dim == 0 && rope.num_freq_factors == 0 &&
                       rope.theta == 0 && rope.scale == 0 && rope.freq_factors == nullptr;
    if (!empty) {
      fail(KVC_E_INVALID_ARGUMENT,
           "%s = NONE (0) with other fields set (theta = %g, rotary_dim = %d): set the mode",
           field("mode").c_str(), rope.theta, rope.rotary_dim);
    }
    return spec;
  }
  refuse_unless(rope.mode == KVC_ROPE_ON_APPEND, field("mode").c_str(), rope.mode,
                "NONE (0) and ON_APPEND (1) are");
  refuse_unless(rope.style == KVC_ROPE_HALF || rope.style == KVC_ROPE_INTERLEAVED, field("style").c_str(),
                rope.style, "HALF (0) and INTERLEAVED (1) are");
  spec.mode = rope.mode;
  spec.style = rope.style;
  spec.rotary_dim = rope.rotary_dim == 0 ? k_dim : rope.rotary_dim;
  check_range(field("rotary_dim").c_str(), spec.rotary_dim, 2, k_dim);
  if (spec.rotary_dim % 2 != 0) {
    fail_with(KVC_E_INVALID_ARGUMENT, spec.rotary_dim, "%s = %d is odd: a rotation turns pairs",
              field("rotary_dim").c_str(), spec.rotary_dim);
  }
  const int32_t pairs = spec.rotary_dim / 2;
  if (rope.num_freq_factors != 0 && rope.num_freq_factors != pairs) {
    fail_with(KVC_E_INVALID_ARGUMENT, rope.num_freq_factors, "%s = %d, expected rotary_dim/2 = %d",
              field("num_freq_factors").c_str(), rope.num_freq_factors, pairs);
  }
  if ((rope.num_freq_factors != 0) != (rope.freq_factors != nullptr)) {
    fail(KVC_E_INVALID_ARGUMENT, "%s is %s but num_freq_factors = %d", field("freq_factors").c_str(),
         rope.freq_factors == nullptr ? "NULL" : "set", rope.num_freq_factors);
  }
  const double theta = rope.theta == 0 ? 10000.0 : rope.theta;
  const double scale = rope.scale == 0 ? 1.0 : rope.scale;
  if (!(theta > 0) || !std::isfinite(theta))
    fail(KVC_E_OUT_OF_RANGE, "%s = %g, expected a positive number", field("theta").c_str(), theta);
  if (!std::isfinite(scale))
    fail(KVC_E_OUT_OF_RANGE, "%s = %g, expected a finite number", field("scale").c_str(), scale);
  for (int32_t i = 0; i < pairs; ++i) {
    double frequency = scale * std::pow(theta, -2.0 * i / spec.rotary_dim);
    if (rope.freq_factors != nullptr) {
      const double factor = rope.freq_factors[i];
      if (!(factor > 0) || !std::isfinite(factor)) {
        fail_with(KVC_E_OUT_OF_RANGE, i, "%s[%d] = %g, expected a positive number",
                  field("freq_factors").c_str(), i, factor);
      }
      frequency /= factor;
    }
    if (!std::isfinite(frequency)) {
      fail_with(KVC_E_OUT_OF_RANGE, i, "%s: theta = %g and scale = %g make frequency %d infinite",
                layer_field(layer, "rope").c_str(), theta, scale, i);
    }
    spec.inverse_frequencies.push_back(frequency);
  }
  return spec;
}

int32_t shared_rope_index(std::vector<RopeSpec>& ropes, const RopeSpec& rope) {
  if (rope.mode == KVC_ROPE_NONE) return -1;
  for (size_t i = 0; i < ropes.size(); ++i) {
    if (ropes[i] == rope) return static_cast<int32_t>(i);
  }
  ropes.push_back(rope);
  return static_cast<int32_t>(ropes.size() - 1);
}

LayerSpec make_layer(const kvc_layer& layer, size_t index) {
  const auto field = [&](const char* name) { return layer_field(index, name); };
  refuse_unless(layer.kind == KVC_LAYER_ATTENTION, field("kind").c_str(), layer.kind, "ATTENTION (0) is");
  refuse_unless(layer.quant == KVC_QUANT_NONE, field("quant").c_str(), layer.quant, "NONE (0) is");
  refuse_unless(layer.window == 0, field("window").c_str(), layer.window, "0 (all keys) is");
  refuse_unless(layer.chunk == 0, field("chunk").c_str(), layer.chunk, "0 is");
  refuse_unless(layer.source_layer == 0, field("source_layer").c_str(), layer.source_layer, "0 is");
  refuse_unless(layer.latent_rank == 0, field("latent_rank").c_str(), layer.latent_rank, "0 is");
  refuse_unless(layer.latent_rope_dim == 0, field("latent_rope_dim").c_str(), layer.latent_rope_dim, "0 is");
  refuse_unless(layer.reserved == 0, field("reserved").c_str(), layer.reserved, "0 is");
  LayerSpec spec{};
  check_range(field("num_kv_heads").c_str(), layer.num_kv_heads, 1, kMaxHeads);
  check_range(field("num_q_heads").c_str(), layer.num_q_heads, 0, kMaxHeads);
  check_range(field("k_dim").c_str(), layer.k_dim, 1, kMaxHeadDim);
  check_range(field("v_dim").c_str(), layer.v_dim, 0, kMaxHeadDim);
  spec.num_kv_heads = layer.num_kv_heads;
  spec.num_q_heads = layer.num_q_heads == 0 ? layer.num_kv_heads : layer.num_q_heads;
  if (spec.num_q_heads % spec.num_kv_heads != 0) {
    fail_with(KVC_E_INVALID_ARGUMENT, spec.num_q_heads, "%s = %d is not a multiple of num_kv_heads = %d",
              field("num_q_heads").c_str(), spec.num_q_heads, spec.num_kv_heads);
  }
  spec.k_dim = layer.k_dim;
  spec.v_dim = layer.v_dim == 0 ? layer.k_dim : layer.v_dim;
  spec.k_dtype = storage_type(layer.k_dtype, DType::kBF16, field("k_dtype"));
  spec.v_dtype = storage_type(layer.v_dtype, spec.k_dtype, field("v_dtype"));
  return spec;
}

PoolTensor borrow(const DLTensor* tensor, int32_t index) {
  const std::string name = "config.pool_tensors[" + std::to_string(index) + "]";
  if (tensor == nullptr) fail(KVC_E_INVALID_ARGUMENT, "%s is NULL", name.c_str());
  if (tensor->ndim < 1)
    fail(KVC_E_SHAPE, "%s has %d dimensions, expected at least 1", name.c_str(), tensor->ndim);
  if (tensor->shape == nullptr) fail(KVC_E_INVALID_ARGUMENT, "%s.shape is NULL", name.c_str());
  if (!is_host_memory(tensor->device)) {
    fail(KVC_E_DEVICE_MISMATCH, "%s lives on device type %d, the cache on the CPU (%d)", name.c_str(),
         static_cast<int>(tensor->device.device_type), static_cast<int>(kDLCPU));
  }
  if (tensor->dtype.bits == 0 || tensor->dtype.bits * tensor->dtype.lanes % 8 != 0) {
    fail(KVC_E_DTYPE, "%s is %s, expected elements of whole bytes", name.c_str(),
         describe(tensor->dtype).text);
  }
  int64_t content = element_bytes(*tensor);
  for (int d = tensor->ndim - 1; d >= 1; --d) {
    if (tensor->shape[d] > 1 && stride_of(*tensor, d) * element_bytes(*tensor) != content) {
      fail(KVC_E_SHAPE, "%s has stride %lld in dimension %d, expected %lld: a page is compact", name.c_str(),
           ll(stride_of(*tensor, d)), d, ll(content / element_bytes(*tensor)));
    }
    if (tensor->shape[d] < 0 || !multiply(content, tensor->shape[d], &content)) {
      fail(KVC_E_OUT_OF_RANGE, "%s has shape[%d] = %lld", name.c_str(), d, ll(tensor->shape[d]));
    }
  }
  if (tensor->shape[0] < 1)
    fail(KVC_E_SHAPE, "%s has shape[0] = %lld pages, expected at least 1", name.c_str(), ll(tensor->shape[0]));
  if (tensor->data == nullptr) fail(KVC_E_INVALID_ARGUMENT, "%s.data is NULL", name.c_str());
  // Strides of hostile size must not wrap into plausible ones.
  constexpr int64_t kMost = int64_t{1} << 56;
  const int64_t page_elements = tensor->shape[0] == 1 ? 0 : stride_of(*tensor, 0);
  int64_t span = 0;
  if (page_elements < 0 || page_elements > kMost ||
      !multiply(page_elements * element_bytes(*tensor), tensor->shape[0], &span) || span > kMost) {
    fail_with(KVC_E_OUT_OF_RANGE, page_elements,
              "%s has stride %lld over %lld pages, which cannot be addressed", name.c_str(),
              ll(page_elements), ll(tensor->shape[0]));
  }
  PoolTensor pool{
      .data = data_of(*tensor), .num_pages = tensor->shape[0], .page_stride = 0, .page_bytes = content};
  pool.page_stride = tensor->shape[0] == 1 ? content : stride_of(*tensor, 0) * element_bytes(*tensor);
  if (pool.page_stride < content) {
    fail(KVC_E_SHAPE, "%s has a page stride of %lld bytes, smaller than a page's %lld", name.c_str(),
         ll(pool.page_stride), ll(content));
  }
  return pool;
}

void read_storage(const kvc_config& config, Spec& spec) {
  refuse_unless(config.storage >= KVC_STORAGE_OWNED && config.storage <= KVC_STORAGE_NONE, "config.storage",
                config.storage, "OWNED (0), BORROWED (1) and NONE (2) are");
  refuse_unless(config.pool_layout == KVC_POOL_LAYER_FIRST || config.pool_layout == KVC_POOL_PAGE_FIRST,
                "config.pool_layout", config.pool_layout, "LAYER_FIRST (0) and PAGE_FIRST (1) are");
  spec.storage = config.storage;
  spec.pool_layout = config.pool_layout;
  check_range("config.num_pages", config.num_pages, 0, INT32_MAX - 1);
  if (config.num_pages != 0 && config.byte_budget != 0) {
    fail(KVC_E_INVALID_ARGUMENT,
         "config.num_pages = %lld and config.byte_budget = %llu are both set: give one", ll(config.num_pages),
         static_cast<unsigned long long>(config.byte_budget));
  }
  spec.num_pages = config.num_pages;
  spec.byte_budget = config.byte_budget;
  if (config.storage != KVC_STORAGE_BORROWED) {
    if (config.num_pool_tensors != 0 || config.pool_tensors != nullptr) {
      fail(KVC_E_INVALID_ARGUMENT,
           "config.num_pool_tensors = %d with config.storage = %d: pool tensors need BORROWED (1)",
           config.num_pool_tensors, config.storage);
    }
    return;
  }
  if (config.byte_budget != 0) {
    fail(KVC_E_INVALID_ARGUMENT,
         "config.byte_budget = %llu with borrowed storage: the tensors say how many pages there are",
         static_cast<unsigned long long>(config.byte_budget));
  }
  const int32_t expected = config.pool_layout == KVC_POOL_PAGE_FIRST ? 1 : spec.num_local_layers();
  if (config.num_pool_tensors != expected) {
    fail_with(KVC_E_INVALID_ARGUMENT, config.num_pool_tensors,
              "config.num_pool_tensors = %d, expected %d for this pool layout", config.num_pool_tensors,
              expected);
  }
  if (config.pool_tensors == nullptr)
    fail(KVC_E_INVALID_ARGUMENT, "config.pool_tensors is NULL with borrowed storage");
  for (int32_t i = 0; i < expected; ++i) {
    spec.pool_tensors.push_back(borrow(config.pool_tensors[i], i));
    const int64_t pages = spec.pool_tensors.back().num_pages;
    check_range("pages of a pool tensor", pages, 1, INT32_MAX - 1);
    if (spec.num_pages == 0) spec.num_pages = pages;
    if (pages < spec.num_pages) {
      fail_with(KVC_E_SHAPE, pages, "config.pool_tensors[%d] has %lld pages, expected at least %lld", i,
                ll(pages), ll(spec.num_pages));
    }
  }
}

void read_hooks(const kvc_config& config, Spec& spec) {
  if (config.allocator != nullptr) {
    if (config.storage != KVC_STORAGE_OWNED) {
      fail(KVC_E_INVALID_ARGUMENT,
           "config.allocator is set with config.storage = %d: it serves OWNED (0) pools", config.storage);
    }
    spec.has_allocator = true;
    spec.allocator = *config.allocator;
    if (spec.allocator.alloc == nullptr || spec.allocator.free == nullptr) {
      fail(KVC_E_INVALID_ARGUMENT, "config.allocator->%s is NULL",
           spec.allocator.alloc == nullptr ? "alloc" : "free");
    }
  }
  if (config.executor != nullptr) {
    spec.has_executor = true;
    spec.executor = *config.executor;
    if (spec.executor.concurrency == nullptr || spec.executor.parallel_for == nullptr) {
      fail(KVC_E_INVALID_ARGUMENT, "config.executor->%s is NULL",
           spec.executor.concurrency == nullptr ? "concurrency" : "parallel_for");
    }
    if (config.num_threads != 0) {
      fail(KVC_E_INVALID_ARGUMENT,
           "config.num_threads = %d with config.executor: the executor brings the threads",
           config.num_threads);
    }
  }
}

}  // namespace

Spec make_spec(const kvc_config& config, const std::vector<kvc_layer>& layers,
               const std::vector<kvc_rope>& ropes) {
  Spec spec;
  refuse_unless(config.flags == 0, "config.flags", static_cast<int64_t>(config.flags), "0 is");
  const int32_t device = static_cast<int32_t>(config.device.device_type);
  refuse_unless(device == 0 || device == kDLCPU, "config.device.device_type", device,
                "this build serves the CPU (1)");
  refuse_unless(config.device.device_id == 0, "config.device.device_id", config.device.device_id,
                "the CPU is device 0");
  refuse_unless(config.forwards_in_flight == 0 || config.forwards_in_flight == 1, "config.forwards_in_flight",
                config.forwards_in_flight, "0 and 1 are");
  refuse_unless(config.host_byte_budget == 0, "config.host_byte_budget",
                static_cast<int64_t>(config.host_byte_budget), "0 is");
  refuse_unless(config.reserved == 0, "config.reserved", config.reserved, "0 is");
  spec.page_size = config.page_size == 0 ? 16 : config.page_size;
  check_range("config.page_size", spec.page_size, 1, kMaxPageSize);
  check_range("config.max_seqs", config.max_seqs, 0, INT32_MAX);
  check_range("config.max_tokens_per_forward", config.max_tokens_per_forward, 0, kMaxSequenceLength);
  check_range("config.max_seq_len", config.max_seq_len, 0, kMaxSequenceLength);
  check_range("config.num_threads", config.num_threads, 0, 4096);
  check_range("config.cpu_isa", config.cpu_isa, KVC_CPU_ISA_AUTO, KVC_CPU_ISA_AVX512_BF16);
  spec.max_seqs = config.max_seqs;
  spec.max_tokens_per_forward = config.max_tokens_per_forward;
  spec.max_seq_len = config.max_seq_len;
  spec.num_threads = config.num_threads;
  spec.cpu_isa = config.cpu_isa;

  spec.num_layers = static_cast<int32_t>(layers.size());
  check_range("config.layer_begin", config.layer_begin, 0, spec.num_layers);
  check_range("config.layer_end", config.layer_end, 0, spec.num_layers);
  const bool whole = config.layer_begin == 0 && config.layer_end == 0;
  spec.layer_begin = config.layer_begin;
  spec.layer_end = whole ? spec.num_layers : config.layer_end;
  if (spec.layer_begin >= spec.layer_end) {
    fail(KVC_E_INVALID_ARGUMENT, "config.layer_begin = %d is not below config.layer_end = %d",
         spec.layer_begin, spec.layer_end);
  }
  for (size_t i = 0; i < layers.size(); ++i) {
    LayerSpec layer = make_layer(layers[i], i);  // all layers are checked, those of the slice are kept
    const RopeSpec rope = make_rope(ropes[i], i, layer.k_dim);
    const auto id = static_cast<int32_t>(i);
    if (id < spec.layer_begin || id >= spec.layer_end) continue;
    layer.rope = shared_rope_index(spec.ropes, rope);
    spec.layers.push_back(layer);
  }
  read_storage(config, spec);
  read_hooks(config, spec);
  return spec;
}

}  // namespace kvc
