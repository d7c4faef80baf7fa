#include "src/cache/cache_core.h"

#include <utility>

#include "src/base/error.h"
#include "src/base/log.h"
#include "src/base/math.h"
#include "src/exec/cpu/engine.h"
#include "src/exec/cuda/engine.h"

namespace kvc {
namespace {

int64_t require_pages(const Plan& plan) {
  if (plan.num_pages() == 0 && !plan.spec().groups.empty()) {
    fail(KVC_E_INVALID_ARGUMENT,
         "the plan has no pages: config.num_pages = 0 and config.byte_budget = 0");
  }
  return plan.num_pages();
}

// Kernels of the CPU alone read kept rows, and nobody but the library knows where they lie. Throws
// UNSUPPORTED.
void require_kept_rows_served(const Spec& spec) {
  if (spec.storage == KVC_STORAGE_NONE) return;
  const bool is_owned = spec.storage == KVC_STORAGE_OWNED;
  if (is_owned && !spec.is_on_gpu()) return;
  for (int32_t local = 0; local < spec.num_local_layers(); ++local) {
    const int32_t keep_tokens = spec.layers[local].keep_tokens;
    if (keep_tokens == 0) continue;
    fail_with(KVC_E_UNSUPPORTED, keep_tokens,
              "config.layers[%d].keep_tokens = %d is not supported with config.%s = %s (%d): OWNED "
              "(%d) storage on the CPU (%d), and plans of NONE (%d), are",
              spec.layer_begin + local, keep_tokens, is_owned ? "device.device_type" : "storage",
              is_owned ? "CUDA" : "BORROWED",
              is_owned ? static_cast<int>(kDLCUDA) : static_cast<int>(KVC_STORAGE_BORROWED),
              static_cast<int>(KVC_STORAGE_OWNED), static_cast<int>(kDLCPU),
              static_cast<int>(KVC_STORAGE_NONE));
  }
}

// Pages that the library allocates for kernels which do not exist would hold nothing for ever.
// Throws UNSUPPORTED.
std::shared_ptr<const Plan> require_served(std::shared_ptr<const Plan> plan) {
  const Spec& spec = plan->spec();
  if (spec.cp_size > 1) {
    fail_with(KVC_E_UNSUPPORTED, spec.cp_size,
              "config.cp_size = %d is for plans alone: a cache keeps all tokens of its sequences, "
              "expected 0 or 1",
              spec.cp_size);
  }
  require_kept_rows_served(spec);
  if (spec.storage != KVC_STORAGE_OWNED || spec.is_on_gpu()) return plan;
  for (int32_t local = 0; local < spec.num_local_layers(); ++local) {
    const LayerSpec& layer = spec.layers[local];
    if (!layer.keeps_pages() || layer.is_served_by_cpu()) continue;
    const bool is_k = !layer.is_k_served_by_cpu();
    const kvc_quant quant = is_k ? layer.k_quant : layer.v_quant;
    fail_with(KVC_E_UNSUPPORTED, quant,
              "config.layers[%d].%s = %s with %s = %s (%d) is not supported in OWNED (%d) storage "
              "on the CPU, whose kernels read types of 8 bits: store one of these, or choose "
              "config.storage = BORROWED (%d) or NONE (%d), where the host's own kernels attend",
              spec.layer_begin + local, is_k ? "k_dtype" : "v_dtype",
              (is_k ? k_type_name(layer) : v_type_name(layer)).c_str(),
              is_k || layer.v_quant == layer.k_quant ? "quant" : "v_quant", quant_name(quant),
              quant, static_cast<int>(KVC_STORAGE_OWNED), static_cast<int>(KVC_STORAGE_BORROWED),
              static_cast<int>(KVC_STORAGE_NONE));
  }
  return plan;
}

// The device of a cache with tensor memory; bookkeeping alone needs none.
Gpu find_gpu(const Spec& spec) {
  if (!spec.is_on_gpu() || spec.storage == KVC_STORAGE_NONE) return {};
  const Gpu device = require_device(spec.device.device_id);
  for (size_t i = 0; i < spec.pool_tensors.size(); ++i) {
    const int32_t where = locate(device, spec.pool_tensors[i].data);
    if (where == device.id || where == -1) continue;
    fail_with(KVC_E_DEVICE_MISMATCH, where,
              "config.pool_tensors[%zu] lies %s (%d), the cache on GPU %d", i,
              where < 0 ? "in memory that CUDA does not know" : "on another GPU", where, device.id);
  }
  return device;
}

}  // namespace

CacheCore::CacheCore(std::shared_ptr<const Plan> planned)
    : plan(require_served(std::move(planned))),
      found_gpu(find_gpu(plan->spec())),
      pool(plan, require_pages(*plan), PoolPlace::kDevice, gpu()),
      allocator(plan->num_pages()),
      states(plan, &allocator, plan->state_slot_pages(), plan->spec().num_state_slots, gpu()),
      host(plan, plan->num_host_pages(), gpu()),
      host_states(plan, &host.allocator(), plan->state_slot_pages(), 0, gpu(), gpu() != nullptr),
      executors(make_executors()),
      device(executors.device.get()),
      engine(executors.engine.get()),
      host_tier(&host, device),
      index(*plan, &allocator, &states, host.num_pages() > 0 ? &host_tier : nullptr,
            plan->spec().event_capacity),
      tiers(*this),
      publisher(plan->spec(), &index, &allocator, device, &tiers),
      sequences(&allocator, &states, &host.allocator(), &host_states, plan->spec(),
                index.block_tokens()),
      forward(plan->spec()) {
  step_bytes_ = count_step_bytes();
  log(KVC_LOG_INFO, "cache created: %lld pages of %lld bytes, kernels %s, %d threads",
      ll(plan->num_pages()), ll(plan->layout().page_bytes), device->name(), device->num_threads());
}

CacheCore::Executors CacheCore::make_executors() {
  Executors made;
  if (gpu() == nullptr) {
    auto cpu = std::make_unique<CpuDevice>(*plan, &pool, &host.pool());
    made.engine = std::make_unique<CpuEngine>(spec(), &pool, &states, cpu.get());
    made.device = std::move(cpu);
    return made;
  }
  auto cuda = std::make_unique<CudaDevice>(*plan, &pool, &host.pool(), gpu());
  made.engine = std::make_unique<CudaEngine>(*plan, &pool, &states, cuda.get());
  made.order = &cuda->order();
  made.device = std::move(cuda);
  return made;
}

int64_t CacheCore::host_bytes() const {
  is_asked_for_bytes_.store(true, std::memory_order_relaxed);
  return static_cast<int64_t>(sizeof *this) + pool.host_bytes() + allocator.host_bytes() +
         states.host_bytes() + host.host_bytes() + host_states.host_bytes() + index.host_bytes() +
         tiers.host_bytes() + publisher.host_bytes() + sequences.host_bytes() +
         (forward.is_open() ? step_bytes_ : count_step_bytes()) + spare_histories.host_bytes();
}

void CacheCore::require_alive() const {
  if (executors.order != nullptr) executors.order->require_alive();
}

void CacheCore::require_closed(const char* action) const {
  if (forward.is_open())
    fail(KVC_E_BUSY, "cannot %s: a forward over %zu sequences is open", action,
         forward.batch().entries().size());
}

void CacheCore::require_storage(const char* what) const {
  if (!pool.has_storage()) {
    fail_with(KVC_E_UNSUPPORTED, spec().storage,
              "%s needs tensor memory: config.storage = NONE (%d)", what, spec().storage);
  }
}

void CacheCore::require_readable(int32_t local_layer, const char* what) const {
  const LayerSpec& spec_of_layer = layer(local_layer);
  if (gpu() != nullptr || spec_of_layer.is_served_by_cpu()) return;
  const bool is_k = !spec_of_layer.is_k_served_by_cpu();
  const kvc_quant quant = is_k ? spec_of_layer.k_quant : spec_of_layer.v_quant;
  fail_with(KVC_E_UNSUPPORTED, quant,
            "%s: %s of layer %d is stored as %s with quant = %s (%d), which is left to the host's "
            "kernels; on the CPU types of 8 bits are supported",
            what, is_k ? "K" : "V", spec().layer_begin + local_layer,
            (is_k ? k_type_name(spec_of_layer) : v_type_name(spec_of_layer)).c_str(),
            quant_name(quant), quant);
}

void CacheCore::require_prefix_index(const char* what) const {
  if (spec().has_cross()) {
    fail_with(KVC_E_UNSUPPORTED, KVC_LAYER_CROSS,
              "%s with a layer of kind CROSS (%d) is not supported: encoder tokens are not part of "
              "the key",
              what, KVC_LAYER_CROSS);
  }
}

int32_t CacheCore::require_paged_layer(int32_t id) const {
  const int32_t source = layer(require_layer(id)).source;
  if (layer(source).keeps_pages()) return source;
  fail_with(KVC_E_UNSUPPORTED, layer(source).kind,
            "layer %d is of kind %s (%d), which keeps no pages", id,
            layer_kind_name(layer(source).kind), layer(source).kind);
}

void CacheCore::refuse_kept_rows(int32_t local_layer, const char* what) const {
  const int32_t keep_tokens = layer(local_layer).keep_tokens;
  if (keep_tokens == 0) return;
  fail_with(KVC_E_UNSUPPORTED, keep_tokens,
            "%s: layer %d has keep_tokens = %d, expected 0: its part of a page leaves out the "
            "unquantised rows of these tokens",
            what, spec().layer_begin + local_layer, keep_tokens);
}

int32_t CacheCore::require_layer(int32_t id) const {
  const int32_t local = plan->local_layer(id);
  if (local >= 0) return local;
  if (id < 0 || id >= spec().num_layers) {
    fail_with(KVC_E_OUT_OF_RANGE, id, "layer %d out of range: the cache has %d layers", id,
              spec().num_layers);
  }
  fail_with(KVC_E_OUT_OF_RANGE, id, "layer %d out of range: this cache has layers %d to %d of %d",
            id, spec().layer_begin, spec().layer_end - 1, spec().num_layers);
}

void CacheCore::require_group(int32_t id) const {
  const auto num_groups = static_cast<int32_t>(spec().groups.size());
  if (id < 0 || id >= num_groups)
    fail_with(KVC_E_OUT_OF_RANGE, id, "group %d out of range: the cache has %d groups", id,
              num_groups);
}

int64_t CacheCore::num_tree_nodes(const Sequence& sequence) const {
  const BatchEntry* entry = entry_of(sequence);
  return entry != nullptr ? entry->old_nodes : sequence.tree.size();
}

}  // namespace kvc
