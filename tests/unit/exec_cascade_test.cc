// Which sequences share a prefix, from their page tables alone.
#include <gtest/gtest.h>
#include <pthread.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <tuple>
#include <vector>

#include "src/exec/cascade.h"
#include "tests/support/environment.h"

namespace kvc {
namespace {

using test::rounds;
// 32 query heads over 8 kv heads of 128 elements in 16 bit, pages of 16 tokens.
constexpr CascadeShape kShape = {16, 32, 8, 128, 128, 512};
constexpr CascadeCosts kBf16 = {.tile_flops_per_second = 160e9};

struct Tables {
  std::vector<std::vector<int32_t>> pages;
  std::vector<int64_t> keys;
  int32_t next_page = 0;

  // Whole pages of its own behind the pages of `prefix`.
  void add(const std::vector<int32_t>& prefix, int64_t own_pages) {
    pages.push_back(prefix);
    for (int64_t i = 0; i < own_pages; ++i) pages.back().push_back(next_page++);
    keys.push_back(static_cast<int64_t>(pages.back().size()) * 16);
  }
  std::vector<int32_t> fresh(int64_t count) {
    std::vector<int32_t> taken(static_cast<size_t>(count));
    std::iota(taken.begin(), taken.end(), next_page);
    next_page += static_cast<int32_t>(count);
    return taken;
  }
  std::vector<CommonPrefix> find(const CascadeCosts& costs = kBf16, int64_t num_rows = 1) const {
    std::vector<PrefixCandidate> candidates;
    for (size_t i = 0; i < pages.size(); ++i)
      candidates.push_back({static_cast<int32_t>(i), pages[i].data(), keys[i], num_rows});
    std::vector<CommonPrefix> found;
    find_shared_prefixes(candidates.data(), static_cast<int64_t>(candidates.size()), kShape, costs,
                         &found);
    return found;
  }
};

std::set<int32_t> members(const CommonPrefix& prefix) {
  return {prefix.sequences.begin(), prefix.sequences.end()};
}

TEST(Cascade, FindsNothingInABatchWithoutCommonPages) {
  Tables tables;
  for (int i = 0; i < 64; ++i) tables.add({}, 100);
  EXPECT_TRUE(tables.find().empty());
}

TEST(Cascade, FindsACommonPrefixWhateverTheOrderOfTheBatch) {
  Tables tables;
  const std::vector<int32_t> first = tables.fresh(256), second = tables.fresh(512);
  for (int i = 0; i < 30; ++i) {
    if (i % 3 == 0) {
      tables.add({}, 50);
    } else {
      tables.add(i % 3 == 1 ? first : second, 1 + i);
    }
  }
  const std::vector<CommonPrefix> found = tables.find();
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].key_begin, 0);
  EXPECT_EQ(found[0].key_end, 256 * 16);
  EXPECT_EQ(found[1].key_end, 512 * 16);
  std::set<int32_t> ones, twos;
  for (int32_t i = 0; i < 30; ++i) {
    if (i % 3 == 1) ones.insert(i);
    if (i % 3 == 2) twos.insert(i);
  }
  EXPECT_EQ(members(found[0]), ones);
  EXPECT_EQ(members(found[1]), twos);
}

TEST(Cascade, SharesAPrefixInsideAPrefix) {
  Tables tables;
  const std::vector<int32_t> system = tables.fresh(128);
  std::vector<int32_t> documents[2];
  for (std::vector<int32_t>& document : documents) {
    document = system;
    const std::vector<int32_t> own = tables.fresh(300);
    document.insert(document.end(), own.begin(), own.end());
  }
  for (int i = 0; i < 32; ++i) tables.add(documents[i % 2], 4);
  const std::vector<CommonPrefix> found = tables.find();
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[0].sequences.size(), 32u);
  EXPECT_EQ(found[0].key_end, 128 * 16);
  for (size_t inner : {size_t{1}, size_t{2}}) {
    EXPECT_EQ(found[inner].sequences.size(), 16u);
    EXPECT_EQ(found[inner].key_begin, 128 * 16);
    EXPECT_EQ(found[inner].key_end, 428 * 16 / 64 * 64);
    // The planner wants the members of the inner one to follow each other in the outer one.
    const auto at = std::search(found[0].sequences.begin(), found[0].sequences.end(),
                                found[inner].sequences.begin(), found[inner].sequences.end());
    EXPECT_NE(at, found[0].sequences.end());
  }
}

TEST(Cascade, LeavesAloneWhatIsTooLittleToPay) {
  Tables tables;
  const std::vector<int32_t> short_prefix = tables.fresh(4);
  for (int i = 0; i < 2; ++i) tables.add(short_prefix, 300);
  EXPECT_TRUE(tables.find().empty()) << "64 keys of two sequences";
  Tables slow;
  const std::vector<int32_t> prefix = slow.fresh(512);
  for (int i = 0; i < 16; ++i) slow.add(prefix, 10);
  EXPECT_FALSE(slow.find().empty());
  EXPECT_TRUE(slow.find({.tile_flops_per_second = 1e9}).empty())
      << "arithmetic that costs more than reading";
}

