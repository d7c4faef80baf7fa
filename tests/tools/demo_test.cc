// The demo serves the same answers from every store, and would notice if it did not.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <string>

#include "tools/demo/block_map.h"
#include "tools/demo/contiguous_store.h"
#include "tools/demo/demo_run.h"
#include "tools/demo/random_model.h"
#include "tools/demo/sampler.h"
#include "tools/demo/terminal.h"

namespace kvc::demo {
namespace {

constexpr uint64_t kSeed = 7;

class ToolDemo : public testing::Test {
 protected:
  explicit ToolDemo(const RandomShape& shape = {2, 64, 4, 2, 32, 128}) : shape_(shape) {
    const std::string system =
        "A harbour office answers in short sentences and never guesses about the tide.";
    workload_.system.assign(system.begin(), system.end());
    for (int i = 0; i < 6; ++i) {
      Conversation c;
      Turn turn;
      turn.text = std::string(static_cast<size_t>(3 + 11 * i % 31), static_cast<char>('a' + i));
      turn.tokens = workload_.system;
      turn.tokens.insert(turn.tokens.end(), turn.text.begin(), turn.text.end());
      c.turns.push_back(turn);
      for (int later = 0; later < i % 3; ++later)
        c.turns.push_back(
            {"more", "", {'\n', 'm', 'o', 'r', 'e', static_cast<Token>('0' + later)}});
      c.max_new = (4 + 3 * i) / static_cast<int64_t>(c.turns.size());
      c.arrival_step = i / 2;
      workload_.conversations.push_back(c);
    }
  }

  ServeResult serve_contiguous() {
    ContiguousStore store(model_.shape(), workload_.longest_request(), 6, pool_,
                          llm::block_kernels());
    return serve_with(store, false);
  }
  ServeResult serve_paged(bool shared, PagedOptions options = {}, int64_t pages = 1000) {
    if (options.page_size == 0) options.page_size = 16;
    options.byte_budget =
        static_cast<uint64_t>(pages * options.page_size * 2 * shape_.layers * shape_.kv_heads *
                              row_bytes(options.dtype, shape_.head_dim));
    PagedStore store(model_.shape(), options, pool_);
    ServeResult result = serve_with(store, shared);
    store.check();
    EXPECT_EQ(store.stats().pages_used, 0);
    return result;
  }
  ServeResult serve_with(KvStore& store, bool shared) {
    ServeOptions options;
    options.tokens_per_step = 50;
    options.seed = kSeed;
    options.share_system_prompt = shared;
    return serve(workload_, model_.network(), store, options);
  }

