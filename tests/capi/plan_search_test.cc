// What a plan counts against what the cache then allows, over random small configurations: one
// request less, one more.
#include <cmath>
#include <functional>
#include <optional>

#include "tests/capi/layers.h"
#include "tests/support/environment.h"

namespace kvc::test {
namespace {

// Layers of a few kinds, small pages, a pool of a few requests.
class SmallModel {
 public:
  explicit SmallModel(Random& random) {
    std::vector<kvc_layer> layers;
    for (int64_t i = random.range(1, 3); i > 0; --i) {
      switch (random.range(0, 5)) {
        case 0: layers.push_back(attention_layer(random.range(1, 20))); break;
        case 1: layers.push_back(attention_layer(0, random.range(1, 20))); break;
        case 2: layers.push_back(state_layer(states_)); break;
        default: layers.push_back(attention_layer());
      }
      has_states_ = has_states_ || layers.back().kind == KVC_LAYER_STATE;
      is_full_only_ = is_full_only_ && layers.back().kind == KVC_LAYER_ATTENTION &&
                      layers.back().window == 0 && layers.back().chunk == 0;
    }
    net_.emplace(std::move(layers));
    kvc_config& config = net_->config;
    config.page_size = static_cast<int32_t>(random.pick_of({1, 2, 3, 4, 16}));
    config.max_seq_len = random.range(1, 60);
    if (random.chance(0.6)) config.max_tokens_per_forward = random.range(1, 20);
    config.forwards_in_flight = static_cast<int32_t>(random.range(0, 2));
    config.storage = KVC_STORAGE_NONE;
    if (has_states_ && random.chance(0.5)) config.num_state_slots = random.range(2, 9);
    config.num_pages = 1000;  // To ask what one request takes.
    request_pages_ = PlanHandle(config).info().request_pages;
    config.num_pages =
        std::max<int64_t>(1, request_pages_ * random.range(1, 4) +
                                 random.range(0, std::max<int64_t>(0, request_pages_ - 1)));
  }

  kvc_config& config() { return net_->config; }
  int64_t request_pages() const { return request_pages_; }
  bool has_states() const { return has_states_; }
  bool is_full_only() const { return is_full_only_; }
  int64_t tokens_of_forward() const {
    return net_->config.max_tokens_per_forward != 0 ? net_->config.max_tokens_per_forward
                                                    : net_->config.max_seq_len;
  }

