// A small cache behind the C interface, and the checks that every failing call has to pass.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include "kvcache.h"
#include "tests/model/host_tensor.h"
#include "tests/model/snapshot.h"

namespace kvc::test {

using Call = std::function<kvc_status(kvc_error*)>;

// `fn` answers `status`; its message has every part; kvc_error is filled; err NULL gives the same
// answer. Returns the error.
inline kvc_error expect_error(kvc_status status, std::initializer_list<const char*> parts,
                              const Call& fn) {
  kvc_error error{};
  error.struct_size = sizeof error;
  error.detail = 0x5555;
  EXPECT_STREQ(kvc_status_name(fn(&error)), kvc_status_name(status)) << error.message;
  EXPECT_EQ(error.status, status);
  for (const char* part : parts)
    EXPECT_NE(std::string(error.message).find(part), std::string::npos)
        << "'" << error.message << "' lacks '" << part << "'";
  EXPECT_STREQ(kvc_status_name(fn(nullptr)), kvc_status_name(status)) << "with err NULL";
  kvc_error unsized{};
  EXPECT_EQ(fn(&unsized), status);
  EXPECT_STREQ(unsized.message, error.message) << "struct_size 0 is taken as sizeof(kvc_error)";
  return error;
}

// Success leaves `err` untouched.
inline void expect_ok(const Call& fn) {
  kvc_error error{};
  std::memset(static_cast<void*>(&error), 0x5A, sizeof error);
  error.struct_size = sizeof error;
  kvc_error before = error;
  const kvc_status status = fn(&error);
  EXPECT_STREQ(kvc_status_name(status), "KVC_OK") << error.message;
  if (status != KVC_OK) return;
  EXPECT_EQ(std::memcmp(&error, &before, sizeof error), 0) << "kvc_error was touched by a success";
}

// Plans and forgets.
inline kvc_status plan_status(const kvc_config& config, kvc_error* err) {
  kvc_plan* plan = nullptr;
  const kvc_status status = kvc_plan_create(&config, &plan, err);
  EXPECT_EQ(plan != nullptr, status == KVC_OK);
  kvc_plan_destroy(plan);
  return status;
}

inline kvc_group_info group_of(const kvc_plan* plan, int32_t group) {
  kvc_group_info info{};
  info.struct_size = sizeof info;
  EXPECT_EQ(kvc_plan_group_get(plan, group, &info, nullptr), KVC_OK);
  return info;
}

// A plan and what it answers.
class PlanHandle {
 public:
  explicit PlanHandle(const kvc_config& config) {
    kvc_error error{};
    EXPECT_EQ(kvc_plan_create(&config, &plan_, &error), KVC_OK) << error.message;
  }
  ~PlanHandle() { kvc_plan_destroy(plan_); }
  PlanHandle(const PlanHandle&) = delete;
  PlanHandle& operator=(const PlanHandle&) = delete;

  const kvc_plan* get() const { return plan_; }
  kvc_plan_info info() const {
    kvc_plan_info info{};
    info.struct_size = sizeof info;
    EXPECT_EQ(kvc_plan_info_get(plan_, &info, nullptr), KVC_OK);
    return info;
  }
  kvc_group_info group(int32_t group) const { return group_of(plan_, group); }
  kvc_layer_info layer(int32_t layer) const {
    kvc_layer_info info{};
    info.struct_size = sizeof info;
    EXPECT_EQ(kvc_plan_layer_get(plan_, layer, &info, nullptr), KVC_OK);
    return info;
  }
  std::string text(kvc_status (*write)(const kvc_plan*, char*, size_t*, kvc_error*)) const {
    size_t len = 0;
    EXPECT_EQ(write(plan_, nullptr, &len, nullptr), KVC_OK);
    std::string value(len, 0);
    EXPECT_EQ(write(plan_, value.data(), &len, nullptr), KVC_OK);
    value.pop_back();
    return value;
  }