  RandomShape shape_;
  llm::WorkerPool pool_{3};
  Workload workload_;
  RandomModel model_{shape_, kSeed, std::vector<Token>{'a', 'b', 'c', ' '}, pool_,
                     llm::block_kernels()};
};

TEST_F(ToolDemo, AllStoresGiveTheSameTokensForAnyPageSize) {
  const ServeResult expected = serve_contiguous();
  for (const int page_size : {1, 16, 48, 256}) {
    for (const bool shared : {false, true}) {
      PagedOptions options;
      options.page_size = page_size;
      const Comparison c = compare(expected, serve_paged(shared, options));
      EXPECT_TRUE(c.identical) << page_size << (shared ? " shared" : "") << ", conversation "
                               << c.conversation;
      EXPECT_LT(c.max_logit_difference, 1e-4);
      EXPECT_EQ(c.tokens_compared, expected.generated_tokens());
    }
  }
}

// Three of four layers have a window that ends inside of pages and of blocks of keys, and heads do
// not fill the kernels' vectors.
class ToolDemoWindows : public ToolDemo {
 protected:
  ToolDemoWindows() : ToolDemo({4, 56, 6, 2, 24, 72, 500.0, 21}) {}
};

TEST_F(ToolDemoWindows, AllStoresGiveTheSameTokens) {
  const ServeResult expected = serve_contiguous();
  for (const int page_size : {1, 16, 48}) {
    for (const bool shared : {false, true}) {
      PagedOptions options;
      options.page_size = page_size;
      const ServeResult got = serve_paged(shared, options);
      const Comparison c = compare(expected, got);
      EXPECT_TRUE(c.identical) << page_size << (shared ? " shared" : "") << ", conversation "
                               << c.conversation;
      EXPECT_LT(c.max_logit_difference, 1e-4);
      EXPECT_LE(got.peak.used_bytes, got.peak.reserved_bytes);
    }
  }
}

TEST_F(ToolDemo, NarrowStorageGivesTheSameBitsWhetherThePromptIsSharedOrNot) {
  for (const char* dtype : {"fp16", "bf16", "int8", "fp8", "fp8_e5m2"}) {
    PagedOptions options;
    options.dtype = cpu_kv_dtype(dtype);
    options.batch_invariant = true;
    const Comparison c = compare(serve_paged(false, options), serve_paged(true, options));
    EXPECT_TRUE(c.identical) << dtype;
    EXPECT_EQ(c.max_logit_difference, 0.0) << dtype;
  }
}

TEST_F(ToolDemo, OneWrongByteInTheSharedPromptIsNoticed) {
  const ServeResult expected = serve_contiguous();
  workload_.system[10] ^= 1;  // only what is forked; the conversations' own prompts stay
  const Comparison c = compare(expected, serve_paged(true));
  EXPECT_FALSE(c.identical);
  EXPECT_GT(c.max_logit_difference, 1e-3);
}

TEST_F(ToolDemo, AFullPoolMakesConversationsWaitAndChangesNoToken) {
  const ServeResult expected = serve_contiguous();
  int64_t preemptions = 0;
  for (const int64_t pages : {10, 11, 13, 16}) {
    for (const bool shared : {false, true}) {
      const ServeResult got = serve_paged(shared, {}, pages);
      EXPECT_TRUE(compare(expected, got).identical) << pages << " pages";
      EXPECT_TRUE(shared || got.waits > 0) << pages << " pages";
      preemptions += got.preemptions;
    }
  }
  EXPECT_GT(preemptions, 0) << "no pool was small enough to test a preemption";
}

TEST_F(ToolDemo, CountsPromptTokensAndPeakAsTheyAre) {
  const auto system = static_cast<int64_t>(workload_.system.size());
  const ServeResult whole = serve_paged(false), shared = serve_paged(true);
  EXPECT_EQ(whole.prompt_tokens, workload_.prompt_tokens());
  EXPECT_EQ(shared.prompt_tokens, workload_.prompt_tokens() - 5 * system);
  EXPECT_EQ(whole.recomputed_tokens, 0);
  const int root = static_cast<int>(workload_.conversations.size());
  const MapCounts counts = count_cells(map_cells(shared.peak_pages, root));
  EXPECT_EQ(counts.shared, (system + 15) / 16);
  EXPECT_EQ(counts.free, 1000 - counts.shared - counts.own);
  const uint64_t page_bytes = 16u * 4 * 2 * 2 * 2 * 32;
  EXPECT_EQ(shared.peak.reserved_bytes,
            static_cast<uint64_t>(counts.shared + counts.own) * page_bytes);
  EXPECT_LE(shared.peak.used_bytes, shared.peak.reserved_bytes);
}

TEST(ToolDemoCompare, NamesTheFirstTokenThatDiffersAndLooksNoFurther) {
  ServeResult a;
  a.answers.resize(2);
  for (Answer& answer : a.answers) {
    answer.tokens = {1, 2, 3};
    answer.logits.assign(3 * RandomModel::kVocabulary, 0.5f);
  }
  ServeResult b = a;
  EXPECT_TRUE(compare(a, b).identical);
  b.answers[1].tokens[1] = 9;
  b.answers[1].logits[RandomModel::kVocabulary] = 0.75f;
  b.answers[1].logits[2 * RandomModel::kVocabulary] =
      100.0f;  // after the difference the two have read different texts
  const Comparison c = compare(a, b);
  EXPECT_FALSE(c.identical);
  EXPECT_EQ(c.conversation, 1);
  EXPECT_EQ(c.place, 1);
  EXPECT_EQ(c.expected, 2);
  EXPECT_EQ(c.got, 9);
  EXPECT_EQ(c.tokens_compared, 5);
  EXPECT_DOUBLE_EQ(c.max_logit_difference, 0.25);
  b.answers[0].logits[0] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isinf(compare(a, b).max_logit_difference));
}

TEST(ToolDemoTexts, TurnsAreLinesOrParagraphs) {
  EXPECT_EQ(split_turns("one\ntwo\r\n\n"), (std::vector<std::string>{"one", "two"}));
  EXPECT_EQ(split_turns("one\nmore\n\n\n two \n"), (std::vector<std::string>{"one\nmore", "two"}));
  EXPECT_EQ(split_turns("\n\nsingle"), std::vector<std::string>{"single"});
  EXPECT_TRUE(split_turns(" \n\t\n").empty());
}

TEST(ToolDemoTexts, TheTextsThatShipShareMostOfEveryPrompt) {
  const Workload workload = make_workload({});
  ASSERT_EQ(workload.conversations.size(), 16u);
  const auto system = static_cast<int64_t>(workload.system.size());
  EXPECT_NEAR(static_cast<double>(system), 2000, 100);
  const int64_t shared = workload.prompt_tokens() - 15 * system;
  EXPECT_LT(shared * 100, 15 * workload.prompt_tokens());
  EXPECT_THROW(make_workload({"/no/such/file", "", 16, 64, 1}), UsageError);
}

TEST(ToolDemoSampler, DrawsAsOftenAsTheSoftmaxSays) {
  std::vector<float> logits(RandomModel::kVocabulary, -100.0f);
  logits['a'] = 0.0f;
  logits['b'] = 1.0f;
  constexpr int kDraws = 20000;
  int b = 0;
  for (int i = 0; i < kDraws; ++i) b += sample(logits, 0.5, kSeed, 3, i) == 'b';
  const double expected = std::exp(2.0) / (1.0 + std::exp(2.0));
  EXPECT_NEAR(static_cast<double>(b) / kDraws, expected, 0.01) << "seed " << kSeed;
  EXPECT_EQ(sample(logits, 0.0, kSeed, 0, 0), 'b');
}

TEST(ToolDemoMap, SixteenConversationsHaveSixteenColours) {
  std::set<std::string> colours = {cell_rgb({MapCell::kShared, -1}),
                                   cell_rgb({MapCell::kFree, -1})};
  std::set<int> palette = {cell_palette({MapCell::kShared, -1})};
  for (int i = 0; i < 16; ++i) {
    colours.insert(cell_rgb({MapCell::kOwn, i}));
    palette.insert(cell_palette({MapCell::kOwn, i}));
  }
  EXPECT_EQ(colours.size(), 18u);
  EXPECT_EQ(palette.size(), 17u);
}

TEST(ToolDemoText, NumbersAndBytesAreWrittenForPeople) {
  EXPECT_EQ(grouped(0), "0");
  EXPECT_EQ(grouped(999), "999");
  EXPECT_EQ(grouped(1000), "1,000");
  EXPECT_EQ(grouped(-1234567), "-1,234,567");
  EXPECT_EQ(printable("a\nb\x01\xc3z", 10), "a b..z");
  EXPECT_EQ(printable("abcdef", 3), "abc");
}

}  // namespace
}  // namespace kvc::demo
