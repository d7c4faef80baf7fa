// Recurrent state: what a forward reads and sets, checkpoints, slots, debugging. The recurrences
// themselves are tested elsewhere.
#include "tests/capi/layers.h"

namespace kvc::test {
namespace {

// Layer 0 keeps tokens; layer 1 has states [2, 3] float32 that begins at 0.5, 1.5, ... and [4]
// bfloat16 that begins at zero.
struct StateModel {
  StateModel() : init(Elem::kF32, {2, 3}) {
    init.for_each([&](int64_t i, int64_t j, int64_t, int64_t) {
      init.set(0.5 + static_cast<double>(3 * i + j), i, j);
    });
    specs[0].init = init.dl();
    net = std::make_unique<Net>(std::vector<kvc_layer>{attention_layer(), state_layer(specs)});
  }
  kvc_config& config() { return net->config; }
  std::vector<int64_t> first{2, 3}, second{4};
  HostTensor init;
  std::vector<kvc_state_spec> specs{state_spec(first), state_spec(second, Elem::kBF16)};
  std::unique_ptr<Net> net;
};

class States : public testing::Test {
 protected:
  States() {
    for (const kvc_seq seq : {1, 2}) EXPECT_EQ(kvc_seq_add(get(), seq, nullptr), KVC_OK);
  }
  kvc_cache* get() const { return cache_.get(); }
  kvc_forward* fwd() const { return cache_.forward; }
  // A forward of `count` tokens after which all elements of state 0 are `value`.
  void step(kvc_seq seq, int64_t count, double value) {
    kvc_error error{};
    ASSERT_EQ(cache_.begin({seq}, {count}, &error), KVC_OK) << error.message;
    HostTensor state(Elem::kF32, {1, 2, 3});
    state.for_each([&](int64_t b, int64_t i, int64_t j, int64_t) { state.set(value, b, i, j); });
    ASSERT_EQ(kvc_state_set(fwd(), 1, 0, state.dl(), nullptr), KVC_OK);
    cache_.finish();
  }
  double value_of(kvc_seq seq) {
    HostTensor state(Elem::kF32, {2, 3});
    EXPECT_EQ(kvc_debug_get_state(get(), seq, 1, 0, state.dl(), nullptr, nullptr), KVC_OK);
    return state.get(1, 2);
  }
  StateModel model_;
  Cache cache_{model_.config()};
  static constexpr double kInitial = 5.5;  // of element [1, 2]
};

TEST_F(States, ArePlannedBySlots) {
  kvc_plan_info info{};
  info.struct_size = sizeof info;
  ASSERT_EQ(kvc_plan_info_get(cache_.plan(), &info, nullptr), KVC_OK);
  EXPECT_GE(info.state_slot_bytes, 24u + 8u);
  EXPECT_EQ(info.num_state_slots, 0) << "no limit";
  EXPECT_EQ(info.num_groups, 1);
  kvc_layer_info layer{};
  layer.struct_size = sizeof layer;
  ASSERT_EQ(kvc_plan_layer_get(cache_.plan(), 1, &layer, nullptr), KVC_OK);
  EXPECT_EQ(layer.kind, KVC_LAYER_STATE);
  EXPECT_EQ(layer.group, -1);
  EXPECT_EQ(layer.num_states, 2);
  EXPECT_EQ(layer.state_bytes, 24u + 8u);
  EXPECT_EQ(layer.bytes_per_token, 0u);
  EXPECT_EQ(stats_of(cache_).state_slot_bytes, info.state_slot_bytes);
  EXPECT_EQ(stats_of(cache_).state_slots_used, 0) << "empty sequences take none";
}

TEST_F(States, AForwardReadsTheOldStateAndEndsWithTheNewOne) {
  ASSERT_EQ(cache_.begin({2, 1}, {3, 1}), KVC_OK);
  HostTensor first(Elem::kF32, {2, 2, 3}),
      second(Elem::kF16, {2, 4}, {.extra_rows = 1, .row_gap = 3});
  expect_ok([&](kvc_error* err) { return kvc_state_get(fwd(), 1, 0, first.dl(), err); });
  expect_ok([&](kvc_error* err) { return kvc_state_get(fwd(), 1, 1, second.dl(), err); });
  for (int64_t b = 0; b < 2; ++b) {
    EXPECT_EQ(first.get(b, 0, 0), 0.5) << "the initial state";
    EXPECT_EQ(first.get(b, 1, 2), kInitial);
    for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(second.get(b, i), 0);
  }
  EXPECT_TRUE(second.padding_untouched());
  first.for_each([&](int64_t b, int64_t i, int64_t j, int64_t) {
    first.set(100 * static_cast<double>(b) + 3 * i + j, b, i, j);
  });
  expect_ok([&](kvc_error* err) { return kvc_state_set(fwd(), 1, 0, first.dl(), err); });
  HostTensor again(Elem::kF32, {2, 2, 3});
  ASSERT_EQ(kvc_state_get(fwd(), 1, 0, again.dl(), nullptr), KVC_OK);
  EXPECT_EQ(again.get(1, 1, 2), kInitial) << "still the state of before the forward";
  EXPECT_EQ(value_of(1), kInitial);
  cache_.finish();
  EXPECT_EQ(value_of(2), 5) << "entry 0 of the batch";
  EXPECT_EQ(value_of(1), 105);
  ASSERT_EQ(cache_.begin({1}, {1}), KVC_OK);
  HostTensor rounded(Elem::kF32, {1, 4});
  for (int64_t i = 0; i < 4; ++i) rounded.set(1.0 + static_cast<double>(i) / 1000, 0, i);
  ASSERT_EQ(kvc_state_set(fwd(), 1, 1, rounded.dl(), nullptr), KVC_OK);
  cache_.finish();
  EXPECT_EQ(value_of(1), 105) << "what is not set is carried on";
  HostTensor out(Elem::kF32, {4});
  expect_ok(
      [&](kvc_error* err) { return kvc_debug_get_state(get(), 1, 1, 1, out.dl(), nullptr, err); });
  for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(out.get(i), round_to(Elem::kBF16, rounded.get(0, i)));
  add_tokens(cache_, 1, 6);
  EXPECT_EQ(value_of(1), 105);
  EXPECT_EQ(kvc_cache_check(get(), nullptr), KVC_OK);
}

TEST_F(States, AbortKeepsTheOldState) {
  step(1, 3, 7);
  const Snapshot before = cache_.snapshot();
  ASSERT_EQ(cache_.begin({1, 2}, {1, 1}), KVC_OK);
  HostTensor state(Elem::kF32, {2, 2, 3});
  state.for_each([&](int64_t b, int64_t i, int64_t j, int64_t) { state.set(9, b, i, j); });
  ASSERT_EQ(kvc_state_set(fwd(), 1, 0, state.dl(), nullptr), KVC_OK);
  cache_.abort();
  Snapshot after = cache_.snapshot();
  EXPECT_EQ(after.stats.state_slots_used, before.stats.state_slots_used);
  after.stats = before.stats;
  EXPECT_EQ(difference(before, after), "");
  EXPECT_EQ(value_of(1), 7);
  EXPECT_EQ(value_of(2), kInitial);
}

TEST_F(States, ForkAndPopGoToCheckpointsOnly) {
  step(1, 4, 4);  // a multiple of the page size: kept by itself
  step(1, 3, 7);
  step(1, 5, 12);
  EXPECT_EQ(info_of(cache_, 1).num_checkpoints, 1)
      << "position 4; that of the end is not below the length";
  for (const kvc_seq_op op : {KVC_SEQ_FORK, KVC_SEQ_POP}) {
    for (const auto& [pos, nearest] : {std::pair<int64_t, int64_t>{-1, 12},
                                       {12, 12},
                                       {9, 4},
                                       {8, 4},
                                       {7, 4},
                                       {4, 4},
                                       {3, 0},
                                       {1, 0}}) {
      int64_t got = -1;
      expect_ok([&, p = pos](kvc_error* err) { return kvc_seq_can(get(), 1, op, p, &got, err); });
      EXPECT_EQ(got, nearest) << pos;
    }
  }
  kvc_error error =
      expect_refused(cache_, KVC_E_OUT_OF_RANGE, {"pos = 7", "sequence 1", "checkpoint", "4"},
                     [&](kvc_error* err) { return kvc_seq_fork(get(), 1, 9, 7, err); });
  EXPECT_EQ(error.detail, 4);
  error = expect_refused(cache_, KVC_E_OUT_OF_RANGE, {"n = 5", "sequence 1", "checkpoint", "4"},
                         [&](kvc_error* err) { return kvc_seq_pop(get(), 1, 5, err); });
  EXPECT_EQ(error.detail, 4);
  for (const auto& [child, pos, value] : {std::tuple<kvc_seq, int64_t, double>{10, -1, 12},
                                          {11, 4, 4},
                                          {12, 0, kInitial},
                                          {13, 12, 12}}) {
    expect_ok(
        [&, c = child, p = pos](kvc_error* err) { return kvc_seq_fork(get(), 1, c, p, err); });
    EXPECT_EQ(value_of(child), value);
  }
  step(11, 1, 50);
  EXPECT_EQ(value_of(1), 12) << "a fork's step is its own";
  expect_ok([&](kvc_error* err) { return kvc_seq_pop(get(), 10, 8, err); });
  EXPECT_EQ(value_of(10), 4);
  expect_ok([&](kvc_error* err) { return kvc_seq_pop(get(), 10, 4, err); });
  EXPECT_EQ(value_of(10), kInitial);
  EXPECT_EQ(kvc_cache_check(get(), nullptr), KVC_OK);
  for (const kvc_seq seq : {1, 2, 10, 11, 12, 13})
    ASSERT_EQ(kvc_seq_remove(get(), seq, nullptr), KVC_OK);
  EXPECT_EQ(stats_of(cache_).state_slots_used, 0);
}

TEST_F(States, ACheckpointIsKeptUntilItIsPoppedOver) {
  step(1, 3, 3);
  expect_ok([&](kvc_error* err) { return kvc_state_checkpoint(get(), 1, err); });
  EXPECT_EQ(kvc_state_checkpoint(get(), 1, nullptr), KVC_OK) << "twice is once";
  EXPECT_EQ(stats_of(cache_).state_slots_used, 1);
  step(1, 3, 6);
  EXPECT_EQ(info_of(cache_, 1).num_checkpoints, 1);
  EXPECT_EQ(stats_of(cache_).state_slots_used, 2);
  ASSERT_EQ(kvc_seq_pop(get(), 1, 3, nullptr), KVC_OK);
  EXPECT_EQ(value_of(1), 3);
  EXPECT_EQ(stats_of(cache_).state_slots_used, 1);
  step(1, 1, 4);
  ASSERT_EQ(kvc_seq_pop(get(), 1, 1, nullptr), KVC_OK) << "it was not popped below";
  ASSERT_EQ(kvc_seq_pop(get(), 1, 3, nullptr), KVC_OK);
  EXPECT_EQ(info_of(cache_, 1).num_checkpoints, 0);
  step(1, 3, 30);
  step(1, 2, 50);
  expect_refused(cache_, KVC_E_OUT_OF_RANGE, {"n = 2"},
                 [&](kvc_error* err) { return kvc_seq_pop(get(), 1, 2, err); });
  EXPECT_EQ(kvc_cache_check(get(), nullptr), KVC_OK);
}

TEST_F(States, AReleasedCheckpointGivesItsSlotBack) {
  step(1, 3, 3);
  ASSERT_EQ(kvc_state_checkpoint(get(), 1, nullptr), KVC_OK);
  ASSERT_EQ(kvc_seq_fork(get(), 1, 7, -1, nullptr), KVC_OK);
  step(1, 3, 6);
  ASSERT_EQ(kvc_state_checkpoint(get(), 1, nullptr), KVC_OK);
  step(1, 1, 7);
  ASSERT_EQ(stats_of(cache_).state_slots_used, 3);
  const auto release = [&](kvc_seq seq, int64_t pos) {
    return [this, seq, pos](kvc_error* err) {
      return kvc_state_checkpoint_release(get(), seq, pos, err);
    };
  };
  EXPECT_EQ(
      expect_refused(cache_, KVC_E_NOT_FOUND, {"pos = 4", "sequence 1 of 7"}, release(1, 4)).detail,
      3);
  EXPECT_EQ(expect_refused(cache_, KVC_E_NOT_FOUND, {"pos = 2"}, release(1, 2)).detail, -1);
  expect_refused(cache_, KVC_E_NOT_FOUND, {"pos = -1"}, release(1, -1));
  expect_ok(release(1, 6));
  EXPECT_EQ(stats_of(cache_).state_slots_used, 2);
  expect_refused(cache_, KVC_E_OUT_OF_RANGE, {"n = 1", "no checkpoint", "3 and 7"},
                 [&](kvc_error* err) { return kvc_seq_pop(get(), 1, 1, err); });
  expect_ok(release(1, 3));
  EXPECT_EQ(stats_of(cache_).state_slots_used, 2) << "the fork keeps the state of 3 tokens";
  EXPECT_EQ(value_of(7), 3);
  EXPECT_EQ(value_of(1), 7);
  EXPECT_EQ(info_of(cache_, 1).num_checkpoints, 0);
  EXPECT_EQ(kvc_state_checkpoint_release(get(), 1, 3, nullptr), KVC_E_NOT_FOUND);
  EXPECT_EQ(kvc_cache_check(get(), nullptr), KVC_OK);
}

TEST_F(States, OneCheckpointBeforeEachRoundOfSpeculationTakesOneSlot) {
  step(1, 4, 4);
  for (int64_t round = 0; round < 100; ++round) {
    const int64_t length = 4 + round;
    ASSERT_EQ(kvc_state_checkpoint(get(), 1, nullptr), KVC_OK);
    step(1, 3, 100 + static_cast<double>(round));  // Three drafts, all rejected.
    ASSERT_EQ(kvc_seq_pop(get(), 1, 3, nullptr), KVC_OK);
    step(1, 1, static_cast<double>(round));
    // The automatic one of four tokens stays until its memory is needed.
    (void)kvc_state_checkpoint_release(get(), 1, length, nullptr);
    ASSERT_LE(info_of(cache_, 1).num_checkpoints, 1 + round / 4);
  }
  EXPECT_EQ(value_of(1), 99);
}

TEST_F(States, CheckpointReleaseRefusesBadArguments) {
  expect_refused(cache_, KVC_E_NOT_FOUND, {"sequence 9"},
                 [&](kvc_error* err) { return kvc_state_checkpoint_release(get(), 9, 0, err); });
  expect_error(KVC_E_INVALID_ARGUMENT, {"cache"},
               [&](kvc_error* err) { return kvc_state_checkpoint_release(nullptr, 1, 0, err); });
  ASSERT_EQ(cache_.begin({1}, {1}), KVC_OK);
  expect_refused(cache_, KVC_E_BUSY, {"sequence 1", "open forward"},
                 [&](kvc_error* err) { return kvc_state_checkpoint_release(get(), 1, 0, err); });
  Net net({attention_layer()});
  Cache plain(net.config);
  add_tokens(plain, 1, 4);
  expect_refused(plain, KVC_E_UNSUPPORTED, {"sequence 1", "STATE"}, [&](kvc_error* err) {
    return kvc_state_checkpoint_release(plain.get(), 1, 0, err);
  });
}

TEST_F(States, CheckpointRefusesBadArguments) {
  expect_refused(cache_, KVC_E_NOT_FOUND, {"sequence 9"},
                 [&](kvc_error* err) { return kvc_state_checkpoint(get(), 9, err); });
  expect_error(KVC_E_INVALID_ARGUMENT, {"cache"},
               [&](kvc_error* err) { return kvc_state_checkpoint(nullptr, 1, err); });
  ASSERT_EQ(cache_.begin({1}, {1}), KVC_OK);
  expect_refused(cache_, KVC_E_BUSY, {"sequence 1", "open forward"},
                 [&](kvc_error* err) { return kvc_state_checkpoint(get(), 1, err); });
  EXPECT_EQ(kvc_state_checkpoint(get(), 2, nullptr), KVC_OK);
  Net net({attention_layer()});
  Cache plain(net.config);
  add_tokens(plain, 1, 4);
  expect_refused(plain, KVC_E_UNSUPPORTED, {"sequence 1", "STATE"},
                 [&](kvc_error* err) { return kvc_state_checkpoint(plain.get(), 1, err); });
  EXPECT_EQ(info_of(plain, 1).num_checkpoints, 0);
}

TEST_F(States, AutomaticCheckpointsFollowTheStride) {
  for (const auto& [stride, expected] :
       {std::pair<int64_t, int32_t>{0, 4}, {4, 4}, {8, 2}, {-1, 0}}) {
    StateModel model;
    model.config().state_stride = stride;
    Cache cache(model.config());
    ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
    for (const int64_t length : {4, 4, 8, 2, 6, 1})
      add_tokens(cache, 1, length);  // ends at 4, 8, 16, 18, 24, 25
    EXPECT_EQ(info_of(cache, 1).num_checkpoints, expected == 2 ? 3 : expected) << stride;
    EXPECT_EQ(kvc_cache_check(cache.get(), nullptr), KVC_OK);
  }
  const auto refused = [](kvc_status status, std::initializer_list<const char*> parts,
                          const std::function<void(kvc_config&)>& change) {
    StateModel model;
    change(model.config());
    expect_error(status, parts, [&](kvc_error* err) { return plan_status(model.config(), err); });
  };
  refused(KVC_E_INVALID_ARGUMENT, {"state_stride", "6", "4"},
          [](kvc_config& c) { c.state_stride = 6; });
  refused(KVC_E_OUT_OF_RANGE, {"state_stride", "-2"}, [](kvc_config& c) { c.state_stride = -2; });
  refused(KVC_E_OUT_OF_RANGE, {"num_state_slots", "-1"},
          [](kvc_config& c) { c.num_state_slots = -1; });
  Net net({attention_layer()});
  net.config.state_stride = 4;
  expect_error(KVC_E_INVALID_ARGUMENT, {"state_stride", "STATE"},
               [&](kvc_error* err) { return plan_status(net.config, err); });
  net.config.state_stride = 0;
  net.config.num_state_slots = 4;
  expect_error(KVC_E_INVALID_ARGUMENT, {"num_state_slots", "STATE"},
               [&](kvc_error* err) { return plan_status(net.config, err); });
}

TEST(StateSlots, CountInWhatThePlanHoldsAtOnce) {
  StateModel model;
  const auto concurrency = [&](int64_t slots) {
    model.config().num_state_slots = slots;
    model.config().max_seq_len = 8;
    return PlanHandle(model.config()).info().concurrency;
  };
  EXPECT_EQ(concurrency(0), 16) << "32 pages, 2 for each";
  EXPECT_EQ(concurrency(100), 16);
  EXPECT_EQ(concurrency(17), 8.5);
  EXPECT_EQ(concurrency(16), 8) << "a forward needs a state before and after";
  EXPECT_EQ(concurrency(2), 1);
  model.config().num_state_slots = 1;
  expect_error(KVC_E_OUT_OF_RANGE, {"num_state_slots = 1", "2"},
               [&](kvc_error* err) { return plan_status(model.config(), err); });
}

TEST(StateSlots, OfStatesAloneCount) {
  StateModel model;
  model.net->layers.erase(model.net->layers.begin());
  model.config().layers = model.net->layers.data();
  model.config().num_layers = 1;
  model.config().num_state_slots = 6;
  EXPECT_EQ(PlanHandle(model.config()).info().concurrency, 3);
}

TEST(StateSlots, WhatNoEmptyCacheCouldServeIsNotCalledFull) {
  StateModel model;
  model.config().num_state_slots = 3;
  model.config().state_stride = -1;
  Cache cache(model.config());
  const auto grow = [&](kvc_seq seq, kvc_error* error) -> kvc_status {
    const kvc_status status = cache.begin({seq}, {1}, error);
    if (status != KVC_OK) return status;
    HostTensor state(Elem::kF32, {1, 2, 3});
    EXPECT_EQ(kvc_state_set(cache.forward, 1, 0, state.dl(), nullptr), KVC_OK);
    cache.finish();
    return KVC_OK;
  };
  kvc_error error{};
  ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
  ASSERT_EQ(grow(1, &error), KVC_OK) << error.message;
  ASSERT_EQ(kvc_state_checkpoint(cache.get(), 1, nullptr), KVC_OK);
  ASSERT_EQ(grow(1, &error), KVC_OK) << error.message;
  ASSERT_EQ(kvc_state_checkpoint(cache.get(), 1, nullptr), KVC_OK);
  ASSERT_EQ(grow(1, &error), KVC_OK) << "two checkpoints and the new state";
  // The state and two checkpoints take all three slots, and all are of this sequence.
  expect_refused(cache, KVC_E_NEVER_FITS, {"sequence 1", "3 states", "num_state_slots = 3"},
                 [&](kvc_error* err) { return cache.begin({1}, {1}, err); });
  ASSERT_EQ(kvc_seq_pop(cache.get(), 1, 1, nullptr), KVC_OK);
  ASSERT_EQ(kvc_seq_add(cache.get(), 2, nullptr), KVC_OK);
  ASSERT_EQ(grow(2, &error), KVC_OK) << error.message;
  const kvc_error full = expect_refused(cache, KVC_E_NO_PAGES, {"state slots", "1 missing"},
                                        [&](kvc_error* err) { return cache.begin({1}, {1}, err); });
  EXPECT_EQ(full.detail, 1) << "without sequence 2 there would be a slot";
  ASSERT_EQ(kvc_seq_remove(cache.get(), 2, nullptr), KVC_OK);
  EXPECT_EQ(grow(1, &error), KVC_OK) << error.message;
}

TEST_F(States, FullSlotsAreAnExpectedAnswer) {
  StateModel model;
  model.config().num_state_slots = 3;
  Cache cache(model.config());
  add_tokens(cache, 1, 3);
  EXPECT_EQ(stats_of(cache).state_slots_used, 0)
      << "nobody set a state: the initial one is carried on";
  for (const kvc_seq seq : {1, 2}) {
    if (seq == 2) {
      ASSERT_EQ(kvc_seq_add(cache.get(), seq, nullptr), KVC_OK);
    }
    ASSERT_EQ(cache.begin({seq}, {3}), KVC_OK);
    HostTensor state(Elem::kF32, {1, 2, 3});
    state.for_each([&](int64_t b, int64_t i, int64_t j, int64_t) { state.set(1, b, i, j); });
    ASSERT_EQ(kvc_state_set(cache.forward, 1, 0, state.dl(), nullptr), KVC_OK);
    cache.finish();
  }
  EXPECT_EQ(stats_of(cache).state_slots_used, 2);
  const kvc_seq both[] = {1, 2};
  const int64_t ones[] = {1, 1};
  int64_t missing = -1;
  expect_ok([&](kvc_error* err) {
    return kvc_seq_can_append(cache.get(), 2, both, ones, &missing, err);
  });
  EXPECT_EQ(missing, 1);
  const kvc_error error =
      expect_refused(cache, KVC_E_NO_PAGES, {"state slots", "3", "1 missing"}, [&](kvc_error* err) {
        return cache.begin({1, 2}, {1, 1}, err);
      });
  EXPECT_EQ(error.detail, 1);
  EXPECT_GE(stats_of(cache).no_pages, 1u);
  ASSERT_EQ(cache.begin({1}, {1}), KVC_OK);
  cache.abort();
  EXPECT_EQ(stats_of(cache).state_slots_used, 2);
  ASSERT_EQ(kvc_seq_remove(cache.get(), 2, nullptr), KVC_OK);
  ASSERT_EQ(kvc_seq_add(cache.get(), 3, nullptr), KVC_OK);
  ASSERT_EQ(cache.begin({1, 3}, {1, 1}), KVC_OK);
  EXPECT_EQ(kvc_cache_check(cache.get(), nullptr), KVC_OK);
}

TEST_F(States, GetAndSetRefuseBadArguments) {
  ASSERT_EQ(cache_.begin({1, 2}, {1, 1}), KVC_OK);
  HostTensor good(Elem::kF32, {2, 2, 3}), few(Elem::kF32, {1, 2, 3}), rank(Elem::kF32, {2, 6}),
      shape(Elem::kF32, {2, 3, 2});
  HostTensor integers(Elem::kI32, {2, 2, 3}), there(Elem::kF32, {2, 2, 3}),
      apart(Elem::kF32, {2, 2, 3}, {.inner_gap = 1});
  there.dl()->device = {kDLCUDA, 0};
  const auto refused = [&](kvc_status status, std::initializer_list<const char*> parts,
                           int32_t layer, int32_t state, DLTensor* tensor) {
    expect_refused(cache_, status, parts,
                   [&](kvc_error* err) { return kvc_state_get(fwd(), layer, state, tensor, err); });
    expect_refused(cache_, status, parts,
                   [&](kvc_error* err) { return kvc_state_set(fwd(), layer, state, tensor, err); });
  };
  refused(KVC_E_INVALID_STATE, {"layer 0 is of kind ATTENTION (0), expected STATE (3)"}, 0, 0,
          good.dl());
  refused(KVC_E_OUT_OF_RANGE, {"layer 2 out of range: the cache has 2 layers"}, 2, 0, good.dl());
  refused(KVC_E_OUT_OF_RANGE, {"layer -1"}, -1, 0, good.dl());
  refused(KVC_E_OUT_OF_RANGE, {"state 2", "layer 1", "2 states"}, 1, 2, good.dl());
  refused(KVC_E_OUT_OF_RANGE, {"state -1", "layer 1"}, 1, -1, good.dl());
  refused(KVC_E_SHAPE, {"3", "2"}, 1, 1, good.dl());
  refused(KVC_E_SHAPE, {"1", "2"}, 1, 0, few.dl());
  refused(KVC_E_SHAPE, {"2", "3"}, 1, 0, rank.dl());
  refused(KVC_E_SHAPE, {"3", "2"}, 1, 0, shape.dl());
  refused(KVC_E_SHAPE, {"stride", "4", "3"}, 1, 0, apart.dl());
  refused(KVC_E_DTYPE, {"int32", "float32"}, 1, 0, integers.dl());
  refused(KVC_E_DEVICE_MISMATCH, {}, 1, 0, there.dl());
  expect_refused(cache_, KVC_E_INVALID_ARGUMENT, {"out"},
                 [&](kvc_error* err) { return kvc_state_get(fwd(), 1, 0, nullptr, err); });
  expect_refused(cache_, KVC_E_INVALID_ARGUMENT, {"value"},
                 [&](kvc_error* err) { return kvc_state_set(fwd(), 1, 0, nullptr, err); });
  for (HostTensor* tensor : {&good, &few, &rank, &shape, &integers, &there, &apart})
    EXPECT_TRUE(tensor->is_untouched());
  cache_.finish();
  EXPECT_EQ(value_of(1), kInitial) << "a refused set sets nothing";
}

TEST_F(States, AttentionCallsRefuseAStateLayer) {
  ASSERT_EQ(cache_.begin({1}, {1}), KVC_OK);
  Tokens tokens(1);
  HostTensor out(Elem::kF32, {1, kHeads, kDim});
  const auto refused = [&](kvc_status status, const Call& fn) {
    expect_refused(cache_, status, {"layer 1", "STATE"}, fn);
    EXPECT_TRUE(out.is_untouched());
  };
  refused(KVC_E_INVALID_STATE, [&](kvc_error* err) {
    return kvc_attn(fwd(), 1, nullptr, tokens.q.dl(), tokens.k.dl(), tokens.v.dl(), out.dl(),
                    nullptr, err);
  });
  refused(KVC_E_INVALID_STATE, [&](kvc_error* err) {
    return kvc_kv_append(fwd(), 1, tokens.k.dl(), tokens.v.dl(), err);
  });
  refused(KVC_E_INVALID_STATE,
          [&](kvc_error* err) { return kvc_mla_append(fwd(), 1, tokens.k.dl(), err); });
  refused(KVC_E_INVALID_STATE,
          [&](kvc_error* err) { return kvc_kv_gather(fwd(), 1, 1, out.dl(), nullptr, err); });
  DLManagedTensorVersioned* exported = nullptr;
  refused(KVC_E_UNSUPPORTED, [&](kvc_error* err) {
    return kvc_export_pool(get(), 1, KVC_POOL_BYTES, &exported, err);
  });
  EXPECT_EQ(exported, nullptr);
}

TEST_F(States, DebugSetReplacesTheStateAtTheLength) {
  step(1, 4, 4);
  ASSERT_EQ(kvc_seq_fork(get(), 1, 7, -1, nullptr), KVC_OK);
  HostTensor value(Elem::kBF16, {2, 3});
  value.for_each([&](int64_t i, int64_t j, int64_t, int64_t) { value.set(60, i, j); });
  expect_ok([&](kvc_error* err) {
    return kvc_debug_set_state(get(), 1, 1, 0, value.dl(), nullptr, err);
  });
  EXPECT_EQ(value_of(1), 60);
  EXPECT_EQ(value_of(7), 4) << "a sibling's checkpoint stays";
  ASSERT_EQ(kvc_seq_fork(get(), 1, 8, -1, nullptr), KVC_OK);
  EXPECT_EQ(value_of(8), 60) << "a fork at the end has the parent's state";
  step(1, 2, 6);
  ASSERT_EQ(kvc_seq_pop(get(), 1, 2, nullptr), KVC_OK);
  EXPECT_EQ(value_of(1), 60) << "so does going back to there";
  HostTensor second(Elem::kF32, {4});
  ASSERT_EQ(kvc_debug_get_state(get(), 1, 1, 1, second.dl(), nullptr, nullptr), KVC_OK);
  EXPECT_EQ(second.get(3), 0) << "the other state is as it was";
  EXPECT_EQ(kvc_cache_check(get(), nullptr), KVC_OK);
}

TEST_F(States, DebugRefusesBadArguments) {
  step(1, 3, 3);
  HostTensor good(Elem::kF32, {2, 3}), batched(Elem::kF32, {1, 2, 3}), shape(Elem::kF32, {3, 2}),
      integers(Elem::kI32, {2, 3});
  const auto refused = [&](kvc_status status, std::initializer_list<const char*> parts, kvc_seq seq,
                           int32_t layer, int32_t state, DLTensor* tensor) {
    expect_refused(cache_, status, parts, [&](kvc_error* err) {
      return kvc_debug_get_state(get(), seq, layer, state, tensor, nullptr, err);
    });
    expect_refused(cache_, status, parts, [&](kvc_error* err) {
      return kvc_debug_set_state(get(), seq, layer, state, tensor, nullptr, err);
    });
  };
  refused(KVC_E_NOT_FOUND, {"sequence 9"}, 9, 1, 0, good.dl());
  refused(KVC_E_OUT_OF_RANGE, {"layer 2"}, 1, 2, 0, good.dl());
  refused(KVC_E_OUT_OF_RANGE, {"layer -1"}, 1, -1, 0, good.dl());
  refused(KVC_E_OUT_OF_RANGE, {"state 2", "layer 1"}, 1, 1, 2, good.dl());
  refused(KVC_E_OUT_OF_RANGE, {"state -1"}, 1, 1, -1, good.dl());
  refused(KVC_E_UNSUPPORTED, {"layer 0", "ATTENTION", "STATE"}, 1, 0, 0, good.dl());
  refused(KVC_E_SHAPE, {"3", "2"}, 1, 1, 0, batched.dl());
  refused(KVC_E_SHAPE, {"3", "2"}, 1, 1, 0, shape.dl());
  refused(KVC_E_DTYPE, {"int32"}, 1, 1, 0, integers.dl());
  expect_refused(cache_, KVC_E_INVALID_ARGUMENT, {"out"}, [&](kvc_error* err) {
    return kvc_debug_get_state(get(), 1, 1, 0, nullptr, nullptr, err);
  });
  expect_refused(cache_, KVC_E_INVALID_ARGUMENT, {"value"}, [&](kvc_error* err) {
    return kvc_debug_set_state(get(), 1, 1, 0, nullptr, nullptr, err);
  });
  expect_error(KVC_E_INVALID_ARGUMENT, {"cache"}, [&](kvc_error* err) {
    return kvc_debug_get_state(nullptr, 1, 1, 0, good.dl(), nullptr, err);
  });
  expect_error(KVC_E_INVALID_ARGUMENT, {"cache"}, [&](kvc_error* err) {
    return kvc_debug_set_state(nullptr, 1, 1, 0, good.dl(), nullptr, err);
  });
  EXPECT_TRUE(good.is_untouched() && shape.is_untouched());
  ASSERT_EQ(cache_.begin({1}, {1}), KVC_OK);
  expect_refused(cache_, KVC_E_BUSY, {"sequence 1", "open forward"}, [&](kvc_error* err) {
    return kvc_debug_set_state(get(), 1, 1, 0, good.dl(), nullptr, err);
  });
  EXPECT_EQ(kvc_debug_get_state(get(), 1, 1, 0, good.dl(), nullptr, nullptr), KVC_OK);
  EXPECT_EQ(good.get(0, 0), 3);
}

TEST_F(States, DebugSetNeedsASlotOnlyForAStateThatOthersHold) {
  StateModel model;
  model.config().num_state_slots = 2;
  Cache cache(model.config());
  ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
  HostTensor value(Elem::kF32, {2, 3});
  const auto set = [&](kvc_seq seq, double number, kvc_error* err = nullptr) {
    value.for_each([&](int64_t i, int64_t j, int64_t, int64_t) { value.set(number, i, j); });
    return kvc_debug_set_state(cache.get(), seq, 1, 0, value.dl(), nullptr, err);
  };
  ASSERT_EQ(kvc_seq_add(cache.get(), 3, nullptr), KVC_OK);
  ASSERT_EQ(set(3, 2), KVC_OK) << "takes one of the two slots";
  ASSERT_EQ(set(1, 3), KVC_OK);
  EXPECT_EQ(set(1, 4), KVC_OK) << "the slot is its own";
  ASSERT_EQ(kvc_seq_fork(cache.get(), 1, 2, -1, nullptr), KVC_OK);
  const kvc_error error = expect_refused(cache, KVC_E_NO_PAGES, {"sequence 2", "slot", "2"},
                                         [&](kvc_error* err) { return set(2, 5, err); });
  EXPECT_EQ(error.detail, 1);
  ASSERT_EQ(kvc_debug_get_state(cache.get(), 1, 1, 0, value.dl(), nullptr, nullptr), KVC_OK);
  EXPECT_EQ(value.get(0, 0), 4);
  EXPECT_EQ(kvc_cache_check(cache.get(), nullptr), KVC_OK);
}

TEST(StatesWithoutStorage, AreCountedAndRefusedByName) {
  StateModel model;
  model.config().storage = KVC_STORAGE_NONE;
  Cache cache(model.config());
  add_tokens(cache, 1, 4);
  add_tokens(cache, 1, 3);
  EXPECT_EQ(stats_of(cache).state_slots_used, 2) << "the state and the checkpoint at 4";
  EXPECT_EQ(info_of(cache, 1).num_checkpoints, 1);
  expect_refused(cache, KVC_E_OUT_OF_RANGE, {"n = 1"},
                 [&](kvc_error* err) { return kvc_seq_pop(cache.get(), 1, 1, err); });
  EXPECT_EQ(kvc_seq_pop(cache.get(), 1, 3, nullptr), KVC_OK);
  HostTensor state(Elem::kF32, {2, 3});
  expect_refused(cache, KVC_E_UNSUPPORTED, {"kvc_debug_get_state", "storage"}, [&](kvc_error* err) {
    return kvc_debug_get_state(cache.get(), 1, 1, 0, state.dl(), nullptr, err);
  });
  expect_refused(cache, KVC_E_UNSUPPORTED, {"kvc_debug_set_state", "storage"}, [&](kvc_error* err) {
    return kvc_debug_set_state(cache.get(), 1, 1, 0, state.dl(), nullptr, err);
  });
  EXPECT_EQ(kvc_cache_check(cache.get(), nullptr), KVC_OK);
}

TEST(StatesAlone, NeedNoPages) {
  const std::vector<int64_t> shape{3};
  const std::vector<kvc_state_spec> specs{state_spec(shape)};
  Net net({state_layer(specs), layer_of_kind(KVC_LAYER_NONE)}, 0);
  Cache cache(net.config);
  add_tokens(cache, 1, 100000);
  EXPECT_EQ(length_of(cache, 1), 100000);
  EXPECT_EQ(info_of(cache, 1).num_pages, 0);
  EXPECT_EQ(info_of(cache, 1).num_checkpoints, 0);
  ASSERT_EQ(cache.begin({1}, {1}), KVC_OK);
  DLManagedTensorVersioned* table = nullptr;
  expect_refused(cache, KVC_E_OUT_OF_RANGE, {"group 0", "0 groups"}, [&](kvc_error* err) {
    return kvc_export_page_table(cache.forward, 0, KVC_TABLE_INDPTR, &table, err);
  });
  HostTensor state(Elem::kF32, {1, 3});
  ASSERT_EQ(kvc_state_get(cache.forward, 0, 0, state.dl(), nullptr), KVC_OK);
  EXPECT_EQ(state.get(0, 1), 0);
  ASSERT_EQ(kvc_state_set(cache.forward, 0, 0, state.dl(), nullptr), KVC_OK);
  cache.finish();
  ASSERT_EQ(kvc_cache_clear(cache.get(), nullptr), KVC_OK);
  EXPECT_EQ(kvc_cache_is_empty(cache.get()), 1);
  EXPECT_EQ(stats_of(cache).state_slots_used, 0);
  add_tokens(cache, 1, 5);
}

TEST(StateSpecs, AreCheckedByThePlan) {
  struct Specs {
    std::vector<int64_t> shape{2, 3};
    kvc_state_spec spec = state_spec(shape);
    kvc_layer layer{};
  };
  const auto refused = [](kvc_status status, std::initializer_list<const char*> parts,
                          const std::function<void(Specs&)>& change) {
    Specs specs;
    specs.layer = layer_of_kind(KVC_LAYER_STATE);
    specs.layer.states = &specs.spec;
    specs.layer.num_states = 1;
    change(specs);
    Net net({attention_layer(), specs.layer});
    expect_error(status, parts, [&](kvc_error* err) { return plan_status(net.config, err); });
  };
  HostTensor wrong_shape(Elem::kF32, {3, 2}), wrong_type(Elem::kF16, {2, 3});
  const kvc_rope rope = rope_of(KVC_ROPE_ON_APPEND);
  refused(KVC_E_OUT_OF_RANGE, {"layers[1]", "num_states", "0"},
          [](Specs& s) { s.layer.num_states = 0, s.layer.states = nullptr; });
  refused(KVC_E_OUT_OF_RANGE, {"layers[1]", "num_states", "17"},
          [](Specs& s) { s.layer.num_states = 17; });
  refused(KVC_E_OUT_OF_RANGE, {"layers[1]", "num_states", "-1"},
          [](Specs& s) { s.layer.num_states = -1; });
  refused(KVC_E_INVALID_ARGUMENT, {"layers[1].states", "NULL", "1"},
          [](Specs& s) { s.layer.states = nullptr; });
  refused(KVC_E_INVALID_ARGUMENT, {"layers[1].states[0]", "struct_size", "0"},
          [](Specs& s) { s.spec.struct_size = 0; });
  refused(KVC_E_OUT_OF_RANGE, {"states[0].ndim", "0"}, [](Specs& s) { s.spec.ndim = 0; });
  refused(KVC_E_OUT_OF_RANGE, {"states[0].ndim", "9"}, [](Specs& s) { s.spec.ndim = 9; });
  refused(KVC_E_INVALID_ARGUMENT, {"states[0].shape", "NULL"},
          [](Specs& s) { s.spec.shape = nullptr; });
  refused(KVC_E_OUT_OF_RANGE, {"states[0].shape[1]", "0"}, [](Specs& s) { s.shape[1] = 0; });
  refused(KVC_E_OUT_OF_RANGE, {"states[0].shape[0]", "-4"}, [](Specs& s) { s.shape[0] = -4; });
  refused(KVC_E_OUT_OF_RANGE, {"states[0].shape"}, [](Specs& s) {
    s.shape = {INT32_MAX, INT32_MAX}, s.spec.shape = s.shape.data();
  });
  refused(KVC_E_UNSUPPORTED, {"layers[1].states[0].dtype", "int8"}, [](Specs& s) {
    s.spec.dtype = {kDLInt, 8, 1};
  });
  refused(KVC_E_SHAPE, {"states[0].init", "3", "2"},
          [&](Specs& s) { s.spec.init = wrong_shape.dl(); });
  refused(KVC_E_DTYPE, {"states[0].init", "float16", "float32"},
          [&](Specs& s) { s.spec.init = wrong_type.dl(); });
  refused(KVC_E_INVALID_ARGUMENT, {"layers[1].k_dim", "8", "STATE"},
          [](Specs& s) { s.layer.k_dim = 8; });
  refused(KVC_E_INVALID_ARGUMENT, {"layers[1].flags", "STATE"},
          [](Specs& s) { s.layer.flags = 1; });
  refused(KVC_E_UNSUPPORTED, {"layers[1].rope", "STATE"}, [&](Specs& s) { s.layer.rope = &rope; });
  refused(KVC_E_INVALID_ARGUMENT, {"layers[1].num_states", "ATTENTION"}, [](Specs& s) {
    const kvc_state_spec* states = s.layer.states;
    s.layer = attention_layer();
    s.layer.states = states;
    s.layer.num_states = 1;
  });
}

}  // namespace
}  // namespace kvc::test
