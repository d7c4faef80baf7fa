// Steps on the stateless operators, over pools that the scenario makes. The formulas take layer number 0.
#include <gtest/gtest.h>

#include "tests/conformance/linear.h"
#include "tests/conformance/rows.h"

namespace kvc::conformance {
namespace {

HostTensor integers(const Json& json, DLDataType dtype) {
  const bool flat = json.empty() || json[0].is_number();
  std::vector<int64_t> shape{static_cast<int64_t>(json.size())};
  if (!flat) shape.push_back(static_cast<int64_t>(json[0].size()));
  HostTensor tensor(shape, dtype);
  int64_t index = 0;
  for (const Json& row : json) {
    if (flat)
      tensor.set(index++, row.get<double>());
    else
      for (const Json& x : row) tensor.set(index++, x.get<double>());
  }
  return tensor;
}

// kvc_op_opt of a step, with what it points at.
class OperatorOptions {
 public:
  OperatorOptions(const Session& session, const Json& step, const char* positions_key, int32_t q_heads,
                  int32_t head_dim)
      : attn_(step, q_heads, {kDLCPU, 0}) {
    call_.struct_size = sizeof call_;
    call_.cpu_isa = session.isa;
    call_.full = step.value("full", false) ? 1 : 0;
    call_.attn = attn_.call();
    if (step.contains(positions_key)) {
      positions_ = integers(step[positions_key], kI32);
      call_.positions = positions_.host_view();
    }
    if (step.contains("rope")) {
      rope = read_rope(step["rope"], head_dim, 0, rope_, factors_);
      call_.rope = &rope_;
    }
  }
  OperatorOptions(const OperatorOptions&) = delete;
  OperatorOptions& operator=(const OperatorOptions&) = delete;

  const kvc_op_opt* call() const { return &call_; }
  const Options& attn() const { return attn_; }
  Rope rope;

 private:
  Options attn_;
  kvc_op_opt call_{};
  HostTensor positions_;
  kvc_rope rope_{};
  std::deque<std::vector<float>> factors_;
};

struct Table {
  explicit Table(const Json& json) {
    call.struct_size = sizeof call;
    const auto take = [&](const char* key, const DLTensor*& slot) {
      if (json.contains(key)) slot = tensors.emplace_back(integers(json[key], kI32)).host_view();
    };
    take("seq_lens", call.seq_lens);
    take("qo_indptr", call.qo_indptr);
    take("page_indptr", call.page_indptr);
    take("page_indices", call.page_indices);
    take("block_table", call.block_table);
  }
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;

