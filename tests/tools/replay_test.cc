// A replay asks the bookkeeping what a serving engine would, and counts what it answers.
#include "tools/replay/replay.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "tests/model/random.h"
#include "tests/tools/replay_support.h"
#include "tools/replay/keys.h"

namespace kvc::replay {
namespace {

std::unique_ptr<Bookkeeper> make_cache(int64_t block, int64_t num_pages) {
  return make_cache_bookkeeper(block, num_pages, 0);
}

Trace sample(const char* name) { return read_trace(reading(sample_path(name))); }

RunResult run_fake(const Trace& trace, int64_t pages, ReplayOptions options = {}) {
  return sweep(trace, options, {pages}, make_fake)[0];
}

TEST(ToolReplay, EveryPromptFindsTheBlocksThatOthersBroughtBefore) {
  const RunResult result = run_fake(sample("block_ids.jsonl"), kUnlimited);
  // By hand: full blocks in front of the last token that came before. 0; 0, 1; 0, 1, 2; none; 0, 1;
  // 0, 1, 2, 5, 6; 0, 1, 9 (the last token of the fourth block is left to be computed).
  EXPECT_EQ(result.hit_blocks, 0 + 2 + 3 + 0 + 2 + 5 + 3);
  EXPECT_EQ(result.hit_tokens, 15 * 512);
  EXPECT_EQ(result.prompt_tokens, 13196);
  EXPECT_DOUBLE_EQ(result.hit_rate(), 15 * 512 / 13196.0);
  EXPECT_EQ(result.requests, 7);
  EXPECT_EQ(result.refused, 0);
  EXPECT_EQ(result.stats.prefix_evicted, 0u);
  // 0, 1, 2, 5, 6, 9, 10, 11; the others name what is not full
  EXPECT_EQ(result.stats.prefix_stored, 8u);
}

TEST(ToolReplay, APromptLargerThanThePoolIsRefusedAndCountsNowhereElse) {
  const Trace trace = sample("block_ids.jsonl");
  const RunResult result = run_fake(trace, 5);  // requests three and six take six and seven pages
  EXPECT_EQ(result.refused, 2);
  EXPECT_EQ(result.served(), 5);
  EXPECT_EQ(result.prompt_tokens, 13196 - 2600 - 3100);
  EXPECT_EQ(run_fake(trace, 7).refused, 0);
  EXPECT_EQ(run_fake(trace, 6).refused, 1);
}

TEST(ToolReplay, OutputsTakePagesAndMayBeWhatMakesARequestTooLarge) {
  const Trace trace = sample("lengths.csv");
  ReplayOptions options;
  options.block = 64;
  EXPECT_EQ(run_fake(trace, 16, options).refused, 0);
  EXPECT_EQ(run_fake(trace, 16, options).output_tokens, 0);
  options.outputs = true;
  EXPECT_EQ(run_fake(trace, 16, options).output_tokens, 44 + 109 + 0 + 55 + 16);
  EXPECT_EQ(run_fake(trace, 8, options).refused, 2);  // 1024, and 512 + 16
  options.outputs = false;
  EXPECT_EQ(run_fake(trace, 8, options).refused, 1);
}

TEST(ToolReplay, PromptsOfWhichOnlyTheLengthIsKnownShareNothing) {
  ReplayOptions options;
  options.block = 16;
  const RunResult result = run_fake(sample("lengths.csv"), kUnlimited, options);
  EXPECT_EQ(result.hit_tokens, 0);
  EXPECT_EQ(result.stats.prefix_stored, 374u / 16 + 396 / 16 + 1024 / 16 + 0 + 512 / 16);
}

TEST(ToolReplay, OutputsWhoseTokensAreKnownAreFoundByTheNextTurn) {
  const Trace trace = sample("token_ids.jsonl");
  ReplayOptions options;
  options.block = 2;
  // Prompts of 6, 10, 5 and 13 tokens: the second finds the first's 6, the fourth the second's 10.
  EXPECT_EQ(run_fake(trace, kUnlimited, options).hit_tokens, 6 + 10);
  options.outputs = true;
  // With outputs the first leaves 9 tokens (4 blocks), the second 12.
  EXPECT_EQ(run_fake(trace, kUnlimited, options).hit_tokens, 8 + 12);
}

TEST(ToolReplay, WithoutAPrefixCacheNothingHitsAndNothingIsKept) {
  ReplayOptions options;
  options.policy = Policy::kNone;
  const RunResult result = run_fake(sample("block_ids.jsonl"), kUnlimited, options);
  EXPECT_EQ(result.hit_tokens, 0);
  EXPECT_EQ(result.stats.prefix_stored, 0u);
  EXPECT_EQ(result.stats.prefix_lookups, 0u);
  EXPECT_EQ(result.stats.pages_used, 0);
  EXPECT_EQ(result.prompt_tokens, 13196);
}

TEST(ToolReplay, BlocksOfIdsCanBeCutIntoSmallerOnesAndHitAtLeastAsMuch) {
  const Trace trace = sample("block_ids.jsonl");
  int64_t last = run_fake(trace, kUnlimited).hit_tokens;
  for (const int64_t block : {256, 64, 16, 1}) {
    ReplayOptions options;
    options.block = block;
    ASSERT_EQ(block_problem(trace, block), "");
    const RunResult result = run_fake(trace, kUnlimited, options);
    EXPECT_GE(result.hit_tokens, last) << block;
    last = result.hit_tokens;
  }
  // At a token a block, all but the last token of a prompt seen before: the ids name parts of a
  // block too.
  EXPECT_EQ(last, 0 + 1024 + 1536 + 0 + 1024 + 5 * 512 + 2047);
  for (const int64_t block : {1024, 384, 513}) {
    EXPECT_NE(block_problem(trace, block).find(std::to_string(block)), std::string::npos) << block;
  }
  EXPECT_EQ(block_problem(sample("token_ids.jsonl"), 1024), "");
  EXPECT_EQ(block_problem(sample("lengths.csv"), 384), "");
}

TEST(ToolReplay, TokensThatNoIdNamesAreLikeNoOthers) {
  const std::string line = "{\"input_length\": 700, \"hash_ids\": [1]}\n";
  const ScratchFile file(line + line + line);
  ReplayOptions options;
  options.block = 64;
  const RunResult result = run_fake(read_trace(reading(file.path())), kUnlimited, options);
  EXPECT_EQ(result.hit_tokens, 2 * 512);
  EXPECT_EQ(result.stats.prefix_stored, 8u + 3 * 2);  // parts of the named block differ, too
  EXPECT_EQ(result.stats.prefix_duplicates, 0u);
}

TEST(ToolReplay, RequestsThatStayRunningHoldTheirPages) {
  const Trace trace = sample("block_ids.jsonl");
  ReplayOptions options;
  options.concurrency = 2;
  const RunResult result = run_fake(trace, kUnlimited, options);
  EXPECT_EQ(result.hit_blocks, 15);  // published when computed, not when removed
  EXPECT_EQ(result.waited, 0);
  EXPECT_EQ(result.stats.num_seqs, 2);
  options.concurrency = 100;
  EXPECT_EQ(run_fake(trace, kUnlimited, options).stats.num_seqs, 7);
}

TEST(ToolReplay, AFullPoolRemovesTheOldestRequestsAndSaysForHowMany) {
  const Trace trace = sample("lengths.csv");
  ReplayOptions options;
  options.block = 64;
  options.concurrency = 100;
  const RunResult result =
      run_fake(trace, 20, options);  // 6 + 7 + 16 pages: the third waits for the first two
  EXPECT_EQ(result.waited, 2);       // 1 page more fits; 8 do not
  EXPECT_EQ(result.refused, 0);
  EXPECT_EQ(result.prompt_tokens, trace.prompt_tokens());
}

TEST(ToolReplay, ASmallerPoolHitsLessAndEvictsMore) {
  Trace trace;
  trace.kind = TraceKind::kBlockIds;
  trace.block_tokens = 512;
  uint64_t state = 1;
  for (int i = 0; i < 400; ++i) {  // a tree of prompts: the deeper, the rarer
    state = state * 6364136223846793005u + 1442695040888963407u;
    TraceRequest request;
    request.first_id = trace.block_ids.size();
    uint64_t id = 1;
    for (int depth = 0; depth < 6; ++depth) {
      id = id * 3 + (state >> (20 + 2 * depth) & 3) % 3;
      trace.block_ids.push_back(id);
    }
    request.num_ids = 6;
    request.prompt_tokens = 5 * 512 + 100;
    trace.requests.push_back(request);
  }
  const std::vector<RunResult> runs = sweep(trace, {}, {6, 20, 60, 150, kUnlimited}, make_fake);
  ASSERT_EQ(runs.size(), 5u);
  for (size_t i = 1; i < runs.size(); ++i) {
    EXPECT_GT(runs[i].hit_tokens, runs[i - 1].hit_tokens) << i;
    EXPECT_LT(runs[i].stats.prefix_evicted, runs[i - 1].stats.prefix_evicted) << i;
    EXPECT_LE(runs[i].peak_filled, runs[i].pool_pages) << i;
  }
  EXPECT_EQ(runs[4].stats.prefix_evicted, 0u);
  EXPECT_EQ(runs[4].pool_pages, 400 * 6);
  EXPECT_EQ(runs[0].pages, 6);
}

TEST(ToolReplay, SizesForASweepSuitTheTrace) {
  EXPECT_EQ(sizes_below(170899, 247),
            (std::vector<int64_t>{500, 1000, 2000, 5000, 10000, 20000, 50000, 100000}));
  EXPECT_EQ(sizes_below(1000, 1), (std::vector<int64_t>{1, 2, 5, 10, 20, 50, 100, 200, 500}));
  EXPECT_EQ(sizes_below(10000000, 1).size(), 10u);
  EXPECT_EQ(sizes_below(10000000, 1).back(), 5000000);
  EXPECT_TRUE(sizes_below(7, 7).empty());
  EXPECT_TRUE(sizes_below(1, 1).empty());
  const Trace trace = sample("block_ids.jsonl");
  EXPECT_EQ(pages_for_largest(trace, {}), 7);
  EXPECT_EQ(pages_for_all(trace, {}), 4 + 3 + 6 + 1 + 4 + 7 + 4);
  // All full blocks; parts of blocks are not kept
  EXPECT_EQ(run_fake(trace, kUnlimited).needed_pages(), 8);
}

TEST(ToolReplay, WindowsAddUpToTheWhole) {
  Trace trace;
  trace.kind = TraceKind::kLengths;
  for (int i = 0; i < 1013; ++i) trace.requests.push_back({100.0 + i, 10 + i % 50, 0, 0, 0});
  ReplayOptions options;
  options.block = 16;
  std::vector<double> progress;
  options.progress = [&](double fraction) { progress.push_back(fraction); };
  const RunResult result = run_fake(trace, 40, options);
  int64_t requests = 0, tokens = 0;
  uint64_t evicted = 0;
  for (const Window& window : result.windows) {
    requests += window.requests;
    tokens += window.prompt_tokens;
    evicted += window.evicted;
    EXPECT_LE(window.mean_us, window.largest_us * 1.000001);
  }
  EXPECT_EQ(requests, 1013);
  EXPECT_EQ(tokens, result.prompt_tokens);
  EXPECT_EQ(evicted, result.stats.prefix_evicted);
  EXPECT_GT(evicted, 0u);
  EXPECT_LE(result.windows.size(), 200u);
  EXPECT_TRUE(result.x_is_time);
  EXPECT_DOUBLE_EQ(result.windows.back().x, 1012.0);
  EXPECT_DOUBLE_EQ(progress.back(), 1.0);
  EXPECT_TRUE(std::is_sorted(progress.begin(), progress.end()));
}

TEST(ToolReplay, ARepeatedReplayBeginsAnewAndKeepsTheCheapest) {
  ReplayOptions options;
  options.repeat = 3;
  std::vector<double> progress;
  options.progress = [&](double fraction) { progress.push_back(fraction); };
  int made = 0;
  const std::vector<RunResult> runs =
      sweep(sample("block_ids.jsonl"), options, {7, kUnlimited}, [&](int64_t block, int64_t pages) {
        ++made;
        return make_fake(block, pages);
      });
  EXPECT_EQ(made, 6);
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(runs[1].hit_blocks, 15);
  EXPECT_DOUBLE_EQ(progress.back(), 1.0);
  EXPECT_TRUE(std::is_sorted(progress.begin(), progress.end()));
}

TEST(ToolReplay, TheBooksAreCheckedAtTheEnd) {
  const Trace trace = sample("block_ids.jsonl");
  FakeBookkeeper books(512, 100);
  replay(trace, {}, 100, 100, books);
  EXPECT_EQ(books.num_checks, 1);
}

TEST(ToolReplay, TheLibraryItselfCountsPagesOfPromptsWithoutAPrefixCache) {
  ReplayOptions options;
  options.policy = Policy::kNone;
  options.outputs = true;
  const std::vector<RunResult> runs =
      sweep(sample("block_ids.jsonl"), options, {7, kUnlimited}, make_cache);
  EXPECT_EQ(runs[0].refused, 0);
  EXPECT_EQ(runs[0].stats.pages_peak, 7);
  EXPECT_EQ(runs[0].stats.tokens_appended, 13196u + 910);
  EXPECT_EQ(runs[1].stats.pages_used, 0);
}

// Chats with a system prompt of their kind: each turn is the last one, an answer and a question.
std::string chats_of(uint64_t seed) {
  test::Random random(seed);
  const auto more = [&](std::vector<int64_t>* tokens, int64_t count) {
    for (int64_t i = 0; i < count; ++i) tokens->push_back(random.range(0, 30000));
  };
  std::vector<std::vector<int64_t>> systems(3), chats(24);
  for (auto& tokens : systems) more(&tokens, random.range(40, 300));
  for (auto& tokens : chats) tokens = random.pick(systems);
  std::string lines;
  for (int turn = 0; turn < 300; ++turn) {
    std::vector<int64_t>& chat = chats[static_cast<size_t>(random.range(0, 23))];
    if (chat.size() > 900) chat = random.pick(systems);
    more(&chat, random.range(5, 90));
    lines += "{\"tokens\": [";
    for (size_t i = 0; i < chat.size(); ++i)
      lines += (i == 0 ? "" : ", ") + std::to_string(chat[i]);
    lines += "]}\n";
    more(&chat, random.range(5, 60));
  }
  return lines;
}

// A hit inside a block holds the page that it copies until its forward has begun. In a pool of a
// few requests that can cost another block, so a single pool may come out a little worse.
TEST(ToolReplay, HitsInsideBlocksComputeNoMoreTokensUnderWindowsThanWholeBlocksDo) {
  for (const uint64_t seed : {1, 2, 3}) {
    const ScratchFile file(chats_of(seed));
    const Trace trace = read_trace(reading(file.path()));
    for (const int64_t window : {32, 100, 300}) {
      for (const int64_t block : {16, 32}) {
        ReplayOptions options;
        options.block = block;
        options.window = window;
        int64_t gained = 0;
        for (const int64_t pages : {200, 300, 500, 800}) {
          const auto hits = [&](bool whole_blocks) {
            options.whole_blocks = whole_blocks;
            const auto books = make_cache_bookkeeper(block, pages, window);
            const RunResult result = replay(trace, options, pages, pages, *books);
            EXPECT_LT(result.refused, 100);
            return result.hit_tokens;
          };
          const int64_t inside = hits(false), whole = hits(true);
          EXPECT_GE(inside, whole * 98 / 100) << "seed " << seed << ", window " << window
                                              << ", block " << block << ", " << pages << " pages";
          gained += inside - whole;
        }
        EXPECT_GE(gained, 0) << "seed " << seed << ", window " << window << ", block " << block;
      }
    }
  }
}

TEST(ToolReplayKeys, DifferentBlocksHaveDifferentKeysInAllTheirParts) {
  std::set<std::array<uint8_t, KVC_HASH_BYTES>> keys;
  std::set<std::array<uint8_t, 4>> fronts, backs;
  size_t count = 0;
  for (const KeyDomain domain : {KeyDomain::kBlockId, KeyDomain::kUnique}) {
    for (uint64_t number = 0; number < 100; ++number) {
      for (uint64_t part = 0; part < 32; ++part) {
        std::array<uint8_t, KVC_HASH_BYTES> key;
        write_block_key(domain, number << (number % 3 * 20), part, key.data());
        keys.insert(key);
        fronts.insert({key[8], key[9], key[10], key[11]});
        backs.insert({key[28], key[29], key[30], key[31]});
        ++count;
      }
    }
  }
  EXPECT_EQ(keys.size(), count);
  EXPECT_GE(fronts.size(), count / 2 - 5);  // the domain shows behind them
  EXPECT_GE(backs.size(), count - 10);
}

TEST(ToolReplayKeys, AKeyIsTheSameEverywhere) {
  std::array<uint8_t, KVC_HASH_BYTES> key;
  write_block_key(KeyDomain::kBlockId, 0, 0, key.data());
  // SplitMix64 of 0 begins with 0xe220a8397b1dcdaf.
  EXPECT_EQ(key[0], 0xaf);
  EXPECT_EQ(key[7], 0xe2);
}

TEST(ToolReplayCost, PercentilesAreValuesThatWereMeasured) {
  std::vector<float> values(200);
  std::iota(values.begin(), values.end(), 1.0f);
  std::reverse(values.begin(), values.end());
  const Cost cost = cost_of(&values);
  EXPECT_DOUBLE_EQ(cost.mean, 100.5);
  EXPECT_DOUBLE_EQ(cost.p50, 100);
  EXPECT_DOUBLE_EQ(cost.p99, 198);
  EXPECT_DOUBLE_EQ(cost.largest, 200);
  std::vector<float> one = {3}, none;
  EXPECT_DOUBLE_EQ(cost_of(&one).p99, 3);
  EXPECT_DOUBLE_EQ(cost_of(&none).mean, 0);
}

}  // namespace
}  // namespace kvc::replay