 private:
  kvc_plan* plan_ = nullptr;
};

// Two layers: 4 q heads over 2 kv heads, dims 8; then k_dim 6, v_dim 4. float32 storage, 8 pages of
// 4 tokens.
struct Model {
  Model() {
    layers[0] = {};
    layers[0].struct_size = sizeof(kvc_layer);
    layers[0].num_q_heads = 4;
    layers[0].num_kv_heads = 2;
    layers[0].k_dim = 8;
    layers[0].k_dtype = {kDLFloat, 32, 1};
    layers[1] = layers[0];
    layers[1].k_dim = 6;
    layers[1].v_dim = 4;
    (void)kvc_config_init(&config, sizeof config);
    config.page_size = 4;
    config.num_layers = 2;
    config.layers = layers;
    config.num_pages = 8;
    config.num_threads = 1;
  }
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  kvc_status plan_status(kvc_error* err) { return kvc::test::plan_status(config, err); }

  kvc_layer layers[2];
  kvc_config config{};
};

// What a forward is asked for; empty arrays are left out of the descriptor.
struct Request {
  std::vector<kvc_seq> seqs;
  std::vector<int64_t> lengths;
  std::vector<int32_t> parents{};
  std::vector<int64_t> cross_lengths{};
  const DLTensor* positions = nullptr;
  uint64_t flags = 0;
  std::vector<int32_t> tokens{};
};

class Cache {
 public:
  explicit Cache(const kvc_config& config) {
    kvc_error error{};
    EXPECT_EQ(kvc_plan_create(&config, &plan_, &error), KVC_OK) << error.message;
    if (plan_ == nullptr) return;
    EXPECT_EQ(kvc_cache_create(plan_, &cache_, &error), KVC_OK) << error.message;
    kvc_plan_info info{};
    info.struct_size = sizeof info;
    EXPECT_EQ(kvc_plan_info_get(plan_, &info, nullptr), KVC_OK);
    num_groups_ = static_cast<size_t>(info.num_groups);
  }
  ~Cache() {
    destroy();
    kvc_plan_destroy(plan_);
  }
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;

  kvc_cache* get() const { return cache_; }
  const kvc_plan* plan() const { return plan_; }
  void destroy() {
    kvc_cache_destroy(cache_);
    cache_ = nullptr;
  }

  kvc_status begin(const std::vector<kvc_seq>& seqs, const std::vector<int64_t>& lengths,
                   kvc_error* err = nullptr) {
    return begin_with({.seqs = seqs, .lengths = lengths}, err);
  }
  kvc_status begin_with(const Request& request, kvc_error* err = nullptr) {
    kvc_forward_desc desc{};
    desc.struct_size = sizeof desc;
    desc.num_seqs = request.seqs.size();
    desc.seqs = request.seqs.data();
    desc.append_lengths = request.lengths.data();
    if (!request.parents.empty()) desc.tree_parents = request.parents.data();
    if (!request.cross_lengths.empty()) desc.cross_lengths = request.cross_lengths.data();
    desc.positions = request.positions;
    desc.flags = request.flags;
    if (!request.tokens.empty()) desc.tokens = request.tokens.data();
    return kvc_forward_begin(cache_, &desc, &forward, err);
  }
  void end() {
    EXPECT_EQ(kvc_forward_end(forward, nullptr), KVC_OK);
    forward = nullptr;
  }
  // Ends a forward whose rows don't matter: every layer that got none gets some.
  void finish();
  void abort() {
    EXPECT_EQ(kvc_forward_abort(forward, nullptr), KVC_OK);
    forward = nullptr;
  }
  // Adds sequences and appends so many tokens of random data to each.
  void fill(const std::vector<kvc_seq>& seqs, const std::vector<int64_t>& lengths,
            bool storage = true);
  Snapshot snapshot() const { return take_snapshot(cache_, forward, num_groups_); }

  kvc_forward* forward = nullptr;

