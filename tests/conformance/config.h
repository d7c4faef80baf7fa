// A configuration of a case as the C structs, and what they point at.
#pragma once

#include <deque>

#include "tests/conformance/case.h"

namespace kvc::conformance {

// Fills `rope`; `factors` owns its arrays.
void read_rope(const Fields& json, kvc_rope& rope, std::deque<std::vector<float>>& factors);

class Config {
 public:
  Config(const Fields& json, kvc_cpu_isa isa);
  Config(const Config&) = delete;
  Config& operator=(const Config&) = delete;

  const kvc_config& call() const { return config_; }

 private:
  void read_layer(const Fields& json);

  kvc_config config_{};
  kvc_allocator allocator_{};
  std::vector<kvc_layer> layers_;
  // Elements must not move: the C structs point at them.
  std::deque<kvc_rope> ropes_;
  std::deque<std::vector<float>> factors_;
  std::deque<std::vector<kvc_state_spec>> states_;
  std::deque<std::vector<int64_t>> shapes_;
  std::deque<HostTensor> inits_;
};

}  // namespace kvc::conformance
