// Steps that compare what the pages hold with the formulas, write it, and export page tables.
#include <gtest/gtest.h>

#include <limits>

#include "tests/conformance/rows.h"

namespace kvc::conformance {
namespace {

bool is_long(const Json& step, int64_t id) {
  return id >= step.value("long_from", std::numeric_limits<int64_t>::max());
}

// K as stored: turned when the layer rotates on append, at `at` or else at the tokens' own positions.
Vector stored_key(const Session& session, const Json& step, const Rows& rows, size_t index, int64_t id,
                  int64_t head) {
  const bool turned = step.contains("at");
  const Vector position =
      turned ? Vector{static_cast<double>(parse_ids(step["at"].get<std::string>()).at(index))}
             : session.position_of(id);
  return key_vector(rows, id, head, position, is_long(step, id));
}

// K and V of one layer as the library returned them, [n >= ids][heads][dim].
void check_stored(const Session& session, const Json& step, int32_t layer, const Ids& ids,
                  const HostTensor& k, const HostTensor& v) {
  Rows rows = rows_of_layer(session, layer);
  const bool on_append =
      session.model.config().layers[session.model.keys_of(layer)].rope != nullptr &&
      session.model.config().layers[session.model.keys_of(layer)].rope->mode == KVC_ROPE_ON_APPEND;
  if (!on_append) rows.rope.on = false;
  for (size_t i = 0; i < ids.size(); ++i) {
    for (int32_t h = 0; h < rows.kv_heads; ++h) {
      const Vector key = stored_key(session, step, rows, i, ids[i], h);
      const auto row = static_cast<int64_t>(i) * rows.kv_heads + h;
      for (int32_t d = 0; k.size() > 0 && d < rows.k_dim; ++d)
        ASSERT_TRUE(session.near(k.get(row * rows.k_dim + d), key[static_cast<size_t>(d)]))
            << "K " << k.get(row * rows.k_dim + d) << " instead of " << key[static_cast<size_t>(d)]
            << " of token " << i << " (id " << ids[i] << ") layer " << layer << " head " << h << " element "
            << d;
      for (int32_t d = 0; v.size() > 0 && d < rows.v_dim; ++d) {
        const double want = value(Kind::kValue, rows.key_layer, ids[i], h, d);
        ASSERT_TRUE(session.near(v.get(row * rows.v_dim + d), want))
            << "V " << v.get(row * rows.v_dim + d) << " instead of " << want << " of token " << i << " (id "
            << ids[i] << ") layer " << layer << " head " << h << " element " << d;
      }
    }
  }
}

kvc_status stored_in_layer(Session& session, const Json& step, int32_t layer, kvc_error* err) {
  const Ids ids = parse_ids(step.value("ids", ""));
  const auto count = static_cast<size_t>(layer) < session.model.layers().size();
  const Rows rows = rows_of_layer(session, count ? layer : 0);
  const int64_t begin = step.value("begin", int64_t{0});
  const int64_t end = step.value("end", begin + static_cast<int64_t>(ids.size()));
  const int64_t n = std::max<int64_t>(end - begin, 0);
  HostTensor k({n, std::max(rows.kv_heads, 1), std::max(rows.k_dim, 1)});
  HostTensor v({rows.v_is_k ? 0 : n, std::max(rows.kv_heads, 1), std::max(rows.v_dim, 1)});
  const kvc_status status = kvc_debug_get_layer(session.cache, seq_of(step), layer, begin, end, k.view(),
                                                rows.v_is_k ? nullptr : v.view(), nullptr, err);
  if (status != KVC_OK) return status;
  EXPECT_EQ(static_cast<int64_t>(ids.size()), n) << "'ids' does not cover [begin, end)";
  check_stored(session, step, layer, ids, k, v);
  return status;
}

// Without "layer": every layer that keeps its own tokens.
kvc_status stored(Session& session, const Json& step, kvc_error* err) {
  if (step.contains("layer")) return stored_in_layer(session, step, step["layer"].get<int32_t>(), err);
  for (int32_t layer = session.model.layer_begin(); layer < session.model.layer_end(); ++layer) {
    if (!session.model.view(layer).keeps_tokens()) continue;
    const kvc_status status = stored_in_layer(session, step, layer, err);
    if (status != KVC_OK || testing::Test::HasFatalFailure()) return status;
  }
  return KVC_OK;
}

// Values as they are to be stored: K is not turned.
kvc_status store(Session& session, const Json& step, kvc_error* err) {
  const auto layer = step.at("layer").get<int32_t>();
  Rows rows = rows_of_layer(session, layer);
  const Ids ids = parse_ids(step.at("ids").get<std::string>());
  const auto n = static_cast<int64_t>(ids.size());
  HostTensor k({n, rows.kv_heads, rows.k_dim}), v({n, rows.kv_heads, rows.v_dim});
  int64_t ki = 0, vi = 0;
  for (const int64_t id : ids) {
    for (int32_t h = 0; h < rows.kv_heads; ++h) {
      for (int32_t d = 0; d < rows.k_dim; ++d) k.set(ki++, value(Kind::kKey, rows.key_layer, id, h, d));
      for (int32_t d = 0; d < rows.v_dim; ++d) v.set(vi++, value(Kind::kValue, rows.key_layer, id, h, d));
    }
  }
  return kvc_debug_set_layer(session.cache, seq_of(step), layer, step.at("begin").get<int64_t>(), k.view(),
                             rows.v_is_k ? nullptr : v.view(), nullptr, err);
}

kvc_status gather(Session& session, const Json& step, kvc_error* err) {
  const auto layer = step.at("layer").get<int32_t>();
  const Rows rows = rows_of_layer(session, layer);
  const Ids ids = parse_ids(step.value("ids", ""));
  const auto n = static_cast<int64_t>(ids.size());
  // A refusal may come before or after the shapes are looked at: leave room for any sequence of a scenario.
  const int64_t room = std::max<int64_t>(n, step.contains("status") ? 64 : 0);
  HostTensor k({room, rows.kv_heads, rows.k_dim}), v({rows.v_is_k ? 0 : room, rows.kv_heads, rows.v_dim});
  const kvc_status status =
      kvc_kv_gather(session.fwd, layer, seq_of(step), k.view(), rows.v_is_k ? nullptr : v.view(), err);
  if (status == KVC_OK) check_stored(session, step, layer, ids, k, v);
  return status;
}

// Calls over all ATTENTION layers of the slice (`mla`: over its MLA layers), which have equal shapes in such scenarios.
struct Stack {
  std::vector<int32_t> layers;
  Rows rows;
};
Stack stack_of(const Session& session, kvc_layer_kind kind) {
  Stack stack;
  for (int32_t layer = session.model.layer_begin(); layer < session.model.layer_end(); ++layer)
    if (session.model.view(layer).kind == kind) stack.layers.push_back(layer);
  stack.rows = rows_of_layer(session, stack.layers.empty() ? 0 : stack.layers[0]);
  return stack;
}

kvc_status stored_stack(Session& session, const Json& step, kvc_error* err, bool mla) {
  const Stack stack = stack_of(session, mla ? KVC_LAYER_MLA : KVC_LAYER_ATTENTION);
  const Rows& rows = stack.rows;
  const Ids ids = parse_ids(step.value("ids", ""));
  const int64_t begin = step.value("begin", int64_t{0});
  const int64_t end = step.value("end", begin + static_cast<int64_t>(ids.size()));
  // Every layer of the slice counts; those of another kind are left as they are.
  const int64_t layers = session.model.layer_end() - session.model.layer_begin();
  const int64_t n = std::max<int64_t>(end - begin, 0);
  const int64_t k_size = n * rows.kv_heads * rows.k_dim, v_size = n * rows.kv_heads * rows.v_dim;
  HostTensor k(mla ? std::vector<int64_t>{layers, n, rows.k_dim}
                   : std::vector<int64_t>{layers, n, rows.kv_heads, rows.k_dim});
  HostTensor v({layers, n, rows.kv_heads, rows.v_dim});
  const kvc_status status =
      mla ? kvc_debug_get_mla(session.cache, seq_of(step), begin, end, k.view(), nullptr, err)
          : kvc_debug_get_kv(session.cache, seq_of(step), begin, end, k.view(), v.view(), nullptr, err);
  if (status != KVC_OK) return status;
  EXPECT_EQ(static_cast<int64_t>(ids.size()), n) << "'ids' does not cover [begin, end)";
  for (size_t i = 0; i < stack.layers.size(); ++i) {
    const int64_t slot = stack.layers[i] - session.model.layer_begin();
    HostTensor one_k({n, rows.kv_heads, rows.k_dim}), one_v({mla ? 0 : n, rows.kv_heads, rows.v_dim});
    for (int64_t j = 0; j < k_size; ++j) one_k.set(j, k.get(slot * k_size + j));
    for (int64_t j = 0; !mla && j < v_size; ++j) one_v.set(j, v.get(slot * v_size + j));
    check_stored(session, step, stack.layers[i], ids, one_k, one_v);
  }
  return status;
}

kvc_status store_stack(Session& session, const Json& step, kvc_error* err, bool mla) {
  const Stack stack = stack_of(session, mla ? KVC_LAYER_MLA : KVC_LAYER_ATTENTION);
  const Rows& rows = stack.rows;
  const Ids ids = parse_ids(step.at("ids").get<std::string>());
  const auto n = static_cast<int64_t>(ids.size());
  const int64_t layers = session.model.layer_end() - session.model.layer_begin();
  HostTensor k(mla ? std::vector<int64_t>{layers, n, rows.k_dim}
                   : std::vector<int64_t>{layers, n, rows.kv_heads, rows.k_dim});
  HostTensor v({layers, n, rows.kv_heads, rows.v_dim});
  int64_t ki = 0, vi = 0;
  for (int64_t i = 0; i < layers; ++i) {
    const int32_t layer = session.model.layer_begin() + static_cast<int32_t>(i);
    for (const int64_t id : ids) {
      for (int32_t h = 0; h < rows.kv_heads; ++h) {
        for (int32_t d = 0; d < rows.k_dim; ++d) k.set(ki++, value(Kind::kKey, layer, id, h, d));
        for (int32_t d = 0; d < rows.v_dim; ++d) v.set(vi++, value(Kind::kValue, layer, id, h, d));
      }
    }
  }
  const int64_t begin = step.at("begin").get<int64_t>();
  return mla ? kvc_debug_set_mla(session.cache, seq_of(step), begin, k.view(), nullptr, err)
             : kvc_debug_set_kv(session.cache, seq_of(step), begin, k.view(), v.view(), nullptr, err);
}

}  // namespace

void add_stored_steps(Handlers& handlers) {
  handlers["stored"] = stored;
  handlers["store"] = store;
  handlers["gather"] = gather;
  handlers["stored_kv"] = [](Session& s, const Json& step, kvc_error* err) {
    return stored_stack(s, step, err, false);
  };
  handlers["stored_mla"] = [](Session& s, const Json& step, kvc_error* err) {
    return stored_stack(s, step, err, true);
  };
  handlers["store_kv"] = [](Session& s, const Json& step, kvc_error* err) {
    return store_stack(s, step, err, false);
  };
  handlers["store_mla"] = [](Session& s, const Json& step, kvc_error* err) {
    return store_stack(s, step, err, true);
  };
}

}  // namespace kvc::conformance
