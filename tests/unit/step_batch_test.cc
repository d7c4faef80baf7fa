#include <gtest/gtest.h>

#include <random>
#include <string>

#include "kernels/cuda/step.h"
#include "src/base/error.h"
#include "src/plan/plan.h"
#include "src/step/batch.h"
#include "tests/unit/spec_support.h"

namespace kvc {
namespace {

// A cache's bookkeeping without memory: page size 4.
struct Books {
  explicit Books(int64_t num_pages, std::vector<LayerSpec> layers = {attention_layer(1, 1, 16, 16)},
                 bool has_memory = false, int64_t num_state_slots = 0)
      : plan(std::make_shared<Plan>(make(num_pages, std::move(layers), num_state_slots))),
        allocator(num_pages),
        states(plan, &allocator, 0, plan->spec().num_state_slots),
        index(*plan, &allocator, &states, nullptr, 0),
        publisher(plan->spec(), &index, &allocator, nullptr),
        sequences(&allocator, &states, nullptr, nullptr, plan->spec(), index.block_tokens()),
        batch(has_memory) {}

  static Spec make(int64_t num_pages, std::vector<LayerSpec> layers, int64_t num_state_slots) {
    Spec spec = spec_of(std::move(layers), 4);
    spec.num_pages = num_pages;
    spec.storage = KVC_STORAGE_NONE;
    spec.state_stride = spec.has_states() ? 4 : 0;
    spec.num_state_slots = num_state_slots;
    return spec;
  }

  void begin(std::vector<kvc_seq> ids, std::vector<int64_t> lengths,
             const int32_t* parents = nullptr) {
    const BatchRequest request{ids.size(), ids.data(), lengths.data(), parents};
    batch.prepare(request, *plan, sequences, allocator, states, index);
    batch.begin(request, *plan, sequences, allocator, states, index, kOwnStream);
    EXPECT_EQ(batch.num_delta_words(), static_cast<int64_t>(batch.step_delta().size()));
  }
  void commit() {
    batch.commit(sequences, allocator, states, plan->spec(), publisher,
                 {.states = states.is_used(), .rows = true, .publishes = true}, kOwnStream);
  }
  void rollback() { batch.rollback(sequences, allocator, states); }
  void append(kvc_seq id, int64_t length) {
    begin({id}, {length});
    commit();
  }
  std::vector<PageId> pages(kvc_seq id, size_t group = 0) {
    const PageList& list = sequences.get(id).tables[group].pages;
    std::vector<PageId> pages;
    list.append_to(0, list.size(), &pages);
    return pages;
  }

  std::shared_ptr<Plan> plan;
  PageAllocator allocator;
  StatePool states;
  PrefixIndex index;
  Publisher publisher;
  SequenceTable sequences;
  Batch batch;
};

TEST(Batch, CopiesASharedPartialPageForTheFirstWhoAppends) {
  Books books(10);
  books.sequences.add(1);
  books.append(1, 6);
  books.sequences.fork(1, 2, -1);
  EXPECT_EQ(books.allocator.num_used(), 2);
  books.begin({2}, {1});
  ASSERT_EQ(books.batch.copies().size(), 1u);
  books.commit();
  EXPECT_EQ(books.allocator.num_used(), 3);
  books.begin({1}, {1});  // alone on its page now
  EXPECT_TRUE(books.batch.copies().empty());
  books.commit();
  EXPECT_EQ(books.allocator.num_used(), 3);
}

TEST(Batch, LetsTheLongestHolderKeepThePageWhenAllHoldersAppendAtOnce) {
  Books books(10);
  books.sequences.add(1);
  books.append(1, 7);
  books.sequences.fork(1, 2, 5);
  books.sequences.fork(1, 3, 6);
  const PageId shared = books.pages(1).back();
  books.begin({3, 1, 2}, {1, 1, 1});
  EXPECT_EQ(books.batch.copies().size(), 2u);
  EXPECT_EQ(books.pages(1).back(), shared);
  EXPECT_NE(books.pages(2).back(), shared);
  EXPECT_NE(books.pages(3).back(), shared);
  books.rollback();
  for (const kvc_seq id : {1, 2, 3}) EXPECT_EQ(books.pages(id).back(), shared);
  EXPECT_EQ(books.allocator.num_used(), 2);
}

TEST(Batch, KeepsTheOldPageForAnAbortEvenWhenItsOtherHolderIsRemoved) {
  Books books(10);
  books.sequences.add(1);
  books.append(1, 6);
  books.sequences.fork(1, 2, -1);
  const PageId shared = books.pages(1).back();
  books.begin({1}, {1});
  books.sequences.remove(2);
  EXPECT_EQ(books.allocator.refs(shared), 1);
  books.rollback();
  EXPECT_EQ(books.pages(1).back(), shared);
  EXPECT_EQ(books.allocator.num_used(), 2);
}

TEST(Batch, SaysHowManyPagesAreMissingAndChangesNothing) {
  Books books(3);
  books.sequences.add(1);
  books.sequences.add(2);
  books.append(1, 4);
  try {
    books.begin({2, 1}, {8, 5});
    FAIL() << "5 pages of 3";
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), KVC_E_NO_PAGES);
    EXPECT_EQ(error.detail(), 2);
  }
  EXPECT_EQ(books.allocator.num_used(), 1);
  EXPECT_EQ(books.pages(1).size(), 1u);
  EXPECT_FALSE(books.sequences.get(1).in_forward());
}

