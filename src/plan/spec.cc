#include "src/plan/spec.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>

#include "src/base/dtype.h"
#include "src/base/error.h"
#include "src/base/math.h"
#include "src/base/tensor.h"
#include "src/plan/groups.h"
#include "src/plan/layout.h"

namespace kvc {

std::string k_type_name(const LayerSpec& layer) {
  return layer.k_quant != KVC_QUANT_NONE ? describe(layer.k_type).text : dtype_name(layer.k_dtype);
}

std::string v_type_name(const LayerSpec& layer) {
  return layer.v_quant != KVC_QUANT_NONE ? describe(layer.v_type).text : dtype_name(layer.v_dtype);
}

const char* storage_name(kvc_storage storage) {
  return storage == KVC_STORAGE_OWNED      ? "owned"
         : storage == KVC_STORAGE_BORROWED ? "borrowed"
                                           : "none";
}

const char* pool_layout_name(kvc_pool_layout layout) {
  return layout == KVC_POOL_LAYER_FIRST ? "layer_first" : "page_first";
}

const char* group_kind_name(const GroupSpec& group) {
  if (group.is_cross) return "cross";
  if (group.has_kept_rows()) return "kept";
  return group.window != 0 ? "window" : group.chunk != 0 ? "chunk" : "full";
}

const char* layer_kind_name(kvc_layer_kind kind) {
  static constexpr const char* kNames[] = {"ATTENTION", "MLA", "CROSS", "STATE", "SHARED", "NONE"};
  return kNames[kind];
}

int32_t Spec::num_page_regions() const {
  int32_t count = 0;
  for (const LayerSpec& layer : layers) count = std::max(count, layer.region + 1);
  return count;
}

int32_t Spec::longest_group() const {
  size_t longest = 0;
  for (const GroupSpec& group : groups) longest = std::max(longest, group.layers.size());
  return static_cast<int32_t>(longest);
}

int32_t Spec::prefix_block() const {
  int32_t block = base_page_size;
  for (const GroupSpec& group : groups) {
    if (!group.is_cross) block = std::lcm(block, group.page_size);
  }
  return block;
}

bool Spec::has_kind(kvc_layer_kind kind) const {
  return std::any_of(layers.begin(), layers.end(),
                     [&](const LayerSpec& layer) { return layer.kind == kind; });
}

bool Spec::has_cross() const {
  return std::any_of(groups.begin(), groups.end(),
                     [](const GroupSpec& group) { return group.is_cross; });
}

bool Spec::has_windows() const {
  return std::any_of(groups.begin(), groups.end(),
                     [](const GroupSpec& group) { return group.is_windowed(); });
}

LayerSpec kept_rows_of(const LayerSpec& layer) {
  LayerSpec kept = layer;
  const auto store = [](kvc_quant* quant, kernels::DType* dtype, DLDataType* type, float* scale) {
    if (*quant != KVC_QUANT_NONE) *dtype = kernels::DType::kBF16;
    *quant = KVC_QUANT_NONE;
    *type = dtype_to_dlpack(*dtype);
    *scale = 1;
  };
  store(&kept.k_quant, &kept.k_dtype, &kept.k_type, &kept.k_scale);
  store(&kept.v_quant, &kept.v_dtype, &kept.v_type, &kept.v_scale);
  kept.window = kept.chunk = 0;
  kept.kept_rows = -1;
  return kept;
}

int32_t Spec::num_position_rows() const {
  int32_t most = 1;
  for (const RopeSpec& rope : ropes) most = std::max(most, rope.num_sections);
  return most;
}

bool Spec::has_rope_mode(kvc_rope_mode mode) const {
  return std::any_of(ropes.begin(), ropes.end(),
                     [&](const RopeSpec& rope) { return rope.mode == mode; });
}

namespace {

// Refuses fields with unsupported values by name, so that none is ignored. Throws UNSUPPORTED.
void refuse_unless(bool supported, const char* field, int64_t value, const char* expected) {
  if (!supported)
    fail_with(KVC_E_UNSUPPORTED, value, "%s = %lld is not supported: %s", field, ll(value),
              expected);
}

// Throws OUT_OF_RANGE.
void check_range(const char* field, int64_t value, int64_t least, int64_t most) {
  if (value < least || value > most) {
    fail_with(KVC_E_OUT_OF_RANGE, value, "%s = %lld out of range: %lld to %lld", field, ll(value),
              ll(least), ll(most));
  }
}

PoolTensor borrow(const DLTensor* tensor, int32_t index, DLDevice device) {
  const std::string name = "config.pool_tensors[" + std::to_string(index) + "]";
  if (tensor == nullptr) fail(KVC_E_INVALID_ARGUMENT, "%s is NULL", name.c_str());
  if (tensor->ndim < 1)
    fail(KVC_E_SHAPE, "%s has %d dimensions, expected at least 1", name.c_str(), tensor->ndim);
  if (tensor->shape == nullptr) fail(KVC_E_INVALID_ARGUMENT, "%s.shape is NULL", name.c_str());
  check_device(*tensor, name.c_str(), device);
  if (tensor->dtype.bits == 0 || tensor->dtype.bits * tensor->dtype.lanes % 8 != 0) {
    fail(KVC_E_DTYPE, "%s is %s, expected elements of whole bytes", name.c_str(),
         describe(tensor->dtype).text);
  }
  int64_t content = element_bytes(*tensor);
  for (int d = tensor->ndim - 1; d >= 1; --d) {
    if (tensor->shape[d] > 1 && stride_of(*tensor, d) * element_bytes(*tensor) != content) {
      fail(KVC_E_SHAPE, "%s has stride %lld in dimension %d, expected %lld: a page is compact",
           name.c_str(), ll(stride_of(*tensor, d)), d, ll(content / element_bytes(*tensor)));
    }
    if (tensor->shape[d] < 0 || !multiply(content, tensor->shape[d], &content)) {
      fail(KVC_E_OUT_OF_RANGE, "%s has shape[%d] = %lld", name.c_str(), d, ll(tensor->shape[d]));
    }
  }
  if (tensor->shape[0] < 1)
    fail(KVC_E_SHAPE, "%s has shape[0] = %lld pages, expected at least 1", name.c_str(),
         ll(tensor->shape[0]));
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
  PoolTensor pool{.data = data_of(*tensor),
                  .num_pages = tensor->shape[0],
                  .page_stride = 0,
                  .page_bytes = content};
  pool.page_stride =
      tensor->shape[0] == 1 ? content : stride_of(*tensor, 0) * element_bytes(*tensor);
  if (pool.page_stride < content) {
    fail(KVC_E_SHAPE, "%s has a page stride of %lld bytes, smaller than a page's %lld",
         name.c_str(), ll(pool.page_stride), ll(content));
  }
  return pool;
}

void read_storage(const kvc_config& config, Spec& spec) {
  refuse_unless(config.storage >= KVC_STORAGE_OWNED && config.storage <= KVC_STORAGE_NONE,
                "config.storage", config.storage, "OWNED (0), BORROWED (1) and NONE (2) are");
  refuse_unless(
      config.pool_layout == KVC_POOL_LAYER_FIRST || config.pool_layout == KVC_POOL_PAGE_FIRST,
      "config.pool_layout", config.pool_layout, "LAYER_FIRST (0) and PAGE_FIRST (1) are");
  spec.storage = config.storage;
  refuse_unless(!spec.clears_pages || spec.storage != KVC_STORAGE_NONE, "config.storage",
                config.storage,
                "with KVC_CONFIG_CLEAR_PAGES (2) pools of the library (OWNED, 0) and of the host "
                "(BORROWED, 1) are");
  if (!spec.has_huge_pages) {
    refuse_unless(spec.storage == KVC_STORAGE_OWNED, "config.storage", config.storage,
                  "with KVC_CONFIG_NO_HUGE_PAGES (4) pools of the library (OWNED, 0) are");
    refuse_unless(spec.device.device_type == kDLCPU, "config.device.device_type",
                  static_cast<int64_t>(spec.device.device_type),
                  "with KVC_CONFIG_NO_HUGE_PAGES (4) the CPU (1) is");
    if (config.allocator != nullptr)
      fail(KVC_E_UNSUPPORTED,
           "config.allocator is set: KVC_CONFIG_NO_HUGE_PAGES (4) is for memory of the library");
  }
  spec.pool_layout = config.pool_layout;
  check_range("config.num_pages", config.num_pages, 0, INT32_MAX - 1);
  if (config.num_pages != 0 && config.byte_budget != 0) {
    fail(KVC_E_INVALID_ARGUMENT,
         "config.num_pages = %lld and config.byte_budget = %llu are both set: give one",
         ll(config.num_pages), static_cast<unsigned long long>(config.byte_budget));
  }
  spec.num_pages = config.num_pages;
  spec.byte_budget = config.byte_budget;
  if (config.storage != KVC_STORAGE_BORROWED) {
    if (config.num_pool_tensors != 0 || config.pool_tensors != nullptr) {
      fail(KVC_E_INVALID_ARGUMENT,
           "config.num_pool_tensors = %d with config.storage = %s (%d): pool tensors need BORROWED "
           "(1)",
           config.num_pool_tensors, config.storage == KVC_STORAGE_OWNED ? "OWNED" : "NONE",
           config.storage);
    }
    return;
  }
  if (config.byte_budget != 0) {
    fail(
        KVC_E_INVALID_ARGUMENT,
        "config.byte_budget = %llu with borrowed storage: the tensors say how many pages there are",
        static_cast<unsigned long long>(config.byte_budget));
  }
  const int32_t expected = config.pool_layout == KVC_POOL_PAGE_FIRST ? 1 : spec.num_page_regions();
  if (config.num_pool_tensors != expected) {
    fail_with(KVC_E_INVALID_ARGUMENT, config.num_pool_tensors,
              "config.num_pool_tensors = %d, expected %d for this pool layout",
              config.num_pool_tensors, expected);
  }
  if (config.pool_tensors == nullptr)
    fail(KVC_E_INVALID_ARGUMENT, "config.pool_tensors is NULL with borrowed storage");
  for (int32_t i = 0; i < expected; ++i) {
    spec.pool_tensors.push_back(borrow(config.pool_tensors[i], i, spec.device));
    const int64_t pages = spec.pool_tensors.back().num_pages;
    check_range("pages of a pool tensor", pages, 1, INT32_MAX - 1);
    if (spec.num_pages == 0) spec.num_pages = pages;
    if (pages < spec.num_pages) {
      fail_with(KVC_E_SHAPE, pages,
                "config.pool_tensors[%d] has %lld pages, expected at least %lld", i, ll(pages),
                ll(spec.num_pages));
    }
  }
}

// A cache on a GPU computes and copies there, so threads and instruction sets of the CPU would
// change nothing.
void refuse_cpu_settings(const kvc_config& config, const Spec& spec) {
  if (!spec.is_on_gpu() || spec.storage == KVC_STORAGE_NONE) return;
  refuse_unless(config.num_threads <= 1, "config.num_threads", config.num_threads,
                "with config.device = CUDA (2) the caller's thread alone works, 0 and 1 are");
  refuse_unless(config.cpu_isa == KVC_CPU_ISA_AUTO, "config.cpu_isa", config.cpu_isa,
                "with config.device = CUDA (2) AUTO (0) is");
  if (config.executor != nullptr) {
    fail(KVC_E_UNSUPPORTED,
         "config.executor is set with config.device = CUDA (%d): the CPU has nothing to spread, "
         "NULL is "
         "supported",
         static_cast<int>(kDLCUDA));
  }
}

void read_hooks(const kvc_config& config, Spec& spec) {
  refuse_cpu_settings(config, spec);
  if (config.allocator != nullptr) {
    if (config.storage != KVC_STORAGE_OWNED) {
      fail(KVC_E_INVALID_ARGUMENT,
           "config.allocator is set with config.storage = %s (%d): it serves OWNED (0) pools",
           config.storage == KVC_STORAGE_BORROWED ? "BORROWED" : "NONE", config.storage);
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

// The layers of a configuration: one reader per kind. A field without use for a kind is refused,
// never ignored.

using kernels::DType;

class LayerReader {
 public:
  LayerReader(const LayerInput& input, size_t index)
      : input_(input), in_(input.layer), index_(index) {}

  // Everything that a SHARED layer does not take from its source.
  LayerSpec read() {
    refuse_unless(in_.kind >= KVC_LAYER_ATTENTION && in_.kind <= KVC_LAYER_NONE,
                  field("kind").c_str(), in_.kind, "ATTENTION (0) to NONE (5) are");
    refuse_unless(in_.quant >= KVC_QUANT_NONE && in_.quant <= KVC_QUANT_BLOCK16,
                  field("quant").c_str(), in_.quant, "NONE (0) to BLOCK16 (3) are");
    refuse_unless(in_.v_quant >= KVC_QUANT_NONE && in_.v_quant <= KVC_QUANT_OFF,
                  field("v_quant").c_str(), in_.v_quant, "NONE (0) to OFF (4) are");
    refuse_unless(in_.reserved == 0, field("reserved").c_str(), in_.reserved, "0 is");
    refuse_unless((in_.flags & ~KVC_LAYER_V_IS_K) == 0, field("flags").c_str(), in_.flags,
                  "V_IS_K (1) is");
    spec_.kind = in_.kind;
    read_window();
    if (in_.kind != KVC_LAYER_SHARED) refuse_field("source_layer", in_.source_layer);
    if (in_.kind != KVC_LAYER_MLA) {
      refuse_field("latent_rank", in_.latent_rank);
      refuse_field("latent_rope_dim", in_.latent_rope_dim);
    }
    if (in_.kind != KVC_LAYER_STATE) refuse_field("num_states", in_.num_states);
    const bool has_rows = in_.kind == KVC_LAYER_ATTENTION || in_.kind == KVC_LAYER_CROSS;
    if (!has_rows) refuse_field("flags", in_.flags);
    if (in_.kind == KVC_LAYER_CROSS && input_.rope.mode != KVC_ROPE_NONE) refuse_rope();
    if ((in_.kind == KVC_LAYER_STATE || in_.kind == KVC_LAYER_NONE) && input_.has_rope)
      refuse_rope();
    switch (in_.kind) {
      case KVC_LAYER_MLA: read_mla(); break;
      case KVC_LAYER_STATE: read_states(); break;
      case KVC_LAYER_SHARED: break;
      case KVC_LAYER_NONE: refuse_heads(); break;
      default: read_attention();
    }
    if (in_.kind != KVC_LAYER_SHARED) read_kept_tokens();
    return std::move(spec_);
  }

  std::string field(const char* name) const {
    return "config.layers[" + std::to_string(index_) + "]." + name;
  }
  std::string prefix() const { return field("rope->"); }

 private:
  void refuse_field(const char* name, int64_t value) const {
    if (value != 0) {
      fail_with(KVC_E_INVALID_ARGUMENT, value,
                "%s = %lld, but a layer of kind %s has none: expected 0", field(name).c_str(),
                ll(value), layer_kind_name(in_.kind));
    }
  }

  void refuse_rope() const {
    fail_with(KVC_E_UNSUPPORTED, input_.rope.mode,
              "%s = %d is not supported: a layer of kind %s has no rotation",
              (prefix() + "mode").c_str(), input_.rope.mode, layer_kind_name(in_.kind));
  }

  void read_kept_tokens() {
    check_range(field("keep_tokens").c_str(), in_.keep_tokens, 0, INT32_MAX);
    if (in_.keep_tokens == 0) return;
    if (!spec_.attends_tokens()) refuse_field("keep_tokens", in_.keep_tokens);
    if (!spec_.is_quantised()) {
      fail_with(KVC_E_INVALID_ARGUMENT, in_.keep_tokens,
                "%s = %d with quant = %s (%d) and v_quant = %s (%d): no row is quantised, so none "
                "is kept apart; expected 0",
                field("keep_tokens").c_str(), in_.keep_tokens, quant_name(in_.quant), in_.quant,
                quant_name(in_.v_quant), in_.v_quant);
    }
    spec_.keep_tokens = in_.keep_tokens;
  }

  void refuse_heads() const {
    refuse_field("quant", in_.quant);
    refuse_field("v_quant", in_.v_quant);
    (void)scale_of(in_.k_scale, "k_scale", k_half());
    (void)scale_of(in_.v_scale, "v_scale", k_half());
    refuse_field("num_q_heads", in_.num_q_heads);
    refuse_field("num_kv_heads", in_.num_kv_heads);
    refuse_field("k_dim", in_.k_dim);
    refuse_field("v_dim", in_.v_dim);
  }

  void read_window() {
    check_range(field("window").c_str(), in_.window, 0, kMaxSequenceLength);
    check_range(field("chunk").c_str(), in_.chunk, 0, kMaxSequenceLength);
    const bool may = in_.kind == KVC_LAYER_ATTENTION || in_.kind == KVC_LAYER_MLA;
    if (!may && (in_.window != 0 || in_.chunk != 0)) {
      fail_with(KVC_E_UNSUPPORTED, in_.window,
                "%s = %lld, %s = %lld: a layer of kind %s has neither", field("window").c_str(),
                ll(in_.window), field("chunk").c_str(), ll(in_.chunk), layer_kind_name(in_.kind));
    }
    if (in_.window != 0 && in_.chunk != 0) {
      fail_with(KVC_E_UNSUPPORTED, in_.window, "%s = %lld together with %s = %lld: give one",
                field("window").c_str(), ll(in_.window), field("chunk").c_str(), ll(in_.chunk));
    }
    spec_.window = in_.window;
    spec_.chunk = in_.chunk;
  }

  // What a half is quantised with, and the field that says so.
  struct Half {
    kvc_quant quant;
    const char* field;
    kvc_quant given;  // Its value: V's NONE is OFF.
  };
  Half k_half() const { return {in_.quant, "quant", in_.quant}; }
  Half v_half() const {
    if (in_.v_quant == 0) return k_half();
    return {in_.v_quant == KVC_QUANT_OFF ? KVC_QUANT_NONE : in_.v_quant, "v_quant", in_.v_quant};
  }

  // SHARED layers store rows as their source does. STATE and NONE layers store no rows.
  void read_storage_types() {
    const Half k = k_half(), v = v_half();
    spec_.k_quant = k.quant;
    spec_.v_quant = v.quant;
    spec_.k_scale = scale_of(in_.k_scale, "k_scale", k);
    spec_.v_scale = scale_of(in_.v_scale, "v_scale", v);
    constexpr DLDataType kDefault{kDLBfloat, 16, 1};
    const DLDataType k_type = is_unset(in_.k_dtype) ? kDefault : in_.k_dtype;
    read_half(k, k_type, "k_dtype", &spec_.k_type, &spec_.k_dtype);
    DLDataType v_type = in_.v_dtype;
    if (is_unset(v_type)) {
      v_type = k.quant == v.quant ? k_type : kDefault;
      if (k.quant != v.quant && v.quant != KVC_QUANT_NONE) {
        fail_with(KVC_E_INVALID_ARGUMENT, v.quant,
                  "%s is not set with v_quant = %s (%d) and quant = %s (%d), which K alone has: "
                  "expected %s",
                  field("v_dtype").c_str(), quant_name(v.quant), v.quant, quant_name(k.quant),
                  k.quant, quant_types(v.quant));
      }
    }
    read_half(v, v_type, "v_dtype", &spec_.v_type, &spec_.v_dtype);
  }

  void read_half(const Half& half, DLDataType given, const char* name, DLDataType* type,
                 DType* dtype) const {
    if (half.quant == KVC_QUANT_NONE) {
      *dtype = storage_type(given, DType::kBF16, name);
      *type = dtype_to_dlpack(*dtype);
      return;
    }
    *type = quantised_type(given, name, half);
    if (type->bits == 8) *dtype = quantised_dtype(*type);
  }

  float scale_of(float scale, const char* name, const Half& half) const {
    if (scale == 0) return 1;
    if (half.quant != KVC_QUANT_PER_TENSOR) {
      fail_with(KVC_E_INVALID_ARGUMENT, half.quant,
                "%s = %g with %s = %s (%d): only PER_TENSOR (%d) has one", field(name).c_str(),
                static_cast<double>(scale), half.field, quant_name(half.given), half.given,
                static_cast<int>(KVC_QUANT_PER_TENSOR));
    }
    if (!std::isfinite(scale) || scale < 0) {
      fail(KVC_E_OUT_OF_RANGE, "%s = %g, expected a finite number > 0, or 0", field(name).c_str(),
           static_cast<double>(scale));
    }
    return scale;
  }

  static bool is_unset(DLDataType type) {
    return type.code == 0 && type.bits == 0 && type.lanes == 0;
  }

  DLDataType quantised_type(DLDataType type, const char* name, const Half& half) const {
    if (!stores_type(half.quant, type)) {
      fail_with(KVC_E_INVALID_ARGUMENT, half.quant, "%s = %s with %s = %s (%d): expected %s",
                field(name).c_str(), describe(type).text, half.field, quant_name(half.quant),
                half.quant, quant_types(half.quant));
    }
    return type;
  }

  // Rows of 4-bit elements begin at bytes, and blocks that share a scale are whole.
  void check_quantised_dim(int32_t dim, DLDataType type, const char* name, const Half& half) const {
    if (half.quant == KVC_QUANT_NONE) return;
    const int32_t unit = half.quant == KVC_QUANT_BLOCK16 ? kScaleBlock : type.bits == 4 ? 2 : 1;
    if (dim % unit != 0) {
      fail_with(KVC_E_INVALID_ARGUMENT, dim,
                "%s = %d with %s and %s = %s (%d): expected a multiple of %d", field(name).c_str(),
                dim, describe(type).text, half.field, quant_name(half.quant), half.quant, unit);
    }
  }

  // One row holds both where V lies inside K, as the field `name` says.
  void refuse_apart(const char* name, int64_t value) const {
    if (v_half().quant == k_half().quant) return;
    fail_with(KVC_E_INVALID_ARGUMENT, in_.v_quant,
              "%s = %s (%d) with quant = %s (%d) and %s = %lld: where V lies inside K, V is stored "
              "as K is; expected 0",
              field("v_quant").c_str(), quant_name(in_.v_quant), in_.v_quant, quant_name(in_.quant),
              in_.quant, name, ll(value));
  }

  // V may end inside a block that shares a scale.
  void refuse_scales_inside_rows(const char* name, int64_t value) const {
    if (spec_.k_quant == KVC_QUANT_BLOCK16) {
      fail_with(KVC_E_UNSUPPORTED, in_.quant,
                "%s = %s (%d) with %s = %lld is not supported: where V lies inside K, NONE (0), "
                "PER_TENSOR (1) and PER_TOKEN_HEAD (2) are",
                field("quant").c_str(), quant_name(in_.quant), in_.quant, name, ll(value));
    }
  }

  DType storage_type(DLDataType type, DType fallback, const char* name) const {
    if (is_unset(type)) return fallback;
    DType dtype;
    if (!dtype_from_dlpack(type, &dtype)) {
      fail(KVC_E_UNSUPPORTED,
           "%s = %s is not supported: storage is float32, float16 or bfloat16, other types need "
           "quant",
           field(name).c_str(), describe(type).text);
    }
    return dtype;
  }

  void read_query_heads() {
    spec_.num_q_heads = in_.num_q_heads == 0 ? spec_.num_kv_heads : in_.num_q_heads;
    if (spec_.num_q_heads % spec_.num_kv_heads != 0) {
      fail_with(KVC_E_INVALID_ARGUMENT, spec_.num_q_heads,
                "%s = %d is not a multiple of num_kv_heads = %d", field("num_q_heads").c_str(),
                spec_.num_q_heads, spec_.num_kv_heads);
    }
  }

  void read_attention() {
    check_range(field("num_kv_heads").c_str(), in_.num_kv_heads, 1, kMaxHeads);
    check_range(field("num_q_heads").c_str(), in_.num_q_heads, 0, kMaxHeads);
    check_range(field("k_dim").c_str(), in_.k_dim, 1, kMaxHeadDim);
    check_range(field("v_dim").c_str(), in_.v_dim, 0, kMaxHeadDim);
    spec_.num_kv_heads = in_.num_kv_heads;
    read_query_heads();
    spec_.k_dim = in_.k_dim;
    spec_.v_dim = in_.v_dim == 0 ? in_.k_dim : in_.v_dim;
    spec_.v_in_k = (in_.flags & KVC_LAYER_V_IS_K) != 0;
    if (spec_.v_in_k) refuse_apart("flags", in_.flags);
    read_storage_types();
    check_quantised_dim(spec_.k_dim, spec_.k_type, "k_dim", k_half());
    check_quantised_dim(spec_.v_dim, spec_.v_type, "v_dim", v_half());
    if (spec_.v_in_k && (spec_.v_dim != spec_.k_dim || !same_type(spec_.v_type, spec_.k_type))) {
      fail_with(
          KVC_E_INVALID_ARGUMENT, spec_.v_dim,
          "%s = V_IS_K with v_dim = %d of type %s and k_dim = %d of type %s: they must be equal",
          field("flags").c_str(), spec_.v_dim, describe(spec_.v_type).text, spec_.k_dim,
          describe(spec_.k_type).text);
    }
    if (spec_.v_in_k) refuse_scales_inside_rows("flags", in_.flags);
  }

  void read_mla() {
    check_range(field("num_q_heads").c_str(), in_.num_q_heads, 1, kMaxHeads);
    check_range(field("num_kv_heads").c_str(), in_.num_kv_heads, 0, 1);
    check_range(field("latent_rank").c_str(), in_.latent_rank, 1, kMaxLatentDim);
    check_range(field("latent_rope_dim").c_str(), in_.latent_rope_dim, 0,
                kMaxLatentDim - in_.latent_rank);
    check_range(field("k_dim").c_str(), in_.k_dim, 0, kMaxHeadDim);
    check_range(field("v_dim").c_str(), in_.v_dim, 0, kMaxHeadDim);
    if (in_.latent_rope_dim % 2 != 0) {
      fail_with(KVC_E_INVALID_ARGUMENT, in_.latent_rope_dim,
                "%s = %d is odd: a rotation turns pairs", field("latent_rope_dim").c_str(),
                in_.latent_rope_dim);
    }
    if (in_.k_dim != 0 && in_.k_dim < in_.latent_rope_dim) {
      fail_with(KVC_E_INVALID_ARGUMENT, in_.k_dim, "%s = %d is smaller than latent_rope_dim = %d",
                field("k_dim").c_str(), in_.k_dim, in_.latent_rope_dim);
    }
    if (in_.k_dim == 0) refuse_field("v_dim", in_.v_dim);
    spec_.latent_rank = in_.latent_rank;
    spec_.latent_rope_dim = in_.latent_rope_dim;
    spec_.num_kv_heads = 1;
    spec_.num_q_heads = in_.num_q_heads;
    spec_.k_dim = in_.latent_rank + in_.latent_rope_dim;
    spec_.v_dim = in_.latent_rank;
    spec_.v_in_k = true;
    refuse_apart("latent_rank", in_.latent_rank);
    read_storage_types();
    if (!same_type(spec_.v_type, spec_.k_type)) {
      fail(KVC_E_INVALID_ARGUMENT, "%s = %s differs from k_dtype = %s: one latent row holds both",
           field("v_dtype").c_str(), describe(spec_.v_type).text, describe(spec_.k_type).text);
    }
    refuse_scales_inside_rows("latent_rank", in_.latent_rank);
    spec_.self_k_dim = in_.k_dim;
    spec_.self_v_dim = in_.v_dim == 0 ? in_.k_dim : in_.v_dim;
  }

  void read_states() {
    refuse_heads();
    check_range(field("num_states").c_str(), in_.num_states, 1, kMaxStates);
    for (size_t i = 0; i < input_.states.size(); ++i) {
      spec_.states.push_back(read_state(input_.states[i], "states[" + std::to_string(i) + "]"));
    }
  }

  StateSpec read_state(const kvc_state_spec& in, const std::string& short_name) const {
    const std::string name = field(short_name.c_str());
    check_range((name + ".ndim").c_str(), in.ndim, 1, kMaxStateRank);
    if (in.shape == nullptr) {
      fail(KVC_E_INVALID_ARGUMENT, "%s.shape is NULL with ndim = %d", name.c_str(), in.ndim);
    }
    StateSpec state;
    state.dtype = storage_type(in.dtype, DType::kF32, (short_name + ".dtype").c_str());
    state.num_elements = 1;
    for (int32_t d = 0; d < in.ndim; ++d) {
      check_range((name + ".shape[" + std::to_string(d) + "]").c_str(), in.shape[d], 1, INT32_MAX);
      if (!multiply(state.num_elements, in.shape[d], &state.num_elements) ||
          state.num_elements > INT32_MAX) {
        fail_with(KVC_E_OUT_OF_RANGE, in.shape[d], "%s.shape[%d] = %lld makes the state too large",
                  name.c_str(), d, ll(in.shape[d]));
      }
      state.shape.push_back(in.shape[d]);
    }
    if (in.init != nullptr)
      copy_dense(in.init, name + ".init", state.shape, state.dtype, &state.init);
    return state;
  }

  const LayerInput& input_;
  const kvc_layer& in_;
  size_t index_;
  LayerSpec spec_;
};

// Takes the fields of the source for a SHARED layer, and checks the layer's own fields against
// them.
void follow_source(const LayerReader& reader, const kvc_layer& in, int32_t index,
                   int32_t layer_begin, const std::vector<LayerSpec>& model, LayerSpec& spec) {
  const std::string name = reader.field("source_layer");
  if (in.source_layer < 0 || in.source_layer >= index) {
    fail_with(KVC_E_OUT_OF_RANGE, in.source_layer, "%s = %d out of range: a smaller id than %d",
              name.c_str(), in.source_layer, index);
  }
  const LayerSpec& source = model[in.source_layer];
  if (source.kind != KVC_LAYER_ATTENTION && source.kind != KVC_LAYER_MLA) {
    fail_with(KVC_E_UNSUPPORTED, in.source_layer,
              "%s = %d is a layer of kind %s: ATTENTION and MLA are shared", name.c_str(),
              in.source_layer, layer_kind_name(source.kind));
  }
  if (index >= layer_begin && in.source_layer < layer_begin) {
    fail_with(KVC_E_UNSUPPORTED, in.source_layer,
              "%s = %d is not kept here: the slice starts at layer %d", name.c_str(),
              in.source_layer, layer_begin);
  }
  const auto must_match = [&](const char* field, int64_t value, int64_t expected) {
    if (value != 0 && value != expected) {
      fail_with(KVC_E_INVALID_ARGUMENT, value, "%s = %lld, the source layer %d has %lld",
                reader.field(field).c_str(), ll(value), in.source_layer, ll(expected));
    }
  };
  must_match("num_kv_heads", in.num_kv_heads, source.num_kv_heads);
  must_match("k_dim", in.k_dim, source.k_dim);
  must_match("v_dim", in.v_dim, source.v_dim);
  must_match("quant", in.quant, source.k_quant);
  must_match("v_quant", in.v_quant,
             source.v_quant == KVC_QUANT_NONE ? KVC_QUANT_OFF : source.v_quant);
  must_match("keep_tokens", in.keep_tokens, source.keep_tokens);
  check_range(reader.field("num_q_heads").c_str(), in.num_q_heads, 0, kMaxHeads);
  if (in.num_q_heads % source.num_kv_heads != 0) {
    fail_with(KVC_E_INVALID_ARGUMENT, in.num_q_heads,
              "%s = %d is not a multiple of the source's num_kv_heads = %d",
              reader.field("num_q_heads").c_str(), in.num_q_heads, source.num_kv_heads);
  }
  const int32_t q_heads = in.num_q_heads == 0 ? source.num_q_heads : in.num_q_heads;
  spec = source;
  spec.kind = KVC_LAYER_SHARED;
  spec.num_q_heads = q_heads;
  spec.source = in.source_layer;
  spec.self_k_dim = spec.self_v_dim = 0;
}

// The layer groups of the whole model, so that all slices agree on them, with the layers and ids of
// this slice.
void take_slice(std::vector<LayerSpec> model, Spec& spec) {
  const auto num_layers = static_cast<int32_t>(model.size());
  for (int32_t index = 0; index < num_layers; ++index) {
    if (model[index].keep_tokens == 0 || model[index].kind == KVC_LAYER_SHARED) continue;
    model.push_back(kept_rows_of(model[index]));
    model.back().kept_of = index;
  }
  spec.groups = make_groups(model, {.base_page_size = spec.base_page_size,
                                    .pads_pages = spec.pads_pages,
                                    .max_seq_len = ceil_div(spec.max_seq_len, spec.cp_size),
                                    .max_cross_len = spec.max_cross_len,
                                    .tokens_in_flight = spec.tokens_in_flight()});
  std::vector<int32_t> local_of(model.size(), -1);
  for (int32_t index = spec.layer_begin; index < spec.layer_end; ++index) {
    LayerSpec& layer = spec.layers.emplace_back(std::move(model[index]));
    local_of[index] = index - spec.layer_begin;
    layer.source =
        layer.kind == KVC_LAYER_SHARED ? layer.source - spec.layer_begin : index - spec.layer_begin;
  }
  for (size_t index = static_cast<size_t>(num_layers); index < model.size(); ++index) {
    const int32_t of = local_of[model[index].kept_of];
    if (of < 0) continue;
    LayerSpec& kept = spec.layers.emplace_back(std::move(model[index]));
    kept.source = local_of[index] = spec.layers[of].kept_rows =
        static_cast<int32_t>(spec.layers.size()) - 1;
    kept.kept_of = of;
  }
  for (LayerSpec& layer : spec.layers) {
    if (layer.kind == KVC_LAYER_SHARED) layer.kept_rows = spec.layers[layer.source].kept_rows;
  }
  for (GroupSpec& group : spec.groups) {
    std::vector<int32_t> here;
    for (const int32_t layer : group.layers) {
      if (local_of[layer] >= 0) here.push_back(local_of[layer]);
    }
    group.layers = std::move(here);
  }
}

// Windows and kept rows are few tokens of every sequence, which no rule deals out over ranks.
void check_dealt_out(const LayerReader& reader, const kvc_layer& layer, int32_t cp_size) {
  const auto refuse = [&](const char* field, int64_t value) {
    fail_with(KVC_E_UNSUPPORTED, value,
              "%s = %lld is not supported with config.cp_size = %d: full attention is, and states "
              "and encoders' K and V are kept whole on every rank",
              reader.field(field).c_str(), ll(value), cp_size);
  };
  if (layer.window != 0) refuse("window", layer.window);
  if (layer.chunk != 0) refuse("chunk", layer.chunk);
  if (layer.keep_tokens != 0) refuse("keep_tokens", layer.keep_tokens);
}

// Makes layers [layer_begin, layer_end) of the model with their rotations, which go to spec.ropes,
// and the layer groups of the whole model. All layers are checked.
void read_layers(const std::vector<LayerInput>& layers, Spec& spec) {
  std::vector<LayerSpec> model;
  std::vector<RopeSpec> ropes;  // RoPE specs of every layer of the model.
  for (size_t i = 0; i < layers.size(); ++i) {
    const auto index = static_cast<int32_t>(i);
    LayerReader reader(layers[i], i);
    LayerSpec layer = reader.read();
    if (spec.cp_size > 1) check_dealt_out(reader, layers[i].layer, spec.cp_size);
    if (layer.kind == KVC_LAYER_SHARED)
      follow_source(reader, layers[i].layer, index, spec.layer_begin, model, layer);
    RopeSpec rope;
    if (layer.kind == KVC_LAYER_SHARED && !layers[i].has_rope) {
      rope = ropes[layer.source];
    } else {
      rope = make_rope(layers[i].rope, reader.prefix(),
                       layer.is_mla() ? layer.latent_rope_dim : layer.k_dim, spec.max_seq_len);
      if (layer.kind == KVC_LAYER_SHARED && rope.mode != ropes[layer.source].mode) {
        fail_with(KVC_E_INVALID_ARGUMENT, rope.mode,
                  "%s = %s (%d), the source layer %d has %s (%d)",
                  (reader.prefix() + "mode").c_str(), rope_mode_name(rope.mode), rope.mode,
                  layer.source, rope_mode_name(ropes[layer.source].mode), ropes[layer.source].mode);
      }
    }
    const bool is_here = index >= spec.layer_begin && index < spec.layer_end;
    if (is_here) layer.rope = shared_rope_index(spec.ropes, rope);
    ropes.push_back(std::move(rope));
    model.push_back(std::move(layer));
  }
  take_slice(std::move(model), spec);
}

void read_state_options(const kvc_config& config, Spec& spec) {
  check_range("config.num_state_slots", config.num_state_slots, 0, INT32_MAX - 1);
  check_range("config.state_stride", config.state_stride, -1, kMaxSequenceLength);
  if (config.state_stride > 0 && config.state_stride % spec.base_page_size != 0) {
    fail_with(KVC_E_INVALID_ARGUMENT, config.state_stride,
              "config.state_stride = %lld is not a multiple of the page size %d",
              ll(config.state_stride), spec.base_page_size);
  }
  if (!spec.has_states() && (config.state_stride != 0 || config.num_state_slots != 0)) {
    fail(KVC_E_INVALID_ARGUMENT,
         "config.state_stride = %lld and config.num_state_slots = %lld, but no layer is of kind "
         "STATE (%d)",
         ll(config.state_stride), ll(config.num_state_slots), KVC_LAYER_STATE);
  }
  if (config.num_state_slots != 0 && config.num_state_slots < kSlotsPerRequest) {
    fail_with(KVC_E_OUT_OF_RANGE, config.num_state_slots,
              "config.num_state_slots = %lld: a forward needs %lld for each sequence, its state "
              "before and after",
              ll(config.num_state_slots), ll(kSlotsPerRequest));
  }
  spec.num_state_slots = config.num_state_slots;
  spec.state_stride =
      config.state_stride == 0 ? spec.base_page_size : std::max<int64_t>(0, config.state_stride);
}

}  // namespace

Spec make_spec(const kvc_config& config, const std::vector<LayerInput>& layers) {
  Spec spec;
  constexpr uint64_t kFlags =
      KVC_CONFIG_PAD_PAGES | KVC_CONFIG_CLEAR_PAGES | KVC_CONFIG_NO_HUGE_PAGES;
  refuse_unless((config.flags & ~kFlags) == 0, "config.flags", static_cast<int64_t>(config.flags),
                "PAD_PAGES (1), CLEAR_PAGES (2) and NO_HUGE_PAGES (4) are");
  const int32_t device = static_cast<int32_t>(config.device.device_type);
  refuse_unless(device == 0 || device == kDLCPU || device == kDLCUDA, "config.device.device_type",
                device, "the CPU (1) and CUDA (2) are");
  if (device == kDLCUDA) {
    spec.device = config.device;
    check_range("config.device.device_id", config.device.device_id, 0, INT32_MAX);
  } else {
    refuse_unless(config.device.device_id == 0, "config.device.device_id", config.device.device_id,
                  "the CPU is device 0");
  }
  check_range("config.cp_size", config.cp_size, 0, kMaxContextRanks);
  spec.cp_size = std::max(1, config.cp_size);
  spec.base_page_size = config.page_size == 0 ? 16 : config.page_size;
  check_range("config.page_size", spec.base_page_size, 1, kMaxPageSize);
  check_range("config.max_seqs", config.max_seqs, 0, INT32_MAX);
  check_range("config.max_tokens_per_forward", config.max_tokens_per_forward, 0,
              kMaxSequenceLength);
  check_range("config.max_seq_len", config.max_seq_len, 0, kMaxSequenceLength);
  check_range("config.max_cross_len", config.max_cross_len, 0, kMaxSequenceLength);
  check_range("config.num_threads", config.num_threads, 0, 4096);
  check_range("config.cpu_isa", config.cpu_isa, KVC_CPU_ISA_AUTO, KVC_CPU_ISA_AVX512_BF16);
  check_range("config.forwards_in_flight", config.forwards_in_flight, 0, kMaxForwardsInFlight);
  check_range("config.event_capacity", config.event_capacity, 0, kMaxEventCapacity);
  spec.pads_pages = (config.flags & KVC_CONFIG_PAD_PAGES) != 0;
  spec.clears_pages = (config.flags & KVC_CONFIG_CLEAR_PAGES) != 0;
  spec.has_huge_pages = (config.flags & KVC_CONFIG_NO_HUGE_PAGES) == 0;
  spec.forwards_in_flight = std::max(1, config.forwards_in_flight);
  spec.host_byte_budget = config.host_byte_budget;
  spec.event_capacity = config.event_capacity;
  spec.max_seqs = config.max_seqs;
  spec.max_tokens_per_forward = config.max_tokens_per_forward;
  spec.window_reserve = config.forwards_in_flight * config.max_tokens_per_forward;
  spec.max_seq_len = config.max_seq_len;
  spec.max_cross_len = config.max_cross_len;
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
  read_layers(layers, spec);
  assign_regions(spec);
  read_state_options(config, spec);
  read_storage(config, spec);
  read_hooks(config, spec);
  return spec;
}

// Storage and hooks of a configuration: pool tensors, budgets, allocator, executor.

}  // namespace kvc