  std::deque<HostTensor> tensors;
  kvc_op_table call{};
};

HostPool& pool_of(Session& session, const Json& step) {
  return session.pools.at(step.at("pool").get<std::string>());
}

kvc_status op_pool(Session& session, const Json& step, kvc_error*) {
  static const std::map<std::string, int32_t> kLayouts{
      {"HND", KVC_OP_HND}, {"NHD", KVC_OP_NHD}, {"MLA", KVC_OP_MLA}};
  const kvc_op_layout layout = look_up(step.at("layout").get<std::string>(), kLayouts);
  const auto pages = step.at("num_pages").get<int64_t>(), page_size = step.at("page_size").get<int64_t>();
  HostPool pool;
  pool.heads = layout == KVC_OP_MLA ? 1 : step.value("heads", 1);
  pool.k_dim = step.value("k_dim", 4);
  pool.v_dim = layout == KVC_OP_MLA ? 0 : step.value("v_dim", pool.k_dim);
  const auto shape = [&](int64_t dim) {
    if (layout == KVC_OP_HND) return std::vector<int64_t>{pages, pool.heads, page_size, dim};
    if (layout == KVC_OP_NHD) return std::vector<int64_t>{pages, page_size, pool.heads, dim};
    return std::vector<int64_t>{pages, page_size, dim};
  };
  const DLDataType dtype = dtype_of(step.value("dtype", "f32"));
  pool.k = HostTensor(shape(pool.k_dim), dtype);
  if (layout != KVC_OP_MLA) pool.v = HostTensor(shape(pool.v_dim), dtype);
  HostPool& kept = session.pools[step.at("pool").get<std::string>()] = std::move(pool);
  kept.call.struct_size = sizeof kept.call;
  kept.call.layout = layout;
  kept.call.k = kept.k.host_view();
  kept.call.v = layout == KVC_OP_MLA ? nullptr : kept.v.host_view();
  return KVC_OK;
}

Rows rows_of_pool(const HostPool& pool, const Json& step) {
  Rows rows;
  rows.kv_heads = pool.heads;
  rows.q_heads = step.value("q_heads", pool.heads);
  rows.k_dim = pool.k_dim;
  rows.v_dim = pool.v_dim == 0 ? step.value("latent_rank", pool.k_dim) : pool.v_dim;
  rows.v_is_k = pool.v_dim == 0;
  return rows;
}

kvc_status op_append(Session& session, const Json& step, kvc_error* err) {
  const HostPool& pool = pool_of(session, step);
  const Ids ids = parse_ids(step.at("ids").get<std::string>());
  HostTensor slots = integers(step.at("slots"), kI64);
  const OperatorOptions options(session, step, "positions", pool.heads, pool.k_dim);
  // MLA pools take [>= T, 1, dim] like the others.
  HostTensor k = key_tensor(Kind::kKey, 0, ids, pool.heads, pool.k_dim);
  HostTensor v = key_tensor(Kind::kValue, 0, ids, pool.heads, pool.v_dim);
  return kvc_op_append(&pool.call, options.call(), slots.host_view(), k.host_view(),
                       pool.v_dim == 0 ? nullptr : v.host_view(), err);
}

// Outputs of the operators have exactly T rows in the header's words: no padding.
struct Exact {
  explicit Exact(const Rows& rows)
      : out({static_cast<int64_t>(rows.ids.size()), rows.q_heads, rows.v_dim}),
        lse({static_cast<int64_t>(rows.ids.size()), rows.q_heads}) {}
  HostTensor out, lse;
};

HostTensor exact_query(const Json& step, const Rows& rows) {
  const HostTensor padded = query_tensor(step, rows);
  HostTensor q({static_cast<int64_t>(rows.ids.size()), rows.q_heads, rows.k_dim});
  for (int64_t i = 0; i < q.size(); ++i) q.set(i, padded.get(i));
  return q;
}

kvc_status op_attention(Session& session, const Json& step, kvc_error* err) {
  const HostPool& pool = pool_of(session, step);
  Rows rows = rows_of_pool(pool, step);
  rows.ids = parse_ids(step.at("q_ids").get<std::string>());
  const OperatorOptions options(session, step, "q_at", rows.q_heads, rows.k_dim);
  rows.rope = options.rope;
  const Table table(step.at("table"));
  HostTensor q = exact_query(step, rows);
  Exact result(rows);
  const kvc_status status = kvc_op_attention_paged(&pool.call, &table.call, options.call(), q.host_view(),
                                                   result.out.host_view(), result.lse.host_view(), err);
  if (status == KVC_OK)
    check_rows(session, step, step.at("sees"), rows, options.attn(), {result.out, result.lse});
  return status;
}

kvc_status op_mla(Session& session, const Json& step, kvc_error* err) {
  const HostPool& pool = pool_of(session, step);
  Rows rows = rows_of_pool(pool, step);
  rows.ids = parse_ids(step.at("q_ids").get<std::string>());
  const OperatorOptions options(session, step, "q_at", rows.q_heads, rows.k_dim);
  const Table table(step.at("table"));
  HostTensor q = exact_query(step, rows);
  Exact result(rows);
  const kvc_status status =
      kvc_op_mla_paged(&pool.call, &table.call, step.at("latent_rank").get<int32_t>(), options.call(),
                       q.host_view(), result.out.host_view(), result.lse.host_view(), err);
  if (status == KVC_OK)
    check_rows(session, step, step.at("sees"), rows, options.attn(), {result.out, result.lse});
  return status;
}

kvc_status op_ragged(Session& session, const Json& step, kvc_error* err) {
  Rows rows;
  rows.kv_heads = step.value("heads", 1);
  rows.q_heads = step.value("q_heads", rows.kv_heads);
  rows.k_dim = rows.v_dim = step.value("dim", 4);
  rows.ids = parse_ids(step.at("q_ids").get<std::string>());
  const Ids keys = parse_ids(step.at("k_ids").get<std::string>());
  const OperatorOptions options(session, step, "q_at", rows.q_heads, rows.k_dim);
  HostTensor q = exact_query(step, rows);
  HostTensor k({static_cast<int64_t>(keys.size()), rows.kv_heads, rows.k_dim});
  HostTensor v({static_cast<int64_t>(keys.size()), rows.kv_heads, rows.v_dim});
  const HostTensor padded_k = key_tensor(Kind::kKey, 0, keys, rows.kv_heads, rows.k_dim);
  const HostTensor padded_v = key_tensor(Kind::kValue, 0, keys, rows.kv_heads, rows.v_dim);
  for (int64_t i = 0; i < k.size(); ++i) k.set(i, padded_k.get(i));
  for (int64_t i = 0; i < v.size(); ++i) v.set(i, padded_v.get(i));
  HostTensor qo = integers(step.at("qo_indptr"), kI32);
  HostTensor kv = integers(step.value("kv_indptr", Json::array({0})), kI32);
  Exact result(rows);
  const kvc_status status = kvc_op_attention_ragged(
      qo.host_view(), step.contains("kv_indptr") ? kv.host_view() : nullptr, options.call(), q.host_view(),
      k.host_view(), v.host_view(), result.out.host_view(), result.lse.host_view(), err);
  if (status == KVC_OK)
    check_rows(session, step, step.at("sees"), rows, options.attn(), {result.out, result.lse});
  return status;
}

// `parts`: for each row two lists of keys; the formula's query attends to each, and the merge is to equal attending to both.
kvc_status op_merge(Session& session, const Json& step, kvc_error* err) {
  const int32_t heads = step.value("heads", 1), dim = step.value("dim", 4);
  const auto count = static_cast<int64_t>(step.at("parts").size());
  HostTensor out({count, heads, dim}), lse({count, heads}), other_out({count, heads, dim}),
      other_lse({count, heads});
  const auto over = [&](const Ids& ids, int64_t row, int32_t head) {
    std::vector<Vector> k, v;
    for (const int64_t id : ids) {
      k.push_back(values(Kind::kKey, 0, id, head, dim));
      v.push_back(values(Kind::kValue, 0, id, head, dim));
    }
    std::vector<Key> keys;
    for (size_t j = 0; j < ids.size(); ++j) keys.push_back({&k[j], &v[j], 0});
    return attend({}, values(Kind::kQuery, 0, row, head, dim), keys, static_cast<size_t>(dim));
  };
  std::vector<std::vector<Attended>> want(static_cast<size_t>(count));
  for (int64_t row = 0; row < count; ++row) {
    const Json& parts = step["parts"][static_cast<size_t>(row)];
    Ids first = parse_ids(parts.at(0).get<std::string>()), second = parse_ids(parts.at(1).get<std::string>());
    for (int32_t h = 0; h < heads; ++h) {
      const Attended a = over(first, row, h), b = over(second, row, h);
      lse.set(row * heads + h, a.lse);
      other_lse.set(row * heads + h, b.lse);
      for (int32_t d = 0; d < dim; ++d) {
        out.set((row * heads + h) * dim + d, a.out[static_cast<size_t>(d)]);
        other_out.set((row * heads + h) * dim + d, b.out[static_cast<size_t>(d)]);
      }
      Ids both = first;
      both.insert(both.end(), second.begin(), second.end());
      want[static_cast<size_t>(row)].push_back(over(both, row, h));
    }
  }
  const OperatorOptions options(session, step, "", heads, dim);
  const kvc_status status = kvc_op_merge(options.call(), out.host_view(), lse.host_view(),
                                         other_out.host_view(), other_lse.host_view(), err);
  if (status != KVC_OK) return status;
  for (int64_t i = 0; i < count * heads; ++i) {
    const Attended& one = want[static_cast<size_t>(i / heads)][static_cast<size_t>(i % heads)];
    EXPECT_TRUE(session.near(lse.get(i), one.lse)) << "LSE of row " << i / heads << " head " << i % heads;
    for (int32_t d = 0; d < dim; ++d)
      EXPECT_TRUE(session.near(out.get(i * dim + d), one.out[static_cast<size_t>(d)]))
          << "out of row " << i / heads << " head " << i % heads << " element " << d;
  }
  return status;
}

kvc_status op_gather(Session& session, const Json& step, kvc_error* err) {
  const HostPool& pool = pool_of(session, step);
  const Ids ids = parse_ids(step.at("ids").get<std::string>());
  const auto n = static_cast<int64_t>(ids.size());
  HostTensor k({n, pool.heads, pool.k_dim}), v({n, pool.heads, pool.v_dim});
  const Table table(step.at("table"));
  const OperatorOptions options(session, step, "", pool.heads, pool.k_dim);
  const kvc_status status = kvc_op_gather(&pool.call, &table.call, options.call(), k.host_view(),
                                          pool.v_dim == 0 ? nullptr : v.host_view(), err);
  if (status != KVC_OK) return status;
  int64_t ki = 0, vi = 0;
  for (const int64_t id : ids) {
    for (int32_t h = 0; h < pool.heads; ++h) {
      for (int32_t d = 0; d < pool.k_dim; ++d)
        EXPECT_EQ(k.get(ki++), value(Kind::kKey, 0, id, h, d)) << "K of " << id;
      for (int32_t d = 0; d < pool.v_dim; ++d)
        EXPECT_EQ(v.get(vi++), value(Kind::kValue, 0, id, h, d)) << "V of " << id;
    }
  }
  return status;
}

kvc_status op_copy_pages(Session& session, const Json& step, kvc_error* err) {
  HostTensor pairs = integers(step.at("pairs"), kI64);
  const OperatorOptions options(session, step, "", 1, 4);
  return kvc_op_copy_pages(&pool_of(session, step).call, options.call(), pairs.host_view(), err);
}

kvc_status op_rotate(Session& session, const Json& step, kvc_error* err) {
  const Ids ids = parse_ids(step.at("ids").get<std::string>());
  const int32_t heads = step.value("heads", 1), dim = step.value("dim", 4);
  const OperatorOptions options(session, step, "positions", heads, dim);
  HostTensor x({static_cast<int64_t>(ids.size()), heads, dim}), separate = x;
  int64_t index = 0;
  for (const int64_t id : ids)
    for (int32_t h = 0; h < heads; ++h)
      for (int32_t d = 0; d < dim; ++d) x.set(index++, value(Kind::kKey, 0, id, h, d));
  HostTensor& out = step.value("in_place", false) ? x : separate;
  const kvc_status status = kvc_op_rotate(options.call(), x.host_view(), out.host_view(), err);
  if (status != KVC_OK) return status;
  index = 0;
  for (size_t t = 0; t < ids.size(); ++t) {
    for (int32_t h = 0; h < heads; ++h) {
      Vector want = values(Kind::kKey, 0, ids[t], h, dim);
      rotate(options.rope, {step.at("positions").at(t).get<double>()}, false, want);
      for (const double expected : want) {
        const double got = out.get(index++);
        EXPECT_TRUE(session.near(got, expected)) << got << " instead of " << expected << " in row " << t;
      }
    }
  }
  return status;
}

// From zero states, over sequences cut by qo_indptr.
kvc_status op_linear(Session& session, const Json& step, kvc_error* err) {
  const Ids ids = parse_ids(step.at("ids").get<std::string>());
  const auto cuts = step.at("qo_indptr").get<std::vector<int64_t>>();
  const Linear linear(step, 0, step.at("heads").get<int64_t>(), step.at("k_dim").get<int64_t>(),
                      step.at("v_dim").get<int64_t>());
  const auto sequences = static_cast<int64_t>(cuts.size()) - 1;
  HostTensor q = linear.q(ids), k = linear.k(ids), v = linear.v(ids);
  HostTensor decay = linear.decay_tensor(ids), beta = linear.beta_tensor(ids);
  HostTensor out({static_cast<int64_t>(ids.size()), linear.heads, linear.v_dim});
  HostTensor states({sequences, linear.heads, linear.k_dim, linear.v_dim});
  for (int64_t i = 0; i < states.size(); ++i) states.set(i, 0);
  HostTensor indptr = integers(step["qo_indptr"], kI32);
  kvc_linear_opt opt{};
  opt.struct_size = sizeof opt;
  opt.flags = linear.delta ? KVC_LINEAR_DELTA : 0;
  opt.decay = linear.decay;
  opt.scale = static_cast<float>(linear.scale);
  const OperatorOptions options(session, step, "", 1, 4);
  const kvc_status status = kvc_op_linear_step(
      &opt, options.call(), indptr.host_view(), states.host_view(), q.host_view(), k.host_view(),
      v.host_view(), linear.decay == KVC_DECAY_NONE ? nullptr : decay.host_view(),
      linear.beta ? beta.host_view() : nullptr, out.host_view(), err);
  if (status != KVC_OK) return status;
  int64_t index = 0;
  for (int64_t s = 0; s < sequences; ++s) {
    const Ids own(ids.begin() + cuts[static_cast<size_t>(s)], ids.begin() + cuts[static_cast<size_t>(s) + 1]);
    std::vector<std::vector<Vector>> state;
    const auto want = linear.run({}, own, state);
    for (size_t t = 0; t < own.size(); ++t)
      for (const auto& head : want)
        for (const double expected : head[t]) EXPECT_TRUE(session.near(out.get(index++), expected)) << "out";
    int64_t at = s * linear.heads * linear.k_dim * linear.v_dim;
    for (const auto& head : state)
      for (const Vector& row : head)
        for (const double expected : row)
          EXPECT_TRUE(session.near(states.get(at++), expected)) << "state of " << s;
  }
  return status;
}

}  // namespace

void add_operator_steps(Handlers& handlers) {
  handlers["op_pool"] = op_pool;
  handlers["op_append"] = op_append;
  handlers["op_attention"] = op_attention;
  handlers["op_mla"] = op_mla;
  handlers["op_ragged"] = op_ragged;
  handlers["op_merge"] = op_merge;
  handlers["op_gather"] = op_gather;
  handlers["op_copy_pages"] = op_copy_pages;
  handlers["op_rotate"] = op_rotate;
  handlers["op_linear"] = op_linear;
}

}  // namespace kvc::conformance