TEST(Batch, SendsAtMost32BytesPerSequenceInASteadyDecode) {
  Books books(4000);
  std::vector<kvc_seq> ids;
  std::vector<int64_t> lengths;
  for (kvc_seq id = 0; id < 64; ++id) {
    books.sequences.add(id);
    books.append(id, 5 + id);
    ids.push_back(id);
    lengths.push_back(1);
  }
  for (int step = 0; step < 40; ++step) {
    books.begin(ids, lengths);
    EXPECT_LE(books.batch.step_delta().size() * sizeof(int32_t), 32 * ids.size());
    books.commit();
  }
}

TEST(Batch, SendsATableAgainFromTheFirstEntryThatChanged) {
  Books books(100);
  books.sequences.add(1);
  books.append(1, 40);
  books.sequences.pop(1, 10);  // 30 tokens: 8 of 10 pages left
  books.begin({1}, {6});       // 36 tokens: 9 pages, the last is new
  const std::vector<int32_t> words = books.batch.step_delta();
  ASSERT_EQ(words.size(), 4u + 3u + 4u + 1u);
  EXPECT_EQ(words[3], 1) << "one change";
  EXPECT_EQ(words[4 + 3], 0) << "a table of group 0";
  EXPECT_EQ(words[4 + 4], 0) << "of the first sequence";
  EXPECT_EQ(words[4 + 5], 8);
  EXPECT_EQ(words[4 + 6], 1);
  EXPECT_EQ(words.back(), books.pages(1).back());
  books.rollback();
}

TEST(Batch, SendsCopiesInFrontOfOtherChangesAndSaysHowManyThereAre) {
  Books books(40, {attention_layer(1, 1, 16, 16), window_layer(1, 1, 16, 64)});
  books.sequences.add(1);
  books.append(1, 6);
  books.sequences.fork(1, 2, -1);
  books.sequences.fork(1, 3, -1);
  books.begin({2, 3}, {4, 3});
  const std::vector<PageCopy> copies = books.batch.copies();
  ASSERT_EQ(copies.size(), 4u) << "a page of each group for each";
  const std::vector<int32_t> words = books.batch.step_delta();
  EXPECT_EQ(words[2], 2 << cuda::kStepCopiesShift) << "a change for each group, and no columns";
  const size_t changes = 4 + 3 * 2, data = changes + 4 * static_cast<size_t>(words[3]);
  ASSERT_GT(words[3], 2) << "tables change, too";
  size_t pair = 0;
  for (size_t i = 0; i < static_cast<size_t>(words[3]); ++i) {
    const auto kind = static_cast<cuda::ChangeKind>(words[changes + 4 * i] >> 16);
    EXPECT_EQ(kind == cuda::ChangeKind::kCopy, i < 2) << "change " << i;
    if (i >= 2) continue;
    const int32_t group = words[changes + 4 * i] & 0xffff;
    EXPECT_EQ(group, static_cast<int32_t>(i));
    EXPECT_EQ(words[changes + 4 * i + 3], 2);
    for (const PageCopy& copy : copies) {
      if (copy.group != group) continue;
      EXPECT_EQ(words[data + 2 * pair], copy.from);
      EXPECT_EQ(words[data + 2 * pair + 1], copy.to);
      ++pair;
    }
  }
  books.rollback();
}

