#include "tests/conformance/player.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <sstream>

namespace kvc::conformance {

const std::map<std::string, Handler>& handlers() {
  static const std::map<std::string, Handler> table = [] {
    std::map<std::string, Handler> all;
    add_cache_calls(all);
    add_layer_calls(all);
    add_operator_calls(all);
    return all;
  }();
  return table;
}

Player::Player(const Json& scenario, kvc_cpu_isa cpu_isa)
    : isa(cpu_isa), case_(scenario), tolerance_(case_.get<double>("tolerance")) {}

Player::~Player() {
  use("");
  others_.emplace("", *this);
  for (const auto& [unused, side] : others_) {
    kvc_cache_destroy(side.cache);
    kvc_plan_destroy(side.plan);
  }
}

void Player::use(const std::string& name) {
  if (name == name_) return;
  Side& next = others_.at(name);
  others_[name_] = *this;
  static_cast<Side&>(*this) = next;
  others_.erase(name);
  name_ = name;
}

void Player::add_side(const Fields& config, const std::string& name) {
  const Config& kept = configs_.emplace_back(config, isa);
  Side& side = name.empty() ? *this : others_[name];
  kvc_error error{};
  ASSERT_EQ(kvc_plan_create(&kept.call(), &side.plan, &error), KVC_OK) << error.message;
  ASSERT_EQ(kvc_cache_create(side.plan, &side.cache, &error), KVC_OK) << error.message;
}

void Player::run() {
  add_side(case_.object("config"), "");
  for (const auto& [name, unused] : case_.members("caches"))
    add_side(case_.object("caches").object(name.c_str()), name);
  if (testing::Test::HasFailure()) return;
  for (const Json& step : case_.at("steps")) {
    SCOPED_TRACE(step.dump().substr(0, 300));
    run_step(Fields(step));
    if (testing::Test::HasFailure()) return;
  }
  SCOPED_TRACE("after the last step");
  EXPECT_EQ(transfer, nullptr) << "a transfer that nobody waits for";
  transfer.reset();
  std::vector<std::string> names{name_};
  for (const auto& [name, unused] : others_) names.push_back(name);
  for (const std::string& name : names) {
    use(name);
    finish();
  }
  case_.refuse_unread("case");
  EXPECT_GT(checks_, 0) << "the case checks nothing";
}

void Player::run_step(const Fields& step) {
  use(step.get("cache", std::string()));
  const auto allowed = step.get("status", std::vector<std::string>{"KVC_OK"});
  const std::string before = step.has("status") ? snapshot() : "";
  kvc_error error{};
  error.struct_size = sizeof error;
  Call call(*this, step, &error);
  step.number("from");
  const kvc_status status = handlers().at(step.get<std::string>("op"))(call);
  const std::string name = kvc_status_name(status);
  ASSERT_TRUE(std::find(allowed.begin(), allowed.end(), name) != allowed.end())
      << "answered " << name << " '" << error.message << "', expected " << allowed.front();
  call.check(status);
  if (status != KVC_OK) {
    count_check();
    ASSERT_EQ(error.status, status) << "kvc_error.status";
    ASSERT_NE(error.message[0], '\0') << "a refusal says why";
    ASSERT_EQ(before, snapshot()) << "a refused call changed the cache";
  }
  if (step.has("detail")) {
    ASSERT_EQ(error.detail, step.number("detail")) << error.message;
  }
  if (step.has("expect")) check_expectations(step.object("expect"));
  kvc_error audit{};
  ASSERT_EQ(kvc_cache_check(cache, &audit), KVC_OK) << audit.message;
}

void Player::finish() {
  if (open) {
    ASSERT_EQ(kvc_forward_abort(fwd, nullptr), KVC_OK);
  }
  open = false;
  for (const kvc_seq seq : all_seqs())
    ASSERT_EQ(kvc_seq_remove(cache, seq, nullptr), KVC_OK) << seq;
  EXPECT_EQ(kvc_cache_is_empty(cache), 1) << "pages leak: all sequences are gone";
  kvc_error audit{};
  EXPECT_EQ(kvc_cache_check(cache, &audit), KVC_OK) << audit.message;
}

void Player::compare(const Fields& want, const HostTensor& got, const std::string& what) {
  const auto shape = want.get<std::vector<int64_t>>("shape");
  ASSERT_EQ(got.shape(), shape) << what;
  test::finish();
  const int64_t row = shape.empty() || shape[0] == 0 ? 1 : got.size() / shape[0];
  const Vector expected = elements_of(want);
  const auto rows = want.get("rows", std::vector<int64_t>{});
  const double tolerance = want.get("exact", false) ? 0 : want.get("tolerance", tolerance_);
  want.get<std::string>("dtype", "");
  for (size_t i = 0; i < expected.size(); ++i) {
    const auto given = static_cast<int64_t>(i);
    const int64_t at =
        rows.empty() ? given : rows.at(i / static_cast<size_t>(row)) * row + given % row;
    ASSERT_LT(at, got.size()) << what << " has fewer elements than the case";
    const double actual = got.get(at), wanted = expected[i];
    const double limit = tolerance * std::max(1.0, std::abs(wanted));
    ASSERT_TRUE(actual == wanted || (!std::isinf(wanted) && std::abs(actual - wanted) <= limit))
        << what << " has " << actual << " instead of " << wanted << " in row " << at / row
        << ", element " << at % row;
    count_check();
  }
  for (int64_t i = want.get<int64_t>("untouched", shape.empty() ? 0 : shape[0]) * row;
       i < got.size(); ++i)
    ASSERT_TRUE(std::isnan(got.get(i))) << "padding rows of " << what << " were written";
}

// ---- Questions about the cache

std::vector<kvc_seq> Player::all_seqs() const {
  size_t count = 0;
  EXPECT_EQ(kvc_seq_list(cache, nullptr, &count, nullptr), KVC_OK);
  std::vector<kvc_seq> seqs(count + 1);
  count = seqs.size();
  EXPECT_EQ(kvc_seq_list(cache, seqs.data(), &count, nullptr), KVC_OK);
  seqs.resize(count);
  return seqs;
}

kvc_seq_info Player::seq_info(kvc_seq seq) const {
  kvc_seq_info info{};
  info.struct_size = sizeof info;
  EXPECT_EQ(kvc_seq_info_get(cache, seq, &info, nullptr), KVC_OK) << "sequence " << seq;
  return info;
}

int32_t Player::group_of(int32_t layer) const {
  kvc_layer_info info{};
  info.struct_size = sizeof info;
  EXPECT_EQ(kvc_plan_layer_get(plan, layer, &info, nullptr), KVC_OK) << "layer " << layer;
  return info.group;
}

std::vector<int64_t> take_integers(DLManagedTensorVersioned* exported) {
  const DLTensor& tensor = exported->dl_tensor;
  int64_t size = 1;
  for (int32_t i = 0; i < tensor.ndim; ++i) size *= tensor.shape[i];
  const char* data = static_cast<const char*>(tensor.data) + tensor.byte_offset;
  std::vector<int64_t> integers;
  for (int64_t i = 0; i < size; ++i)
    integers.push_back(tensor.dtype.bits == 64 ? reinterpret_cast<const int64_t*>(data)[i]
                                               : reinterpret_cast<const int32_t*>(data)[i]);
  if (exported->deleter != nullptr) exported->deleter(exported);
  return integers;
}

std::vector<int64_t> Player::seq_pages(kvc_seq seq, int32_t group) const {
  DLManagedTensorVersioned* exported = nullptr;
  kvc_error error{};
  EXPECT_EQ(kvc_export_seq_pages(cache, seq, group, &exported, &error), KVC_OK) << error.message;
  return exported == nullptr ? std::vector<int64_t>{} : take_integers(exported);
}

#define KVC_FIELD(field) \
  { #field, of.field }

namespace {

Json fields_of(const kvc_seq_info& of) {
  return {KVC_FIELD(length),     KVC_FIELD(first_position),   KVC_FIELD(last_position),
          KVC_FIELD(num_pages),  KVC_FIELD(num_shared_pages), KVC_FIELD(window),
          KVC_FIELD(sink),       KVC_FIELD(in_forward),       KVC_FIELD(num_checkpoints),
          KVC_FIELD(tree_nodes), KVC_FIELD(cross_length),     KVC_FIELD(known_tokens)};
}

Json fields_of(const kvc_stats& of) {
  return {KVC_FIELD(num_seqs),          KVC_FIELD(total_length),
          KVC_FIELD(pages_total),       KVC_FIELD(pages_available),
          KVC_FIELD(pages_used),        KVC_FIELD(pages_shared),
          KVC_FIELD(pages_peak),        KVC_FIELD(forwards),
          KVC_FIELD(forwards_aborted),  KVC_FIELD(tokens_appended),
          KVC_FIELD(pages_copied),      KVC_FIELD(no_pages),
          KVC_FIELD(tree_tokens),       KVC_FIELD(values_saturated),
          KVC_FIELD(pages_indexed),     KVC_FIELD(pages_cached),
          KVC_FIELD(prefix_blocks),     KVC_FIELD(prefix_pinned),
          KVC_FIELD(prefix_lookups),    KVC_FIELD(prefix_query_tokens),
          KVC_FIELD(prefix_hit_tokens), KVC_FIELD(prefix_stored),
          KVC_FIELD(prefix_duplicates), KVC_FIELD(prefix_evicted),
          KVC_FIELD(prefix_rejected)};
}

}  // namespace

#undef KVC_FIELD

std::string Player::snapshot() const {
  std::ostringstream text;
  text << "free " << kvc_cache_available_pages(cache) << " total " << kvc_cache_total_length(cache);
  kvc_plan_info info{};
  info.struct_size = sizeof info;
  EXPECT_EQ(kvc_plan_info_get(plan, &info, nullptr), KVC_OK);
  for (const kvc_seq seq : all_seqs()) {
    text << "\nsequence " << seq << ' ' << fields_of(seq_info(seq)).dump();
    for (int32_t group = 0; group < info.num_groups; ++group)
      text << " pages " << Json(seq_pages(seq, group)).dump();
  }
  return text.str();
}

void Player::check_fields(const Json& actual, const Fields& expected, const char* key,
                          const std::string& what) {
  for (const auto& [field, wanted] : expected.members(key)) {
    if (!actual.contains(field)) throw std::runtime_error(what + " has no field '" + field + "'");
    EXPECT_EQ(actual[field], wanted) << field << " of " << what;
    count_check();
  }
}

void Player::check_expectations(const Fields& expect) {
  Json found;
  for (const auto& [seq, wanted] : expect.members("lengths")) {
    int64_t length = -1;
    EXPECT_EQ(kvc_seq_length(cache, std::stoll(seq), &length, nullptr), KVC_OK)
        << "sequence " << seq;
    found["lengths"][seq] = length;
  }
  if (expect.has("available_pages")) found["available_pages"] = kvc_cache_available_pages(cache);
  if (expect.has("empty")) found["empty"] = kvc_cache_is_empty(cache);
  if (expect.has("total_length")) found["total_length"] = kvc_cache_total_length(cache);
  if (expect.has("seqs")) found["seqs"] = all_seqs();
  for (const auto& [seq, layers] : expect.members("pages"))
    for (const auto& [layer, wanted] : layers.items())
      found["pages"][seq][layer] = seq_pages(std::stoll(seq), group_of(std::stoi(layer))).size();
  for (const auto& [key, actual] : found.items()) {
    EXPECT_EQ(actual, expect.at(key.c_str())) << key;
    count_check();
  }
  for (const auto& [seq, unused] : expect.members("info"))
    check_fields(fields_of(seq_info(std::stoll(seq))), expect.object("info"), seq.c_str(),
                 "sequence " + seq);
  if (!expect.has("stats")) return;
  kvc_stats stats{};
  stats.struct_size = sizeof stats;
  EXPECT_EQ(kvc_cache_stats_get(cache, &stats, nullptr), KVC_OK);
  check_fields(fields_of(stats), expect, "stats", "the cache's statistics");
}

}  // namespace kvc::conformance
