// kvcache.h, section "Recurrent state", without its recurrences (linear.cc).
#include "src/base/tensor.h"
#include "src/capi/handles.h"

using kvc::Cache;
using kvc::guard;
using kvc::require;

namespace {

const std::vector<int64_t>& state_shape(const Cache& cache, int32_t local, int32_t state) {
  return cache.spec().layers[static_cast<size_t>(local)].states[static_cast<size_t>(state)].shape;
}

}  // namespace

kvc_status kvc_state_get(kvc_forward* fwd, int32_t layer, int32_t state, DLTensor* out,
                         kvc_error* err) noexcept {
  return guard(err, [&] {
    Cache& cache = kvc::open_cache(fwd);
    const int32_t local = cache.require_state_layer(layer, state, "kvc_state_get");
    cache.require_storage("kvc_state_get");
    const auto count = static_cast<int64_t>(cache.forward().batch().entries().size());
    cache.engine().get_states(
        cache.forward(), {local, state},
        kvc::view_state_rows(out, "out", count, state_shape(cache, local, state),
                             cache.spec().device));
  });
}

kvc_status kvc_state_set(kvc_forward* fwd, int32_t layer, int32_t state, const DLTensor* value,
                         kvc_error* err) noexcept {
  return guard(err, [&] {
    Cache& cache = kvc::open_cache(fwd);
    const int32_t local = cache.require_state_layer(layer, state, "kvc_state_set");
    cache.require_storage("kvc_state_set");
    const auto count = static_cast<int64_t>(cache.forward().batch().entries().size());
    cache.engine().set_states(
        cache.forward(), {local, state},
        kvc::view_state_rows(value, "value", count, state_shape(cache, local, state),
                             cache.spec().device));
    cache.forward().written().mark_state_set(local, state);
  });
}

kvc_status kvc_state_checkpoint(kvc_cache* cache, kvc_seq seq, kvc_error* err) noexcept {
  return guard(err, [&] {
    require(cache, "cache");
    cache->cache.checkpoint(seq);
  });
}
