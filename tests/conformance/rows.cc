#include "tests/conformance/rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>

namespace kvc::conformance {
namespace {

HostTensor float_tensor(const Json& json, std::vector<int64_t> shape) {
  HostTensor tensor(std::move(shape));
  int64_t index = 0;
  for (const Json& x : json) tensor.set(index++, x.get<double>());
  return tensor;
}

const std::map<std::string, int32_t> kAttnFlags{{"DETERMINISTIC", KVC_ATTN_DETERMINISTIC},
                                                {"BATCH_INVARIANT", KVC_ATTN_BATCH_INVARIANT},
                                                {"NO_CASCADE", KVC_ATTN_NO_CASCADE}};

// The text of one row, or nothing when the scenario does not state it.
std::optional<std::string> text_of_row(const Json& texts, size_t row, size_t num_rows) {
  if (texts.is_string()) return texts.get<std::string>();
  if (texts.is_array()) {
    if (texts.size() != num_rows) throw std::runtime_error("a list has not one entry for each new token");
    return texts[row].get<std::string>();
  }
  const auto found = texts.find(std::to_string(row));
  if (found == texts.end()) return std::nullopt;
  return found->get<std::string>();
}

// Rotary positions of the keys that a row sees.
std::vector<Vector> key_positions(const Session& session, const Json& step, size_t row, size_t num_rows,
                                  int64_t own, const Ids& ids) {
  std::vector<Vector> positions;
  if (!step.contains("at")) {
    for (const int64_t id : ids) positions.push_back(session.position_of(id));
    return positions;
  }
  const auto text = text_of_row(step["at"], row, num_rows);
  if (!text) throw std::runtime_error("'at' does not state a row that 'sees' states");
  for (const int64_t position : parse_ids(*text, &own)) positions.push_back({static_cast<double>(position)});
  if (positions.size() != ids.size()) throw std::runtime_error("'at' and 'sees' differ in length");
  return positions;
}

}  // namespace

Rows rows_of_layer(const Session& session, int32_t layer) {
  const LayerView& view = session.model.view(layer);
  Rows rows;
  rows.q_layer = layer;
  rows.key_layer = session.model.keys_of(layer);
  rows.q_heads = view.q_heads;
  rows.kv_heads = view.kv_heads;
  rows.k_dim = view.k_dim;
  rows.v_dim = view.v_dim;
  rows.v_is_k = view.v_is_k || view.latent_rank > 0;
  rows.rope = view.rope;
  rows.ids = session.batch.ids;
  return rows;
}

Options::Options(const Json& step, int32_t q_heads, DLDevice device) {
  call_.struct_size = sizeof call_;
  if (!step.contains("opt")) return;
  given_ = true;
  const Json& opt = step["opt"];
  call_.scale = opt.value("scale", 0.0f);
  call_.soft_cap = opt.value("soft_cap", 0.0f);
  call_.window = opt.value("window", int64_t{0});
  for (const Json& flag : opt.value("flags", Json::array()))
    call_.flags |= static_cast<uint64_t>(look_up(flag.get<std::string>(), kAttnFlags));
  if (opt.contains("sink_logits")) {
    sinks_ = opt["sink_logits"].get<Vector>();
    call_.sink_logits = tensors_.emplace_back(float_tensor(opt["sink_logits"], {q_heads})).view(device);
  }
  if (opt.contains("alibi")) {
    alibi_ = opt["alibi"].get<Vector>();
    call_.alibi_slopes = tensors_.emplace_back(float_tensor(opt["alibi"], {q_heads})).view(device);
  }
  if (opt.contains("spans")) {
    HostTensor& spans =
        tensors_.emplace_back(std::vector<int64_t>{static_cast<int64_t>(opt["spans"].size()), 3}, kI32);
    int64_t index = 0;
    for (const Json& span : opt["spans"])
      for (const Json& x : span) spans.set(index++, x.get<double>());
    call_.spans = spans.host_view();
  }
  if (opt.contains("bias")) {
    for (const Json& row : opt["bias"]) {
      bias_.emplace_back();
      for (const Json& x : row)
        bias_.back().push_back(x.is_null() ? -std::numeric_limits<double>::infinity() : x.get<double>());
    }
    const auto columns = static_cast<int64_t>(bias_.at(0).size());
    HostTensor& bias =
        tensors_.emplace_back(std::vector<int64_t>{static_cast<int64_t>(bias_.size()), columns});
    int64_t index = 0;
    for (const auto& row : bias_)
      for (const double x : row) bias.set(index++, x);
    call_.bias = bias.view(device);
  }
}

Softmax Options::softmax(int32_t head, int32_t k_dim) const {
  Softmax softmax;
  softmax.scale = call_.scale != 0 ? static_cast<double>(call_.scale) : 1 / std::sqrt(k_dim);
  softmax.soft_cap = static_cast<double>(call_.soft_cap);
  softmax.has_sink = !sinks_.empty();
  if (softmax.has_sink) softmax.sink = sinks_.at(static_cast<size_t>(head));
  return softmax;
}

double Options::bias(int32_t head, size_t row, double query_position, double key_position) const {
  double sum = alibi_.empty() ? 0 : -alibi_.at(static_cast<size_t>(head)) * (query_position - key_position);
  if (!bias_.empty()) sum += bias_.at(row).at(static_cast<size_t>(key_position));
  return sum;
}

HostTensor query_tensor(const Json& step, const Rows& rows) {
  const std::string how = step.value("q", "zero");
  if (how != "zero" && how != "formula") throw std::runtime_error("'q' is \"zero\" or \"formula\"");
  if (how == "formula") return key_tensor(Kind::kQuery, rows.q_layer, rows.ids, rows.q_heads, rows.k_dim);
  HostTensor q({static_cast<int64_t>(rows.ids.size()) + 1, rows.q_heads, rows.k_dim});
  for (int64_t i = 0; i < q.size() - rows.q_heads * rows.k_dim; ++i) q.set(i, 0);
  return q;
}

HostTensor key_tensor(Kind kind, int32_t layer, const Ids& ids, int32_t heads, int32_t dim) {
  HostTensor tensor({static_cast<int64_t>(ids.size()) + 1, heads, dim});
  int64_t index = 0;
  for (const int64_t id : ids)
    for (int32_t h = 0; h < heads; ++h)
      for (int32_t d = 0; d < dim; ++d) tensor.set(index++, value(kind, layer, id, h, d));
  return tensor;
}

HostTensor value_tensor(const Rows& rows) {
  return key_tensor(Kind::kValue, rows.key_layer, rows.ids, rows.kv_heads, rows.v_dim);
}

Partial output_tensors(const Rows& rows) {
  const auto tokens = static_cast<int64_t>(rows.ids.size()) + 1;
  return {HostTensor({tokens, rows.q_heads, rows.v_dim}), HostTensor({tokens, rows.q_heads})};
}

Vector key_vector(const Rows& rows, int64_t id, int64_t head, const Vector& position, bool use_long) {
  Vector k = values(Kind::kKey, rows.key_layer, id, head, rows.k_dim);
  rotate(rows.rope, position, use_long, k);
  return k;
}

namespace {

void check_row(const Session& session, const Json& step, const Rows& rows, const Options& options, size_t row,
               const Ids& ids, const std::vector<Vector>& positions, const Partial& result) {
  const int64_t own = rows.ids[row];
  const int64_t long_from = step.value("long_from", std::numeric_limits<int64_t>::max());
  const Vector q_position =
      step.contains("q_at") ? Vector{step["q_at"].at(row).get<double>()} : session.position_of(own);
  for (int32_t head = 0; head < rows.q_heads; ++head) {
    const int32_t kv_head = head / (rows.q_heads / rows.kv_heads);
    Vector q(static_cast<size_t>(rows.k_dim), 0.0);
    if (step.value("q", "zero") == "formula") q = values(Kind::kQuery, rows.q_layer, own, head, rows.k_dim);
    rotate(rows.rope, q_position, own >= long_from, q);
    std::vector<Vector> k, v;
    std::vector<double> bias;
    for (size_t j = 0; j < ids.size(); ++j) {
      k.push_back(key_vector(rows, ids[j], kv_head, positions[j], ids[j] >= long_from));
      v.push_back(rows.v_is_k ? k.back() : values(Kind::kValue, rows.key_layer, ids[j], kv_head, rows.v_dim));
      bias.push_back(options.bias(head, row, q_position[0], positions[j][0]));
    }
    std::vector<Key> keys;
    for (size_t j = 0; j < ids.size(); ++j) keys.push_back({&k[j], &v[j], bias[j]});
    const Attended want = attend(options.softmax(head, rows.k_dim), q, keys, static_cast<size_t>(rows.v_dim));

    const auto at = static_cast<int64_t>(row) * rows.q_heads + head;
    if (result.lse.size() > 0) {
      ASSERT_TRUE(session.near(result.lse.get(at), want.lse))
          << "LSE " << result.lse.get(at) << " instead of " << want.lse
          << " (ln of the number of keys when q is zero)"
          << " in row " << row << " head " << head;
    }
    for (int32_t d = 0; d < rows.v_dim; ++d)
      ASSERT_TRUE(session.near(result.out.get(at * rows.v_dim + d), want.out[static_cast<size_t>(d)]))
          << "out " << result.out.get(at * rows.v_dim + d) << " instead of "
          << want.out[static_cast<size_t>(d)] << " in row " << row << " head " << head << " element " << d;
  }
}

}  // namespace

void check_rows(const Session& session, const Json& step, const Json& sees, const Rows& rows,
                const Options& options, const Partial& result) {
  const size_t tokens = rows.ids.size();
  for (size_t row = 0; row < tokens; ++row) {
    const auto text = text_of_row(sees, row, tokens);
    if (!text) continue;
    SCOPED_TRACE("layer " + std::to_string(rows.q_layer) + " sees " + *text);
    const Ids ids = parse_ids(*text, &rows.ids[row]);
    const auto positions = key_positions(session, step, row, tokens, rows.ids[row], ids);
    check_row(session, step, rows, options, row, ids, positions, result);
    if (testing::Test::HasFatalFailure()) return;
  }
  const int64_t written = static_cast<int64_t>(tokens) * rows.q_heads;
  for (int64_t i = written * rows.v_dim; i < result.out.size(); ++i)
    ASSERT_TRUE(std::isnan(result.out.get(i))) << "padding rows of out were written";
  for (int64_t i = written; i < result.lse.size(); ++i)
    ASSERT_TRUE(std::isnan(result.lse.get(i))) << "padding rows of lse were written";
}

}  // namespace kvc::conformance