TEST(Cascade, NeverSharesAKeyThatSomeMemberDoesNotSee) {
  Tables tables;
  const std::vector<int32_t> prefix = tables.fresh(256);
  for (int i = 0; i < 8; ++i) tables.add(prefix, 5);
  tables.keys[3] = 200 * 16 + 7;  // ends inside a page that it shares with the others
  const std::vector<CommonPrefix> found = tables.find();
  ASSERT_FALSE(found.empty());
  EXPECT_EQ(found[0].key_end, (200 * 16 + 7) / 64 * 64);
  for (const CommonPrefix& prefix_found : found) {
    for (const int32_t member : prefix_found.sequences)
      EXPECT_LE(prefix_found.key_end, tables.keys[static_cast<size_t>(member)]);
  }
}

// Every key is worth sharing, or, with a limit, so many keys at once.
class SomePrice final : public SharingPrice {
 public:
  explicit SomePrice(int64_t least_keys) : least_keys_(least_keys) {}
  MemberWork work(const PrefixCandidate& member) const override {
    return {static_cast<double>(member.num_rows), 1};
  }
  bool pays(const PrefixMembers& members, int64_t num_keys) const override {
    EXPECT_DOUBLE_EQ(members.work[0], static_cast<double>(members.num_rows));
    EXPECT_DOUBLE_EQ(members.work[1], static_cast<double>(members.count));
    ++asked;
    return num_keys * members.count >= least_keys_;
  }
  mutable int64_t asked = 0;

 private:
  int64_t least_keys_;
};

std::vector<PrefixCandidate> candidates_of(const Tables& tables) {
  std::vector<PrefixCandidate> candidates;
  for (size_t i = 0; i < tables.pages.size(); ++i) {
    candidates.push_back({static_cast<int32_t>(i), tables.pages[i].data(), tables.keys[i],
                          1 + static_cast<int64_t>(i % 3)});
  }
  return candidates;
}

// The search written down as it is meant: every set of sequences that go on together, from the
// first page on.
struct SlowSearch {
  const std::vector<PrefixCandidate>& all;
  const PrefixGrid& grid;
  const SharingPrice& price;
  std::vector<std::tuple<int64_t, int64_t, std::set<int32_t>>> found;

  int64_t size(const PrefixCandidate& one) const {
    return (one.num_keys + grid.page_size - 1) / grid.page_size;
  }
  void search(const std::vector<const PrefixCandidate*>& members, int64_t depth, int64_t key_begin,
              int level) {
    std::map<int32_t, std::vector<const PrefixCandidate*>> parts;
    for (const PrefixCandidate* one : members) {
      if (depth < size(*one)) parts[one->pages[depth]].push_back(one);
    }
    if (depth > 0 && (parts.size() != 1 || parts.begin()->second.size() != members.size())) {
      int64_t keys = depth * grid.page_size;
      PrefixMembers sums;
      std::set<int32_t> ids;
      for (const PrefixCandidate* one : members) {
        keys = std::min(keys, one->num_keys);
        ++sums.count, sums.num_rows += one->num_rows;
        sums.work = {sums.work[0] + static_cast<double>(one->num_rows), sums.work[1] + 1};
        ids.insert(one->sequence);
      }
      const int64_t key_end = keys / grid.key_multiple * grid.key_multiple;
      if (key_end > key_begin && price.pays(sums, key_end - key_begin)) {
        found.emplace_back(key_begin, key_end, ids);
        key_begin = key_end;
        ++level;
      }
    }
    for (const auto& [page, part] : parts) {
      if (part.size() > 1 && level < kPrefixLevels) search(part, depth + 1, key_begin, level);
    }
  }
};

TEST(Cascade, FindsWhatALookAtEverySetFinds) {
  for (unsigned seed = 0; seed < rounds(300); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    Tables tables;
    tables.add({}, 1 + random() % 30);
    while (tables.pages.size() < 2 + seed % 25) {
      const std::vector<int32_t>& parent = tables.pages[random() % tables.pages.size()];
      const auto keep = static_cast<ptrdiff_t>(random() % (parent.size() + 1));
      tables.add({parent.begin(), parent.begin() + keep}, random() % 8 + (keep == 0));
      if (random() % 4 == 0) tables.keys.back() -= static_cast<int64_t>(random() % 16);
    }
    const std::vector<PrefixCandidate> all = candidates_of(tables);
    const PrefixGrid grid{16, 64};
    const SomePrice price(int64_t{1} << random() % 12);
    SlowSearch slow{all, grid, price, {}};
    std::vector<const PrefixCandidate*> long_enough;
    for (const PrefixCandidate& one : all) {
      if (one.num_keys >= 64) long_enough.push_back(&one);
    }
    slow.search(long_enough, 0, 0, 0);
    std::vector<CommonPrefix> found;
    find_shared_prefixes(all, grid, price, &found);
    std::vector<std::tuple<int64_t, int64_t, std::set<int32_t>>> fast;
    for (const CommonPrefix& prefix : found)
      fast.emplace_back(prefix.key_begin, prefix.key_end, members(prefix));
    EXPECT_EQ(fast, slow.found);
  }
}

