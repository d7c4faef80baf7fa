#include "src/exec/cuda/new_keys.h"

#include <numeric>
#include <vector>

#include "src/base/error.h"
#include "src/exec/launch.h"

namespace kvc {

void NewKeys::secure(CudaForward& open, const AttnCall& call, const AttnTensors& tensors,
                     kernels::AttnParams* params) {
  const int64_t rows = open.step().max_rows();
  const NewKeyBytes bytes = new_key_bytes(call.layer);
  const bool has_v = tensors.v.base != nullptr;
  k_.ensure(rows * bytes.k_token, open.stream());
  if (has_v) v_.ensure(rows * bytes.v_token, open.stream());
  place_new_keys(call.layer, k_.data(), has_v ? v_.data() : nullptr, params);
  if (open.is_captured()) slots_.ensure(slots_.bytes(), open.stream());
  if (num_slots_ >= rows) return;
  if (open.is_captured()) {
    fail(KVC_E_INVALID_STATE,
         "kvc_attn_self of up to %lld tokens: before the capture, run a forward with it",
         static_cast<long long>(rows));
  }
  std::vector<int64_t> slots(static_cast<size_t>(rows));
  std::iota(slots.begin(), slots.end(), 0);
  const auto size = static_cast<int64_t>(slots.size() * sizeof(int64_t));
  slots_.ensure(size, open.stream());
  const Gpu& device = slots_.device();
  device.copy(slots_.data(), open.uploads().put(slots.data(), size, open.stream()), size,
              open.stream());
  num_slots_ = rows;
}

}  // namespace kvc
