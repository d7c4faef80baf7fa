// kvcache.h, section "Recurrent state".
#include "src/base/tensor.h"
#include "src/capi/call.h"
#include "src/capi/guard.h"
#include "src/exec/linear.h"

using kvc::CacheCall;
using kvc::fail_with;
using kvc::guard;
using kvc::StateCall;

kvc_status kvc_state_get(kvc_forward* fwd, int32_t layer, int32_t state, DLTensor* out,
                         kvc_error* err) noexcept {
  return guard(err, [&] {
    const CacheCall call(fwd);
    StateCall states = call->forward.state(layer, state, "kvc_state_get");
    states.get(
        kvc::view_state_rows(out, "out", states.num_seqs(), states.spec().shape, states.device()));
  });
}

kvc_status kvc_state_set(kvc_forward* fwd, int32_t layer, int32_t state, const DLTensor* value,
                         kvc_error* err) noexcept {
  return guard(err, [&] {
    const CacheCall call(fwd);
    StateCall states = call->forward.state(layer, state, "kvc_state_set");
    states.set(kvc::view_state_rows(value, "value", states.num_seqs(), states.spec().shape,
                                    states.device()));
  });
}

kvc_status kvc_state_checkpoint(kvc_cache* cache, kvc_seq seq, kvc_error* err) noexcept {
  return guard(err, [&] {
    const CacheCall call(cache);
    call->sequences.checkpoint(seq);
  });
}

kvc_status kvc_state_checkpoint_release(kvc_cache* cache, kvc_seq seq, int64_t pos,
                                        kvc_error* err) noexcept {
  return guard(err, [&] {
    const CacheCall call(cache);
    call->sequences.release_checkpoint(seq, pos);
  });
}

namespace {

[[noreturn]] void fail_rank(const StateCall& states, const char* expected) {
  const std::vector<int64_t>& shape = states.spec().shape;
  fail_with(KVC_E_SHAPE, static_cast<int64_t>(shape.size()),
            "state %d of layer %d has %zu dimensions, expected %s", states.index(), states.layer(),
            shape.size(), expected);
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
    const CacheCall call(fwd);
    StateCall states = call->forward.state(layer, read.state, "kvc_attn_linear");
    const std::vector<int64_t>& shape = states.spec().shape;
    if (shape.size() != 3) fail_rank(states, "3 (heads, k dim, v dim)");
    const kvc::kernels::LinearParams params =
        kvc::read_linear(read, "opt", {q, k, v, decay, beta, out},
                         {.heads = static_cast<int32_t>(shape[0]),
                          .k_dim = static_cast<int32_t>(shape[1]),
                          .v_dim = static_cast<int32_t>(shape[2]),
                          .state_dtype = states.spec().dtype},
                         states.num_rows(), states.device());
    states.linear(params);
  });
}

kvc_status kvc_state_conv(kvc_forward* fwd, int32_t layer, int32_t state, const DLTensor* x,
                          const DLTensor* weight, const DLTensor* bias, kvc_activation activation,
                          DLTensor* out, kvc_error* err) noexcept {
  return guard(err, [&] {
    const CacheCall call(fwd);
    StateCall states = call->forward.state(layer, state, "kvc_state_conv");
    const std::vector<int64_t>& shape = states.spec().shape;
    if (shape.size() != 2) fail_rank(states, "2 (channels, kernel width - 1)");
    if (shape[1] == INT32_MAX) fail_rank(states, "a kernel width below 2^31");
    const kvc::kernels::ConvParams params =
        kvc::read_conv({x, weight, bias, out}, activation,
                       {.channels = static_cast<int32_t>(shape[0]),
                        .width = static_cast<int32_t>(shape[1]) + 1,
                        .state_dtype = states.spec().dtype},
                       states.num_rows(), states.device());
    states.conv(params);
  });
}
