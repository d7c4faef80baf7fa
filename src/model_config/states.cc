#include "src/model_config/states.h"

#include <utility>

#include "src/base/error.h"
#include "src/base/math.h"

namespace kvc::hf {
namespace {

// The plan's limits of a state, checked here so that the message speaks of the configuration.
State checked(State state) {
  int64_t elements = 1;
  for (const int64_t extent : state.shape) {
    if (extent < 1 || extent > INT32_MAX || !multiply(elements, extent, &elements) ||
        elements > INT32_MAX) {
      fail_with(KVC_E_OUT_OF_RANGE, extent,
                "the configuration's recurrent state is too large: one extent is %lld", ll(extent));
    }
  }
  return state;
}

}  // namespace

State conv_state(const Model& model, int64_t channels, int64_t kernel) {
  return checked({model.dtype, {channels, kernel - 1}});
}

State recurrent_state(const Fields& config, const Model& model, std::vector<int64_t> shape) {
  const char* name = config.first_of({"mamba_ssm_dtype", "mamba_ssm_cache_dtype"});
  DLDataType dtype{kDLFloat, 32, 1};
  if (config.has(name)) dtype = config.text(name) == "auto" ? model.dtype : dtype_of(config, name);
  return checked({dtype, std::move(shape)});
}

int32_t add_mamba(const Fields& config, const MambaShape& shape, Model& model) {
  return model.state_set({conv_state(model, shape.channels, shape.kernel),
                          recurrent_state(config, model, {shape.channels, shape.state_size})});
}

int32_t add_mamba2(const Fields& config, const Mamba2Shape& shape, Model& model) {
  const int64_t channels = shape.heads * shape.head_dim + 2 * shape.groups * shape.state_size;
  return model.state_set(
      {conv_state(model, channels, shape.kernel),
       recurrent_state(config, model, {shape.heads, shape.state_size, shape.head_dim})});
}

}  // namespace kvc::hf
