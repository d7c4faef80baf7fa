#include "tests/conformance/session.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace kvc::conformance {
namespace {

const Handlers& handlers() {
  static const Handlers table = [] {
    Handlers all;
    add_sequence_steps(all);
    add_forward_steps(all);
    add_attention_steps(all);
    add_state_steps(all);
    add_stored_steps(all);
    add_export_steps(all);
    add_operator_steps(all);
    add_prefix_steps(all);
    return all;
  }();
  return table;
}

std::vector<std::string> allowed_statuses(const Json& step) {
  if (!step.contains("status")) return {"KVC_OK"};
  if (step["status"].is_string()) return {step["status"].get<std::string>()};
  return step["status"].get<std::vector<std::string>>();
}

}  // namespace

Session::Session(const Json& json, kvc_cpu_isa cpu_isa)
    : scenario(json),
      isa(cpu_isa),
      tolerance(json.value("tolerance", 1e-5)),
      model(json.at("config"), cpu_isa) {}

Session::~Session() {
  kvc_cache_destroy(cache);
  kvc_plan_destroy(plan);
}

Vector Session::position_of(int64_t id) const {
  const auto given = given_positions.find(id);
  return given == given_positions.end() ? Vector{static_cast<double>(id)} : given->second;
}

bool Session::near(double actual, double expected) const {
  if (std::isinf(expected)) return actual == expected;
  return std::abs(actual - expected) <= tolerance * std::max(1.0, std::abs(expected));
}

int32_t Session::group_of(int32_t layer) const {
  kvc_layer_info info{};
  info.struct_size = sizeof info;
  EXPECT_EQ(kvc_plan_layer_get(plan, layer, &info, nullptr), KVC_OK) << "layer " << layer;
  return info.group;
}

void Session::run_step(const Json& step) {
  const std::string before = cache == nullptr ? "" : snapshot(*this);
  kvc_error error{};
  error.struct_size = sizeof error;
  const kvc_status status = handlers().at(step.at("op").get<std::string>())(*this, step, &error);

  const std::vector<std::string> allowed = allowed_statuses(step);
  const std::string name = kvc_status_name(status);
  ASSERT_NE(std::find(allowed.begin(), allowed.end(), name), allowed.end())
      << "answered " << name << " '" << error.message << "', expected " << allowed.front();
  if (status != KVC_OK) {
    ASSERT_EQ(error.status, status) << "kvc_error.status";
    ASSERT_NE(error.message[0], '\0') << "a refusal says why";
    ASSERT_EQ(before, snapshot(*this)) << "a refused call changed the cache";
  }
  if (step.contains("detail")) {
    ASSERT_EQ(error.detail, step["detail"].get<int64_t>()) << error.message;
  }
  if (step.contains("expect")) check_expectations(*this, step["expect"]);
  kvc_error audit{};
  ASSERT_EQ(kvc_cache_check(cache, &audit), KVC_OK) << audit.message;
}

void Session::finish() {
  if (open) {
    ASSERT_EQ(kvc_forward_abort(fwd, nullptr), KVC_OK);
  }
  open = false;
  size_t count = 0;
  ASSERT_EQ(kvc_seq_list(cache, nullptr, &count, nullptr), KVC_OK);
  std::vector<kvc_seq> seqs(count);
  if (count > 0) {
    ASSERT_EQ(kvc_seq_list(cache, seqs.data(), &count, nullptr), KVC_OK);
  }
  for (const kvc_seq seq : seqs) ASSERT_EQ(kvc_seq_remove(cache, seq, nullptr), KVC_OK) << seq;
  EXPECT_EQ(kvc_cache_is_empty(cache), 1) << "pages leak: all sequences are gone";
  kvc_error audit{};
  EXPECT_EQ(kvc_cache_check(cache, &audit), KVC_OK) << audit.message;
}

void Session::run() {
  kvc_error error{};
  ASSERT_EQ(kvc_plan_create(&model.config(), &plan, &error), KVC_OK) << error.message;
  ASSERT_EQ(kvc_cache_create(plan, &cache, &error), KVC_OK) << error.message;
  size_t number = 0;
  for (const Json& step : scenario.at("steps")) {
    SCOPED_TRACE("step " + std::to_string(number++) + " " + step.dump().substr(0, 300));
    run_step(step);
    if (testing::Test::HasFailure()) return;
  }
  SCOPED_TRACE("after the last step");
  finish();
}

}  // namespace kvc::conformance
