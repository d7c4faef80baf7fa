// kvcache.h, section "Recurrent state", without its recurrences (linear.cc).
#include "src/base/tensor.h"
#include "src/capi/call.h"

using kvc::CacheCall;
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