 private:
  kvc_plan* plan_ = nullptr;
  kvc_cache* cache_ = nullptr;
  size_t num_groups_ = 0;
};

inline void Cache::fill(const std::vector<kvc_seq>& seqs, const std::vector<int64_t>& lengths,
                        bool storage) {
  int64_t rows = 0;
  for (size_t i = 0; i < seqs.size(); ++i) {
    ASSERT_EQ(kvc_seq_add(cache_, seqs[i], nullptr), KVC_OK);
    rows += lengths[i];
  }
  ASSERT_EQ(begin(seqs, lengths), KVC_OK);
  Random random(static_cast<uint64_t>(rows));
  for (int32_t layer = 0; storage && layer < 2; ++layer) {
    HostTensor k(Elem::kF32, {rows, 2, layer == 0 ? 8 : 6});
    HostTensor v(Elem::kF32, {rows, 2, layer == 0 ? 8 : 4});
    k.fill_random(random);
    v.fill_random(random);
    ASSERT_EQ(kvc_kv_append(forward, layer, k.dl(), v.dl(), nullptr), KVC_OK);
  }
  end();
}

// Rows that don't matter for the new tokens of one layer, of any kind that keeps pages and is not
// quantised.
inline kvc_status append_some(const Cache& cache, int32_t layer, kvc_error* err) {
  kvc_layer_info info{};
  info.struct_size = sizeof info;
  EXPECT_EQ(kvc_plan_layer_get(cache.plan(), layer, &info, nullptr), KVC_OK);
  const int64_t rows = kvc_forward_num_tokens(cache.forward);
  const bool is_mla = info.kind == KVC_LAYER_MLA;
  const int32_t k_dim = is_mla ? info.latent_rank + info.latent_rope_dim : info.k_dim;
  HostTensor k(Elem::kF32, {rows, is_mla ? 1 : info.num_kv_heads, k_dim});
  HostTensor v(Elem::kF32, {rows, is_mla ? 1 : info.num_kv_heads, is_mla ? 1 : info.v_dim});
  Random random(static_cast<uint64_t>(layer) + 1);
  k.fill_random(random);
  v.fill_random(random);
  DLTensor* v_or_null = (info.flags & KVC_LAYER_V_IS_K) != 0 ? nullptr : v.dl();
  if (info.kind == KVC_LAYER_ATTENTION)
    return kvc_kv_append(cache.forward, layer, k.dl(), v_or_null, err);
  if (is_mla) return kvc_mla_append(cache.forward, layer, k.dl(), err);
  // Encoder rows, however many were announced: no row behind those is read.
  constexpr int64_t kMostEncoderRows = 4096;
  HostTensor encoder_k(Elem::kF32, {kMostEncoderRows, info.num_kv_heads, info.k_dim});
  HostTensor encoder_v(Elem::kF32, {kMostEncoderRows, info.num_kv_heads, info.v_dim});
  encoder_k.fill_random(random);
  encoder_v.fill_random(random);
  HostTensor q(Elem::kF32, {rows, info.num_q_heads, info.k_dim});
  HostTensor out(Elem::kF32, {rows, info.num_q_heads, info.v_dim});
  q.fill_random(random);
  return kvc_attn_cross(cache.forward, layer, nullptr, q.dl(), encoder_k.dl(), encoder_v.dl(),
                        out.dl(), nullptr, err);
}

inline void Cache::finish() {
  kvc_error error{};
  error.struct_size = sizeof error;
  // The refusal names a layer; appending to it leaves the others.
  while (kvc_forward_end(forward, &error) != KVC_OK) {
    ASSERT_STREQ(kvc_status_name(error.status), "KVC_E_INVALID_STATE") << error.message;
    ASSERT_EQ(append_some(*this, static_cast<int32_t>(error.detail), &error), KVC_OK)
        << error.message;
  }
  forward = nullptr;
}

// The call fails as expected and leaves the cache exactly as it was.
inline kvc_error expect_refused(const Cache& cache, kvc_status status,
                                std::initializer_list<const char*> parts, const Call& fn) {
  const Snapshot before = cache.snapshot();
  const kvc_error error = expect_error(status, parts, fn);
  EXPECT_EQ(difference(before, cache.snapshot()), "");
  EXPECT_EQ(kvc_cache_check(cache.get(), nullptr), KVC_OK);
  return error;
}

}  // namespace kvc::test