// Every sequence is forked off the end of the one before, a page later.
Tables nested_forks(int64_t count) {
  Tables tables;
  const std::vector<int32_t> trunk = tables.fresh(count);
  for (int64_t i = 1; i <= count; ++i) tables.add({trunk.begin(), trunk.begin() + i}, 1);
  return tables;
}

TEST(Cascade, NestedForksCostAsMuchAsTheirTablesAreLong) {
  for (const int64_t count : {1000, 4000}) {
    const Tables tables = nested_forks(count);
    const std::vector<PrefixCandidate> all = candidates_of(tables);
    int64_t num_pages = 0;
    for (const std::vector<int32_t>& pages : tables.pages)
      num_pages += static_cast<int64_t>(pages.size());
    const SomePrice never(INT64_MAX);
    std::vector<CommonPrefix> found;
    const PrefixSearchWork work = find_shared_prefixes(all, {16, 16}, never, &found);
    EXPECT_TRUE(found.empty());
    EXPECT_EQ(work.nodes, count - 1);
    EXPECT_LE(never.asked, count - 1) << "a price per fork, not per fork and member";
    EXPECT_LE(work.pages_compared, 2 * num_pages);
  }
}

TEST(Cascade, BatchesWithoutCommonPagesCompareOnePageADecision) {
  Tables tables;
  for (int i = 0; i < 1024; ++i) tables.add({}, 100);
  std::vector<CommonPrefix> found;
  const PrefixSearchWork work =
      find_shared_prefixes(candidates_of(tables), {16, 64}, SomePrice(1), &found);
  EXPECT_LE(work.pages_compared, 1024 * 10);
  EXPECT_EQ(work.nodes, 0);
}

TEST(Cascade, NestedForksFitIntoASmallStack) {
  const Tables tables = nested_forks(4000);
  const std::vector<PrefixCandidate> all = candidates_of(tables);
  struct Job {
    const std::vector<PrefixCandidate>& all;
    std::vector<CommonPrefix> found;
  } job{all, {}};
  pthread_attr_t attributes;
  ASSERT_EQ(pthread_attr_init(&attributes), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, 128 << 10), 0);
  pthread_t thread;
  ASSERT_EQ(pthread_create(
                &thread, &attributes,
                [](void* data) -> void* {
                  auto& mine = *static_cast<Job*>(data);
                  // Only the innermost forks would pay, so that all levels are looked at.
                  find_shared_prefixes(mine.all, {16, 16}, SomePrice(INT64_MAX), &mine.found);
                  return nullptr;
                },
                &job),
            0);
  ASSERT_EQ(pthread_join(thread, nullptr), 0);
  pthread_attr_destroy(&attributes);
  EXPECT_TRUE(job.found.empty());
}

TEST(Cascade, KeepsToCommonPagesOnRandomTrees) {
  for (unsigned seed = 0; seed < rounds(200); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    Tables tables;
    tables.add({}, 1 + random() % 200);
    const size_t count = 2 + random() % 30;
    while (tables.pages.size() < count) {  // forks of one another at random places
      const std::vector<int32_t>& parent = tables.pages[random() % tables.pages.size()];
      const auto keep = static_cast<ptrdiff_t>(random() % (parent.size() + 1));
      tables.add({parent.begin(), parent.begin() + keep}, 1 + random() % 100);
    }
    std::vector<int64_t> levels(count, 0), covered(count, 0);
    for (const CommonPrefix& prefix :
         tables.find({.tile_flops_per_second = 1e15, .smallest_gain = 0})) {
      ASSERT_GE(prefix.sequences.size(), 2u);
      ASSERT_LT(prefix.key_begin, prefix.key_end);
      ASSERT_EQ(prefix.key_end % 64, 0);
      const auto pages = (prefix.key_end + 15) / 16;
      const std::vector<int32_t>& first = tables.pages[static_cast<size_t>(prefix.sequences[0])];
      for (const int32_t member : prefix.sequences) {
        const auto index = static_cast<size_t>(member);
        ASSERT_LE(prefix.key_end, tables.keys[index]);
        ASSERT_TRUE(std::equal(first.begin(), first.begin() + pages, tables.pages[index].begin()));
        ASSERT_EQ(prefix.key_begin, covered[index])
            << "an inner prefix begins where the outer one ends";
        covered[index] = prefix.key_end;
        ASSERT_LE(++levels[index], kPrefixLevels);
      }
    }
  }
}

}  // namespace
}  // namespace kvc
