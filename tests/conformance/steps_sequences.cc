// Steps on the plan, the cache and its sequences.
#include <gtest/gtest.h>

#include "tests/conformance/session.h"

namespace kvc::conformance {
namespace {

Json layer_json(const kvc_layer_info& info) {
  return {{"kind", info.kind},
          {"group", info.group},
          {"num_q_heads", info.num_q_heads},
          {"num_kv_heads", info.num_kv_heads},
          {"k_dim", info.k_dim},
          {"v_dim", info.v_dim},
          {"window", info.window},
          {"chunk", info.chunk},
          {"source_layer", info.source_layer},
          {"latent_rank", info.latent_rank},
          {"latent_rope_dim", info.latent_rope_dim},
          {"num_states", info.num_states},
          {"bytes_per_token", info.bytes_per_token},
          {"state_bytes", info.state_bytes}};
}

void check_plan(const Json& step, const kvc_plan* plan, int32_t layer_begin) {
  if (step.contains("groups")) {
    kvc_plan_info info{};
    info.struct_size = sizeof info;
    ASSERT_EQ(kvc_plan_info_get(plan, &info, nullptr), KVC_OK);
    EXPECT_EQ(info.num_groups, step["groups"].get<int32_t>()) << "number of page tables of a sequence";
  }
  const Json expected = step.value("layers", Json::object());
  for (const auto& [layer, fields] : expected.items()) {
    kvc_layer_info info{};
    info.struct_size = sizeof info;
    ASSERT_EQ(kvc_plan_layer_get(plan, std::stoi(layer), &info, nullptr), KVC_OK) << "layer " << layer;
    const Json actual = layer_json(info);
    for (const auto& [field, wanted] : fields.items())
      EXPECT_EQ(actual.at(field), wanted) << field << " of layer " << layer;
  }
  // Equal entries: the layers share a page table; different entries: they don't; -1: no table.
  const Json groups = step.value("layer_groups", Json::array());
  std::map<int32_t, int32_t> stated, found;
  for (size_t i = 0; i < groups.size(); ++i) {
    kvc_layer_info info{};
    info.struct_size = sizeof info;
    const int32_t layer = layer_begin + static_cast<int32_t>(i);
    ASSERT_EQ(kvc_plan_layer_get(plan, layer, &info, nullptr), KVC_OK) << "layer " << layer;
    const auto wanted = groups[i].get<int32_t>();
    if (wanted == -1 || info.group == -1) {
      EXPECT_EQ(info.group, wanted) << "group of layer " << layer;
      continue;
    }
    EXPECT_EQ(stated.emplace(wanted, info.group).first->second, info.group) << "layer " << layer;
    EXPECT_EQ(found.emplace(info.group, wanted).first->second, wanted) << "layer " << layer;
  }
  const Json requests = step.value("request_pages", Json::object());
  for (const auto& [tokens, wanted] : requests.items()) {
    int64_t pages = -1;
    ASSERT_EQ(kvc_plan_request_pages(plan, std::stoll(tokens), &pages, nullptr), KVC_OK);
    EXPECT_EQ(pages, wanted.get<int64_t>()) << "pages of a request of " << tokens << " tokens";
  }
}

// Plans the step's own configuration, or asks about the scenario's plan.
kvc_status plan(Session& session, const Json& step, kvc_error* err) {
  if (!step.contains("config")) {
    check_plan(step, session.plan, session.model.layer_begin());
    return KVC_OK;
  }
  const Model model(step["config"], session.isa);
  kvc_plan* made = nullptr;
  const kvc_status status = kvc_plan_create(&model.config(), &made, err);
  if (status == KVC_OK) check_plan(step, made, model.layer_begin());
  EXPECT_EQ(made != nullptr, status == KVC_OK) << "outputs are written on success only";
  kvc_plan_destroy(made);
  return status;
}

kvc_status can_append(Session& session, const Json& step, kvc_error* err) {
  const auto seqs = step.at("seqs").get<std::vector<kvc_seq>>();
  const auto lengths = step.at("lengths").get<std::vector<int64_t>>();
  int64_t missing = -1;
  const kvc_status status =
      kvc_seq_can_append(session.cache, seqs.size(), seqs.data(), lengths.data(), &missing, err);
  if (status == KVC_OK) {
    EXPECT_EQ(missing, step.at("missing").get<int64_t>()) << "missing pages";
  }
  return status;
}

kvc_status can(Session& session, const Json& step, kvc_error* err) {
  static const std::map<std::string, int32_t> kOps{
      {"FORK", KVC_SEQ_FORK}, {"POP", KVC_SEQ_POP}, {"SHIFT", KVC_SEQ_SHIFT}};
  int64_t nearest = -2;
  const kvc_status status =
      kvc_seq_can(session.cache, seq_of(step), look_up(step.at("what").get<std::string>(), kOps),
                  step.at("pos").get<int64_t>(), &nearest, err);
  if (status == KVC_OK) {
    EXPECT_EQ(nearest, step.at("nearest").get<int64_t>()) << "nearest position";
  }
  return status;
}

kvc_status commit(Session& session, const Json& step, kvc_error* err) {
  const auto seqs = step.at("seqs").get<std::vector<kvc_seq>>();
  const auto leaves = step.at("leaves").get<std::vector<int32_t>>();
  if (seqs.size() != leaves.size()) throw std::runtime_error("'seqs' and 'leaves' differ in length");
  return kvc_tree_commit(session.cache, seqs.size(), seqs.data(), leaves.data(), nullptr, err);
}

}  // namespace

void add_sequence_steps(Handlers& handlers) {
  handlers["plan"] = plan;
  handlers["add"] = [](Session& s, const Json& step, kvc_error* err) {
    return kvc_seq_add(s.cache, seq_of(step), err);
  };
  handlers["remove"] = [](Session& s, const Json& step, kvc_error* err) {
    return kvc_seq_remove(s.cache, seq_of(step), err);
  };
  handlers["fork"] = [](Session& s, const Json& step, kvc_error* err) {
    return kvc_seq_fork(s.cache, step.at("parent").get<kvc_seq>(), step.at("child").get<kvc_seq>(),
                        step.value("pos", int64_t{-1}), err);
  };
  handlers["pop"] = [](Session& s, const Json& step, kvc_error* err) {
    return kvc_seq_pop(s.cache, seq_of(step), step.at("n").get<int64_t>(), err);
  };
  handlers["shift"] = [](Session& s, const Json& step, kvc_error* err) {
    return kvc_seq_shift(s.cache, seq_of(step), step.at("begin").get<int64_t>(),
                         step.at("end").get<int64_t>(), step.at("delta").get<int64_t>(), err);
  };
  handlers["set_window"] = [](Session& s, const Json& step, kvc_error* err) {
    return kvc_seq_set_window(s.cache, seq_of(step), step.at("window").get<int64_t>(),
                              step.value("sink", int64_t{0}), err);
  };
  handlers["clear"] = [](Session& s, const Json&, kvc_error* err) { return kvc_cache_clear(s.cache, err); };
  handlers["resize"] = [](Session& s, const Json& step, kvc_error* err) {
    return kvc_cache_resize(s.cache, step.at("num_pages").get<int64_t>(), err);
  };
  handlers["checkpoint"] = [](Session& s, const Json& step, kvc_error* err) {
    return kvc_state_checkpoint(s.cache, seq_of(step), err);
  };
  handlers["can_append"] = can_append;
  handlers["can"] = can;
  handlers["commit"] = commit;
}

}  // namespace kvc::conformance