 private:
  std::vector<int64_t> shape_{2, 2};
  std::vector<kvc_state_spec> states_{state_spec(shape_)};
  std::optional<Net> net_;
  bool has_states_ = false, is_full_only_ = true;
  int64_t request_pages_ = 0;
};

// Appends to sequences of `left` tokens to go, in forwards of any shape. The first refusal, or OK.
kvc_status compute(Cache& cache, Random& random, std::vector<int64_t> left, int64_t most,
                   kvc_error* error) {
  while (std::any_of(left.begin(), left.end(), [](int64_t tokens) { return tokens > 0; })) {
    std::vector<kvc_seq> seqs;
    std::vector<int64_t> lengths;
    int64_t room = most;
    for (size_t i = 0; i < left.size(); ++i) {
      if (left[i] == 0 || room == 0 || random.chance(0.4)) continue;
      const int64_t count =
          random.chance(0.5) ? std::min(left[i], room) : random.range(1, std::min(left[i], room));
      seqs.push_back(static_cast<kvc_seq>(i));
      lengths.push_back(count);
      room -= count;
    }
    if (seqs.empty()) continue;
    const kvc_status status = cache.begin(seqs, lengths, error);
    if (status != KVC_OK) return status;
    cache.end();
    for (size_t i = 0; i < seqs.size(); ++i) left[static_cast<size_t>(seqs[i])] -= lengths[i];
  }
  return KVC_OK;
}

void for_each_seed(uint64_t count, const std::function<void(uint64_t)>& run) {
  const auto first = static_cast<uint64_t>(environment("KVC_TEST_OFFSET", 0));
  for (uint64_t seed = first; seed < first + count; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    run(seed);
    if (testing::Test::HasFailure()) return;
  }
}

void add_all(Cache& cache, int64_t count) {
  for (kvc_seq seq = 0; seq < count; ++seq)
    ASSERT_EQ(kvc_seq_add(cache.get(), seq, nullptr), KVC_OK);
}

TEST(PlanSearch, SoManyRequestsAlwaysFitAndOneMoreFitsNotInPagesThatNothingGivesBack) {
  int64_t num_full = 0;
  for_each_seed(400, [&](uint64_t seed) {
    Random random(seed);
    SmallModel model(random);
    const kvc_plan_info info = PlanHandle(model.config()).info();
    ASSERT_EQ(info.request_pages, model.request_pages());
    const int64_t most = model.tokens_of_forward(), length = info.max_seq_len;
    ASSERT_EQ(length, model.config().max_seq_len);
    const auto count = static_cast<int64_t>(std::floor(info.concurrency));
    kvc_error error{};
    if (info.concurrency != 0) {
      ASSERT_GE(count, 1) << "a plan holds a request of max_seq_len";
      Cache cache(model.config());
      add_all(cache, count);
      const std::vector<int64_t> all(static_cast<size_t>(count), length);
      ASSERT_EQ(compute(cache, random, all, most, &error), KVC_OK)
          << count << " requests of " << length << " tokens: " << error.message;
      EXPECT_EQ(kvc_cache_check(cache.get(), nullptr), KVC_OK);
      EXPECT_EQ(cache.begin({0}, {1}, &error), KVC_E_NEVER_FITS) << error.message;
    }
    if (!model.is_full_only()) return;
    ++num_full;
    Cache cache(model.config());
    add_all(cache, count + 1);
    const std::vector<int64_t> all(static_cast<size_t>(count) + 1, length);
    EXPECT_EQ(compute(cache, random, all, most, &error), KVC_E_NO_PAGES)
        << count << " + 1 requests of " << length << " tokens";
  });
  EXPECT_GT(num_full, 0);
}

TEST(PlanSearch, ThePagesOfARequestAreWhatOneTakes) {
  for_each_seed(300, [&](uint64_t seed) {
    Random random(seed);
    SmallModel model(random);
    const int64_t length = model.config().max_seq_len;
    model.config().num_pages = std::max<int64_t>(1, model.request_pages());
    kvc_error error{};
    {
      Cache cache(model.config());
      add_all(cache, 1);
      ASSERT_EQ(compute(cache, random, {length}, model.tokens_of_forward(), &error), KVC_OK)
          << error.message;
    }
    if (model.request_pages() < 2) return;
    // One page less is refused by the plan: it would not run a request of max_seq_len.
    --model.config().num_pages;
    EXPECT_EQ(plan_status(model.config(), &error), KVC_E_NEVER_FITS) << error.message;
    // The bytes of one page less hold the longest request that takes no more.
    if (model.has_states()) return;  // Their bytes count, too.
    const int64_t less = model.config().num_pages++;
    const PlanHandle plan(model.config());
    const uint64_t bytes = plan.info().page_bytes * static_cast<uint64_t>(less);
    int64_t tokens = -1, pages = -1;
    ASSERT_EQ(kvc_plan_max_tokens(plan.get(), bytes, &tokens, nullptr), KVC_OK);
    ASSERT_LT(tokens, length);
    ASSERT_EQ(kvc_plan_request_pages(plan.get(), tokens, &pages, nullptr), KVC_OK);
    EXPECT_LE(pages, less);
    ASSERT_EQ(kvc_plan_request_pages(plan.get(), tokens + 1, &pages, nullptr), KVC_OK);
    EXPECT_GT(pages, less);
  });
}

// NO_PAGES is an answer to wait with: without the others the request works. NEVER_FITS is final.
TEST(PlanSearch, WhatHasNoPagesNowFitsWithoutTheOthersAndWhatNeverFitsDoesNot) {
  int64_t num_full = 0, num_never = 0;
  for_each_seed(400, [&](uint64_t seed) {
    Random random(seed);
    SmallModel model(random);
    if (model.has_states() && random.chance(0.7))
      model.config().state_stride = random.pick_of({-1, 1, 2}) * model.config().page_size;
    if (model.config().state_stride < 0) model.config().state_stride = -1;
    Cache cache(model.config());
    ASSERT_NE(cache.get(), nullptr);
    std::vector<kvc_seq> seqs;
    kvc_seq next = 0;
    for (int step = 0; step < 60; ++step) {
      const int64_t choice = random.range(0, 9);
      if (seqs.empty() || choice == 0) {
        ASSERT_EQ(kvc_seq_add(cache.get(), next, nullptr), KVC_OK);
        seqs.push_back(next++);
        continue;
      }
      const kvc_seq seq = random.pick(seqs);
      if (choice == 1) {
        if (kvc_seq_fork(cache.get(), seq, next, -1, nullptr) == KVC_OK) seqs.push_back(next++);
        continue;
      }
      if (choice == 2) {
        (void)kvc_state_checkpoint(cache.get(), seq, nullptr);
        continue;
      }
      const int64_t count = random.range(1, model.tokens_of_forward());
      kvc_error error{};
      kvc_status status = cache.begin({seq}, {count}, &error);
      if (status == KVC_OK) {
        if (random.chance(0.2))
          cache.abort();
        else
          cache.end();
        continue;
      }
      const std::string before = error.message;
      ASSERT_TRUE(status == KVC_E_NO_PAGES || status == KVC_E_NEVER_FITS) << before;
      ++(status == KVC_E_NO_PAGES ? num_full : num_never);
      for (const kvc_seq other : seqs) {
        if (other == seq) continue;
        ASSERT_EQ(kvc_seq_remove(cache.get(), other, nullptr), KVC_OK);
      }
      seqs = {seq};
      const kvc_status alone = cache.begin({seq}, {count}, &error);
      ASSERT_EQ(alone, status == KVC_E_NO_PAGES ? KVC_OK : KVC_E_NEVER_FITS)
          << before << "; alone: " << error.message;
      if (alone == KVC_OK) cache.end();
    }
  });
  EXPECT_GT(num_full, 0);
  EXPECT_GT(num_never, 0);
}

}  // namespace
}  // namespace kvc::test
