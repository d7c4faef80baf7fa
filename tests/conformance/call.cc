// The arguments and results of one call.
#include <gtest/gtest.h>

#include "tests/conformance/player.h"

namespace kvc::conformance {

DLTensor* Call::in(const char* key, DLDevice device) {
  return step.has(key) ? keep(step.object(key)).view(device) : nullptr;
}

DLTensor* Call::out(const char* key, DLDevice device) {
  if (!step.has(key)) return nullptr;
  const Fields want = step.object(key);
  HostTensor& result = tensors_.emplace_back(want.get<std::vector<int64_t>>("shape"),
                                             dtype_of(want.get<std::string>("dtype", "f32")));
  results_.emplace_back(key, &result);
  return result.view(device);
}

DLTensor* Call::in_place(const char* key, const char* want) {
  HostTensor& result = keep(step.object(key));
  results_.emplace_back(want, &result);
  return result.host_view();
}

int64_t* Call::answer(const char* key) { return &answers_.emplace_back(key, -2).second; }

DLTensor* Call::partial(const char* key, const char* part) {
  HostTensor& found = player.partials.at(step.get<std::string>(key)).at(part);
  if (std::string(key) == "into") results_.emplace_back(part, &found);
  return found.view();
}

const kvc_attn_opt* Call::opt(DLDevice device) {
  if (!step.has("opt")) return nullptr;
  const Fields json = step.object("opt");
  const auto tensor = [&](const char* key, DLDevice where) {
    return json.has(key) ? keep(json.object(key)).view(where) : nullptr;
  };
  opt_.struct_size = sizeof opt_;
  opt_.scale = json.get("scale", 0.0f);
  opt_.soft_cap = json.get("soft_cap", 0.0f);
  opt_.window = json.get("window", int64_t{0});
  opt_.flags = json.get("flags", uint64_t{0});
  opt_.sink_logits = tensor("sink_logits", device);
  opt_.alibi_slopes = tensor("alibi", device);
  opt_.bias = tensor("bias", device);
  opt_.spans = tensor("spans", {kDLCPU, 0});
  return &opt_;
}

const kvc_op_opt* Call::op_opt() {
  op_opt_.struct_size = sizeof op_opt_;
  op_opt_.cpu_isa = player.isa;
  op_opt_.full = step.get("full", false) ? 1 : 0;
  op_opt_.attn = opt({kDLCPU, 0});
  op_opt_.positions = host_in("positions");
  if (step.has("rope")) {
    read_rope(step.object("rope"), rope_, factors_);
    op_opt_.rope = &rope_;
  }
  return &op_opt_;
}

const kvc_op_table* Call::table() {
  const Fields json = step.object("table");
  const auto tensor = [&](const char* key) {
    return json.has(key) ? keep(json.object(key)).host_view() : nullptr;
  };
  table_.struct_size = sizeof table_;
  table_.seq_lens = tensor("seq_lens");
  table_.qo_indptr = tensor("qo_indptr");
  table_.page_indptr = tensor("page_indptr");
  table_.page_indices = tensor("page_indices");
  table_.block_table = tensor("block_table");
  return &table_;
}

const kvc_linear_opt* Call::linear_opt() {
  linear_opt_.struct_size = sizeof linear_opt_;
  linear_opt_.flags = step.get<bool>("delta") ? KVC_LINEAR_DELTA : 0;
  linear_opt_.decay = step.get<int32_t>("decay_kind");
  linear_opt_.state = state();
  linear_opt_.scale = step.get<float>("scale");
  linear_opt_.skip = in("skip");
  return &linear_opt_;
}

void Call::expect_equal(int64_t actual, const char* key) {
  if (!step.has(key)) return;
  EXPECT_EQ(actual, step.number(key)) << key;
  player.count_check();
}

void Call::check(kvc_status status) {
  for (const auto& [key, found] : answers_) {
    if (status == KVC_OK)
      expect_equal(found, key);
    else
      EXPECT_EQ(found, -2) << key << ": outputs are written on success only";
  }
  if (status != KVC_OK) return;
  for (const auto& [key, tensor] : results_) {
    player.compare(step.object(key.c_str()), *tensor, key);
    if (testing::Test::HasFatalFailure()) return;
  }
  if (!step.has("into")) return;
  for (const auto& [key, tensor] : results_)
    player.partials[step.get<std::string>("into")][key] = *tensor;
}

}  // namespace kvc::conformance
