// kvcache.h, section "Recurrent state": the recurrences over the states of an open forward.
#include "src/exec/linear.h"

#include "src/base/tensor.h"
#include "src/capi/handles.h"
#include "src/capi/sized_struct.h"

namespace {

using kvc::Cache;
using kvc::fail;
using kvc::fail_with;
using kvc::guard;
using kvc::StateSpec;

struct StateCall {
  Cache& cache;
  int32_t local;
  const StateSpec& spec;
  int64_t num_rows;
};

StateCall open_state(kvc_forward* fwd, int32_t layer, int32_t state, const char* function) {
  Cache& cache = kvc::open_cache(fwd);
  const int32_t local = cache.require_state_layer(layer, state, function);
  cache.require_storage(function);
  return {cache, local,
          cache.spec().layers[static_cast<size_t>(local)].states[static_cast<size_t>(state)],
          cache.forward().batch().num_rows()};
}

[[noreturn]] void fail_rank(const StateCall& call, int32_t layer, int32_t state,
                            const char* expected) {
  fail_with(KVC_E_SHAPE, static_cast<int64_t>(call.spec.shape.size()),
            "state %d of layer %d has %zu dimensions, expected %s", state, layer,
            call.spec.shape.size(), expected);
}

}  // namespace

kvc_status kvc_attn_linear(kvc_forward* fwd, int32_t layer, const kvc_linear_opt* opt,
                           const DLTensor* q, const DLTensor* k, const DLTensor* v,
                           const DLTensor* decay, const DLTensor* beta, DLTensor* out,
                           kvc_error* err) noexcept {
  return guard(err, [&] {
    kvc_linear_opt read{};
    if (opt != nullptr) {
      read = kvc::read_struct(opt, "opt");
      kvc::refuse_extensions(read.ext, "opt");
    }
    const StateCall call = open_state(fwd, layer, read.state, "kvc_attn_linear");
    const std::vector<int64_t>& shape = call.spec.shape;
    if (shape.size() != 3) fail_rank(call, layer, read.state, "3 (heads, k dim, v dim)");
    const kvc::kernels::LinearParams params =
        kvc::read_linear(read, "opt", {q, k, v, decay, beta, out},
                         {.heads = static_cast<int32_t>(shape[0]),
                          .k_dim = static_cast<int32_t>(shape[1]),
                          .v_dim = static_cast<int32_t>(shape[2]),
                          .state_dtype = call.spec.dtype},
                         call.num_rows, call.cache.spec().device);
    call.cache.engine().linear(call.cache.forward(), {call.local, read.state}, params);
    call.cache.forward().written().mark_state_set(call.local, read.state);
  });
}

kvc_status kvc_state_conv(kvc_forward* fwd, int32_t layer, int32_t state, const DLTensor* x,
                          const DLTensor* weight, const DLTensor* bias, kvc_activation activation,
                          DLTensor* out, kvc_error* err) noexcept {
  return guard(err, [&] {
    const StateCall call = open_state(fwd, layer, state, "kvc_state_conv");
    const std::vector<int64_t>& shape = call.spec.shape;
    if (shape.size() != 2) fail_rank(call, layer, state, "2 (channels, kernel width - 1)");
    if (shape[1] == INT32_MAX) fail_rank(call, layer, state, "a kernel width below 2^31");
    const kvc::kernels::ConvParams params =
        kvc::read_conv({x, weight, bias, out}, activation,
                       {.channels = static_cast<int32_t>(shape[0]),
                        .width = static_cast<int32_t>(shape[1]) + 1,
                        .state_dtype = call.spec.dtype},
                       call.num_rows, call.cache.spec().device);
    call.cache.engine().conv(call.cache.forward(), {call.local, state}, params);
    call.cache.forward().written().mark_state_set(call.local, state);
  });
}
