// Steps that open, look at and close a forward.
#include <gtest/gtest.h>

#include <numeric>

#include "tests/conformance/rows.h"

namespace kvc::conformance {
namespace {

// -1 for the roots; or {"star": n}, {"chain": n}, {"binary": n}: node i hangs off node 0, i - 1, (i - 1) / 2.
std::vector<int32_t> tree_parents(const Json& json) {
  if (json.is_array()) return json.get<std::vector<int32_t>>();
  const std::string shape = json.begin().key();
  std::vector<int32_t> parents;
  for (int32_t i = 0; i < json.begin().value().get<int32_t>(); ++i) {
    if (i == 0)
      parents.push_back(-1);
    else if (shape == "star")
      parents.push_back(0);
    else if (shape == "chain")
      parents.push_back(i - 1);
    else if (shape == "binary")
      parents.push_back((i - 1) / 2);
    else
      throw std::runtime_error("'" + shape + "' is no shape of a tree");
  }
  return parents;
}

// Numbers of the tokens: from the step's start of each entry, else on from the largest one so far.
Ids token_ids(const Session& session, const Json& step, const std::vector<int64_t>& lengths) {
  Ids ids;
  int64_t next = session.next_id;
  for (size_t entry = 0; entry < lengths.size(); ++entry) {
    if (step.contains("ids")) next = step["ids"].at(entry).get<int64_t>();
    for (int64_t i = 0; i < lengths[entry]; ++i) ids.push_back(next++);
  }
  return ids;
}

// `positions`: one row, or one row of each section.
HostTensor position_tensor(const Json& json) {
  const bool flat = json.at(0).is_number();
  const auto columns = static_cast<int64_t>(flat ? json.size() : json[0].size());
  HostTensor tensor(
      flat ? std::vector<int64_t>{columns} : std::vector<int64_t>{static_cast<int64_t>(json.size()), columns},
      kI32);
  int64_t index = 0;
  for (const Json& row : json) {
    if (flat)
      tensor.set(index++, row.get<double>());
    else
      for (const Json& x : row) tensor.set(index++, x.get<double>());
  }
  return tensor;
}

void remember_positions(Session& session, const Json& json) {
  for (size_t t = 0; t < session.batch.ids.size(); ++t) {
    Vector position;
    if (json.at(0).is_number())
      position.push_back(json[t].get<double>());
    else
      for (const Json& row : json) position.push_back(row.at(t).get<double>());
    session.given_positions[session.batch.ids[t]] = position;
  }
}

kvc_status begin(Session& session, const Json& step, kvc_error* err) {
  Batch batch;
  batch.seqs = step.at("seqs").get<std::vector<kvc_seq>>();
  batch.lengths = step.at("lengths").get<std::vector<int64_t>>();
  if (batch.seqs.size() != batch.lengths.size())
    throw std::runtime_error("'seqs' and 'lengths' differ in length");
  batch.ids = token_ids(session, step, batch.lengths);
  kvc_forward_desc desc{};
  desc.struct_size = sizeof desc;
  desc.num_seqs = batch.seqs.size();
  desc.seqs = batch.seqs.data();
  desc.append_lengths = batch.lengths.data();
  std::vector<int32_t> parents;
  if (step.contains("tree_parents")) {
    parents = tree_parents(step["tree_parents"]);
    if (parents.size() != batch.ids.size())
      throw std::runtime_error("'tree_parents' has not one entry per token");
    desc.tree_parents = parents.data();
  }
  std::vector<int32_t> tokens(batch.ids.begin(), batch.ids.end());
  if (step.value("publish", false)) desc.tokens = tokens.data();
  if (step.value("partial", false)) desc.flags |= KVC_FORWARD_PARTIAL;
  HostTensor positions;
  if (step.contains("positions")) {
    positions = position_tensor(step["positions"]);
    desc.positions = positions.host_view();
  }
  std::vector<int64_t> cross_lengths;
  if (step.contains("cross_lengths")) {
    cross_lengths = step["cross_lengths"].get<std::vector<int64_t>>();
    desc.cross_lengths = cross_lengths.data();
    for (size_t entry = 0; entry < cross_lengths.size(); ++entry)
      for (int64_t i = 0; i < cross_lengths[entry]; ++i)
        batch.cross_ids.push_back(step.at("cross_ids").at(entry).get<int64_t>() + i);
  }
  kvc_forward* opened = nullptr;
  const kvc_status status = kvc_forward_begin(session.cache, &desc, &opened, err);
  EXPECT_EQ(opened != nullptr, status == KVC_OK) << "outputs are written on success only";
  if (status != KVC_OK) return status;
  EXPECT_EQ(kvc_forward_num_tokens(opened), static_cast<int64_t>(batch.ids.size()));
  session.fwd = opened;
  session.open = true;
  session.batch = batch;
  for (const int64_t id : batch.ids) session.next_id = std::max(session.next_id, id + 1);
  if (step.contains("positions")) remember_positions(session, step["positions"]);
  return KVC_OK;
}

kvc_status end(Session& session, const Json&, kvc_error* err) {
  const kvc_status status = kvc_forward_end(session.fwd, err);
  if (status == KVC_OK) session.open = false;
  return status;
}

kvc_status abort(Session& session, const Json&, kvc_error* err) {
  const kvc_status status = kvc_forward_abort(session.fwd, err);
  if (status == KVC_OK) session.open = false;
  return status;
}

// The call that a layer of this kind gets in a plain forward.
void run_layer(Session& session, const Json& step, int32_t layer) {
  static const Handlers kCalls = [] {
    Handlers calls;
    add_attention_steps(calls);
    add_state_steps(calls);
    return calls;
  }();
  const LayerView& view = session.model.view(layer);
  SCOPED_TRACE("layer " + std::to_string(layer));
  const auto call = [&](const char* op, const Json& arguments) {
    kvc_error error{};
    ASSERT_EQ(kCalls.at(op)(session, arguments, &error), KVC_OK) << op << ": " << error.message;
  };
  Json arguments{{"layer", layer}};
  for (const char* key : {"q", "at", "q_at", "long_from", "opt"})
    if (step.contains(key)) arguments[key] = step[key];
  const std::string number = std::to_string(layer);
  const Json layer_sees = step.value("layer_sees", Json::object());
  if (layer_sees.contains(number))
    arguments["sees"] = layer_sees[number];
  else if (step.contains("sees"))
    arguments["sees"] = step["sees"];

  if (view.keeps_tokens() || view.kind == KVC_LAYER_SHARED) {
    arguments["append"] = view.kind != KVC_LAYER_SHARED;
    call("attn", arguments);
  } else if (view.kind == KVC_LAYER_CROSS) {
    Json cross{{"layer", layer}, {"give", !session.batch.cross_ids.empty()}};
    if (step.contains("q")) cross["q"] = step["q"];
    if (step.contains("cross_sees")) cross["sees"] = step["cross_sees"];
    call("cross", cross);
  } else if (view.kind == KVC_LAYER_STATE) {
    for (size_t state = 0; state < view.states.size(); ++state) {
      for (const auto& [key, op] : {std::pair{"get", "state_get"}, std::pair{"set", "state_set"}})
        if (step.contains(key)) call(op, {{"layer", layer}, {"state", state}, {"values", step[key]}});
    }
  }
}

// begin, every layer once, end.
kvc_status forward(Session& session, const Json& step, kvc_error* err) {
  const kvc_status status = begin(session, step, err);
  if (status != KVC_OK) return status;
  if (session.model.has_storage()) {
    for (int32_t layer = session.model.layer_begin(); layer < session.model.layer_end(); ++layer) {
      run_layer(session, step, layer);
      if (testing::Test::HasFatalFailure()) return KVC_OK;
    }
  }
  return end(session, step, err);
}

kvc_status positions(Session& session, const Json& step, kvc_error* err) {
  const Json values = step.value("values", Json::array());
  const auto tokens = static_cast<int64_t>(session.batch.ids.size());
  const bool flat = values.empty() || values[0].is_number();
  HostTensor out(
      flat ? std::vector<int64_t>{tokens} : std::vector<int64_t>{static_cast<int64_t>(values.size()), tokens},
      kI32);
  const kvc_status status = kvc_forward_positions(session.fwd, out.view(), err);
  if (status != KVC_OK) return status;
  std::vector<int64_t> wanted, got;
  for (const Json& row : values) {
    if (flat)
      wanted.push_back(row.get<int64_t>());
    else
      for (const Json& x : row) wanted.push_back(x.get<int64_t>());
  }
  for (int64_t i = 0; i < out.size(); ++i) got.push_back(static_cast<int64_t>(out.get(i)));
  EXPECT_EQ(got, wanted) << "positions of the new tokens";
  return status;
}

}  // namespace

void add_forward_steps(Handlers& handlers) {
  handlers["begin"] = begin;
  handlers["end"] = end;
  handlers["abort"] = abort;
  handlers["forward"] = forward;
  handlers["positions"] = positions;
}

}  // namespace kvc::conformance