// begin() above compares the two.
TEST(Batch, KnowsBeforeItTakesAnythingHowManyWordsItWillSend) {
  for (uint32_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::minstd_rand random(seed);
    std::vector<LayerSpec> layers{attention_layer(1, 1, 16, 16), window_layer(1, 1, 16, 8)};
    if (seed % 3 == 0) layers.push_back(state_layer({3}));
    Books books(400, layers, seed % 5 != 0);
    for (kvc_seq id = 0; id < 4; ++id) {
      books.sequences.add(id);
      books.append(id, 1 + random() % 30);
    }
    if (seed % 4 == 0) books.sequences.get(1).segments.push_back({0, 7});
    if (seed % 7 == 0) books.sequences.get(0).window = 200;
    for (int step = 0; step < 12; ++step) {
      if (random() % 3 == 0) {
        books.sequences.remove(2);
        books.sequences.fork(static_cast<kvc_seq>(random() % 2), 2, -1);
      }
      std::vector<kvc_seq> ids{0, 1, 2, 3};
      ids.resize(1 + random() % 4);
      std::vector<int64_t> lengths;
      for (size_t i = 0; i < ids.size(); ++i) lengths.push_back(1 + random() % 6);
      books.begin(ids, lengths);
      if (random() % 3 == 0) {
        books.rollback();
      } else {
        books.commit();
      }
    }
    if (seed % 3 == 0) continue;  // states have no trees
    const int32_t parents[] = {-1, 0, 0};
    books.begin({3}, {3}, parents);
    books.commit();
    books.begin({3}, {3}, parents);  // and grows by nodes of its own
    books.rollback();
  }
}

TEST(Batch, ChangesNothingWhenItIsPreparedAndDiscarded) {
  // The next step has to take back the checkpoint of 4 tokens.
  Books books(40, {attention_layer(1, 1, 16, 16), state_layer({3})}, false, 3);
  books.sequences.add(1);
  for (const int64_t length : {4, 4, 1}) books.append(1, length);
  const int64_t pages = books.allocator.num_used(), states = books.states.num_used();
  ASSERT_EQ(states, 3);
  const auto nearest = [&](int64_t position) {
    return books.sequences.resume_points().around(books.sequences.get(1), position).below;
  };
  ASSERT_EQ(nearest(5), 4);
  const kvc_seq id = 1;
  const int64_t length = 9;
  const BatchRequest request{1, &id, &length};
  books.batch.prepare(request, *books.plan, books.sequences, books.allocator, books.states,
                      books.index);
  EXPECT_EQ(books.batch.num_rows(), 9);
  EXPECT_FALSE(books.sequences.get(1).in_forward());
  books.batch.discard();
  EXPECT_TRUE(books.batch.entries().empty());
  EXPECT_EQ(books.batch.num_rows(), 0);
  EXPECT_EQ(books.allocator.num_used(), pages);
  EXPECT_EQ(books.states.num_used(), states);
  EXPECT_EQ(nearest(5), 4);
  books.append(1, 9);
  EXPECT_NE(nearest(5), 4);
}

TEST(Batch, KeepsNothingOfARefusedRequest) {
  Books books(3);
  books.sequences.add(1);
  EXPECT_THROW(books.begin({1}, {100}), Error);
  EXPECT_THROW(books.begin({1, 7}, {1, 1}), Error);
  EXPECT_TRUE(books.batch.entries().empty());
}

TEST(Batch, ReleasesWhatAWindowHidesWhenTheStepEndsAndNotBefore) {
  Books books(40, {window_layer(1, 1, 16, 8), attention_layer(1, 1, 16, 16)});
  books.sequences.add(1);
  books.append(1, 20);  // the next query, at 20, sees keys from 13 on: pages 3 and 4 of its table
  EXPECT_EQ(books.pages(1, 0), (std::vector<PageId>{kNoPage, kNoPage, kNoPage, books.pages(1, 0)[3],
                                                    books.pages(1, 0)[4]}));
  EXPECT_EQ(books.pages(1, 1).size(), 5u);
  EXPECT_EQ(books.allocator.num_used(), 2 + 5);
  books.begin({1}, {9});
  EXPECT_NE(books.pages(1, 0)[3], kNoPage);
  books.rollback();
  EXPECT_EQ(books.allocator.num_used(), 2 + 5);
  books.append(1, 9);  // 29 tokens: from 22 on, pages 5 to 7
  EXPECT_EQ(books.sequences.get(1).tables[0].pages.num_held(), 3);
}

TEST(Batch, GivesEveryStepAStateSlotOfItsOwnAndFreesTheOldOne) {
  Books books(40, {attention_layer(1, 1, 16, 16), state_layer({3})});
  books.sequences.add(1);
  books.append(1, 3);
  EXPECT_EQ(books.states.num_used(), 1);
  books.begin({1}, {1});
  EXPECT_EQ(books.states.num_used(), 2);
  books.rollback();
  EXPECT_EQ(books.states.num_used(), 1);
  books.append(1, 1);  // length 4: the state is a checkpoint too
  books.append(1, 1);
  EXPECT_EQ(books.states.num_used(), 2);
  books.sequences.pop(1, 1);
  EXPECT_EQ(books.states.num_used(), 1);
  EXPECT_THROW(books.sequences.pop(1, 1), Error) << "no state of 3 tokens is kept";
}

}  // namespace
}  // namespace kvc
