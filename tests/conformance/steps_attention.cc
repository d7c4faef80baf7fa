// Steps that append to layers and attend, inside an open forward (or on a dead handle, when none is open).
#include <gtest/gtest.h>

#include "tests/conformance/rows.h"

namespace kvc::conformance {
namespace {

void check_sees(Session& session, const Json& step, const Rows& rows, const Options& options,
                const Partial& result) {
  if (step.contains("sees")) check_rows(session, step, step["sees"], rows, options, result);
}

// A layer that the scenario has not got is asked for with the first one's shapes.
Rows rows_or_any(const Session& session, int32_t layer) {
  const auto count = static_cast<int32_t>(session.model.layers().size());
  Rows rows = rows_of_layer(session, layer >= 0 && layer < count ? layer : 0);
  // Layers without heads (STATE, NONE) get one: the call is to be refused for its layer.
  if (rows.q_heads < 1) rows.q_heads = rows.kv_heads = 1;
  if (rows.k_dim < 1) rows.k_dim = rows.v_dim = 4;
  return rows;
}

kvc_status attn(Session& session, const Json& step, kvc_error* err) {
  const int32_t layer = layer_of(step);
  const Rows rows = rows_or_any(session, layer);
  const Options options(step, rows.q_heads);
  HostTensor q = query_tensor(step, rows);
  HostTensor k = key_tensor(Kind::kKey, rows.key_layer, rows.ids, rows.kv_heads, rows.k_dim);
  HostTensor v = value_tensor(rows);
  Partial result = output_tensors(rows);
  const bool append = step.value("append", true);
  const kvc_status status =
      kvc_attn(session.fwd, layer, options.call(), q.view(), append ? k.view() : nullptr,
               append && !rows.v_is_k ? v.view() : nullptr, result.out.view(), result.lse.view(), err);
  if (status == KVC_OK) check_sees(session, step, rows, options, result);
  return status;
}

kvc_status fused(Session& session, const Json& step, kvc_error* err) {
  const int32_t layer = layer_of(step);
  const Rows rows = rows_or_any(session, layer);
  const Options options(step, rows.q_heads);
  HostTensor q = query_tensor(step, rows);
  HostTensor k = key_tensor(Kind::kKey, rows.key_layer, rows.ids, rows.kv_heads, rows.k_dim);
  HostTensor v = key_tensor(Kind::kValue, rows.key_layer, rows.ids, rows.kv_heads, rows.k_dim);
  HostTensor qkv({static_cast<int64_t>(rows.ids.size()) + 1, rows.q_heads + 2 * rows.kv_heads, rows.k_dim});
  int64_t index = 0;
  for (int64_t t = 0; t < static_cast<int64_t>(rows.ids.size()); ++t) {
    for (int64_t i = 0; i < rows.q_heads * rows.k_dim; ++i)
      qkv.set(index++, q.get(t * rows.q_heads * rows.k_dim + i));
    for (HostTensor* part : {&k, &v})
      for (int64_t i = 0; i < rows.kv_heads * rows.k_dim; ++i)
        qkv.set(index++, part->get(t * rows.kv_heads * rows.k_dim + i));
  }
  Partial result = output_tensors(rows);
  const kvc_status status =
      kvc_attn_fused_qkv(session.fwd, layer, options.call(), qkv.view(), result.out.view(), err);
  result.lse = HostTensor({0, rows.q_heads});
  if (status == KVC_OK) check_sees(session, step, rows, options, result);
  return status;
}

// MLA: the ragged form with the identity as projection: every head gets the latent as K and its first elements as V.
kvc_status self(Session& session, const Json& step, kvc_error* err) {
  const int32_t layer = layer_of(step);
  const Rows rows = rows_or_any(session, layer);
  const Options options(step, rows.q_heads);
  const bool mla = rows.v_is_k;
  const int32_t heads = mla ? rows.q_heads : rows.kv_heads;
  HostTensor q = query_tensor(step, rows);
  HostTensor k({static_cast<int64_t>(rows.ids.size()) + 1, heads, rows.k_dim});
  HostTensor v({static_cast<int64_t>(rows.ids.size()) + 1, heads, rows.v_dim});
  int64_t ki = 0, vi = 0;
  for (const int64_t id : rows.ids) {
    for (int32_t h = 0; h < heads; ++h) {
      for (int32_t d = 0; d < rows.k_dim; ++d)
        k.set(ki++, value(Kind::kKey, rows.key_layer, id, mla ? 0 : h, d));
      for (int32_t d = 0; d < rows.v_dim; ++d)
        v.set(vi++, value(mla ? Kind::kKey : Kind::kValue, rows.key_layer, id, mla ? 0 : h, d));
    }
  }
  Partial result = output_tensors(rows);
  const kvc_status status = kvc_attn_self(session.fwd, layer, options.call(), q.view(), k.view(), v.view(),
                                          result.out.view(), result.lse.view(), err);
  if (status != KVC_OK) return status;
  check_sees(session, step, rows, options, result);
  if (step.contains("into")) session.partials[step["into"].get<std::string>()] = result;
  return status;
}

kvc_status cached(Session& session, const Json& step, kvc_error* err) {
  const int32_t layer = layer_of(step);
  const Rows rows = rows_or_any(session, layer);
  const Options options(step, rows.q_heads);
  HostTensor q = query_tensor(step, rows);
  Partial result = output_tensors(rows);
  const kvc_status status = kvc_attn_cached(session.fwd, layer, options.call(), q.view(), result.out.view(),
                                            result.lse.view(), err);
  if (status != KVC_OK) return status;
  check_sees(session, step, rows, options, result);
  if (step.contains("into")) session.partials[step["into"].get<std::string>()] = result;
  return status;
}

kvc_status merge(Session& session, const Json& step, kvc_error* err) {
  Partial& into = session.partials.at(step.at("into").get<std::string>());
  Partial& other = session.partials.at(step.at("other").get<std::string>());
  const kvc_status status =
      kvc_attn_merge(session.fwd, into.out.view(), into.lse.view(), other.out.view(), other.lse.view(), err);
  if (status == KVC_OK) {
    const Rows rows = rows_or_any(session, layer_of(step));
    check_sees(session, step, rows, Options(step, rows.q_heads), into);
  }
  return status;
}

kvc_status append(Session& session, const Json& step, kvc_error* err) {
  const int32_t layer = layer_of(step);
  const Rows rows = rows_or_any(session, layer);
  HostTensor k = key_tensor(Kind::kKey, rows.key_layer, rows.ids, rows.kv_heads, rows.k_dim);
  HostTensor v = value_tensor(rows);
  return kvc_kv_append(session.fwd, layer, k.view(), rows.v_is_k ? nullptr : v.view(), err);
}

kvc_status mla_append(Session& session, const Json& step, kvc_error* err) {
  const int32_t layer = layer_of(step);
  const Rows rows = rows_or_any(session, layer);
  HostTensor latent = key_tensor(Kind::kKey, rows.key_layer, rows.ids, 1, rows.k_dim);
  return kvc_mla_append(session.fwd, layer, latent.view(), err);
}

kvc_status cross(Session& session, const Json& step, kvc_error* err) {
  const int32_t layer = layer_of(step);
  Rows rows = rows_or_any(session, layer);
  const Options options(step, rows.q_heads);
  HostTensor q = query_tensor(step, rows);
  HostTensor k = key_tensor(Kind::kKey, rows.key_layer, session.batch.cross_ids, rows.kv_heads, rows.k_dim);
  HostTensor v = key_tensor(Kind::kValue, rows.key_layer, session.batch.cross_ids, rows.kv_heads, rows.v_dim);
  Partial result = output_tensors(rows);
  const bool give = step.value("give", false);
  const kvc_status status =
      kvc_attn_cross(session.fwd, layer, options.call(), q.view(), give ? k.view() : nullptr,
                     give ? v.view() : nullptr, result.out.view(), result.lse.view(), err);
  if (status == KVC_OK) check_sees(session, step, rows, options, result);
  return status;
}

kvc_status shared_kv(Session& session, const Json& step, kvc_error* err) {
  const int32_t source = step.at("source").get<int32_t>();
  Rows rows = rows_or_any(session, source);
  rows.q_heads = step.value("q_heads", rows.q_heads);
  const Options options(step, rows.q_heads);
  HostTensor q = query_tensor(step, rows);
  Partial result = output_tensors(rows);
  const kvc_status status = kvc_attn_shared_kv(session.fwd, source, options.call(), q.view(),
                                               result.out.view(), result.lse.view(), err);
  if (status == KVC_OK) check_sees(session, step, rows, options, result);
  return status;
}

}  // namespace

void add_attention_steps(Handlers& handlers) {
  handlers["attn"] = attn;
  handlers["fused"] = fused;
  handlers["self"] = self;
  handlers["cached"] = cached;
  handlers["merge"] = merge;
  handlers["append"] = append;
  handlers["mla_append"] = mla_append;
  handlers["cross"] = cross;
  handlers["shared_kv"] = shared_kv;
}

}  // namespace kvc::conformance
