#include "src/plan/spec.h"

#include <algorithm>
#include <numeric>

#include "src/base/error.h"
#include "src/plan/layout.h"
#include "src/plan/spec_parts.h"

namespace kvc {
namespace {

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

void refuse_unless(bool supported, const char* field, int64_t value, const char* expected) {
  if (!supported)
    fail_with(KVC_E_UNSUPPORTED, value, "%s = %lld is not supported: %s", field, ll(value),
              expected);
}

void check_range(const char* field, int64_t value, int64_t least, int64_t most) {
  if (value < least || value > most) {
    fail_with(KVC_E_OUT_OF_RANGE, value, "%s = %lld out of range: %lld to %lld", field, ll(value),
              ll(least), ll(most));
  }
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

int32_t Spec::num_position_rows() const {
  int32_t most = 1;
  for (const RopeSpec& rope : ropes) most = std::max(most, rope.num_sections);
  return most;
}

bool Spec::has_rope_mode(kvc_rope_mode mode) const {
  return std::any_of(ropes.begin(), ropes.end(),
                     [&](const RopeSpec& rope) { return rope.mode == mode; });
}

Spec make_spec(const kvc_config& config, const std::vector<LayerInput>& layers) {
  Spec spec;
  refuse_unless((config.flags & ~uint64_t{KVC_CONFIG_PAD_PAGES | KVC_CONFIG_CLEAR_PAGES}) == 0,
                "config.flags", static_cast<int64_t>(config.flags),
                "PAD_PAGES (1) and CLEAR_PAGES (2) are");
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
  refuse_unless(config.reserved == 0, "config.reserved", config.reserved, "0 is");
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

}  // namespace kvc
