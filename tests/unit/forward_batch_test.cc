#include <gtest/gtest.h>

#include "src/base/error.h"
#include "src/forward/batch.h"
#include "src/plan/plan.h"

namespace kvc {
namespace {

// A cache's bookkeeping without memory: page size 4.
struct Books {
  explicit Books(int64_t num_pages) : plan(make(num_pages)), allocator(num_pages), sequences(&allocator, 4) {}

  static Plan make(int64_t num_pages) {
    Spec spec;
    spec.page_size = 4;
    spec.num_layers = spec.layer_end = 1;
    spec.layers.push_back({1, 1, 16, 16, kernels::DType::kF32, kernels::DType::kF32, -1});
    spec.num_pages = num_pages;
    spec.storage = KVC_STORAGE_NONE;
    return Plan(spec);
  }

  void begin(std::vector<kvc_seq> ids, std::vector<int64_t> lengths) {
    batch.begin({ids.size(), ids.data(), lengths.data()}, plan, sequences, allocator);
  }
  void append(kvc_seq id, int64_t length) {
    begin({id}, {length});
    batch.commit(sequences, allocator);
  }

  Plan plan;
  PageAllocator allocator;
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
  books.batch.commit(books.sequences, books.allocator);
  EXPECT_EQ(books.allocator.num_used(), 3);
  books.begin({1}, {1});  // alone on its page now
  EXPECT_TRUE(books.batch.copies().empty());
  books.batch.commit(books.sequences, books.allocator);
  EXPECT_EQ(books.allocator.num_used(), 3);
}

TEST(Batch, LetsTheLongestHolderKeepThePageWhenAllHoldersAppendAtOnce) {
  Books books(10);
  books.sequences.add(1);
  books.append(1, 7);
  books.sequences.fork(1, 2, 5);
  books.sequences.fork(1, 3, 6);
  const PageId shared = books.sequences.get(1).pages.back();
  books.begin({3, 1, 2}, {1, 1, 1});
  EXPECT_EQ(books.batch.copies().size(), 2u);
  EXPECT_EQ(books.sequences.get(1).pages.back(), shared);
  EXPECT_NE(books.sequences.get(2).pages.back(), shared);
  EXPECT_NE(books.sequences.get(3).pages.back(), shared);
  books.batch.rollback(books.allocator);
  for (const kvc_seq id : {1, 2, 3}) EXPECT_EQ(books.sequences.get(id).pages.back(), shared);
  EXPECT_EQ(books.allocator.num_used(), 2);
}

TEST(Batch, KeepsTheOldPageForAnAbortEvenWhenItsOtherHolderIsRemoved) {
  Books books(10);
  books.sequences.add(1);
  books.append(1, 6);
  books.sequences.fork(1, 2, -1);
  const PageId shared = books.sequences.get(1).pages.back();
  books.begin({1}, {1});
  books.sequences.remove(2);
  EXPECT_EQ(books.allocator.refs(shared), 1);
  books.batch.rollback(books.allocator);
  EXPECT_EQ(books.sequences.get(1).pages.back(), shared);
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
  EXPECT_EQ(books.sequences.get(1).pages.size(), 1u);
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
    EXPECT_LE(books.batch.step_words().size() * sizeof(int32_t), 32 * ids.size());
    books.batch.commit(books.sequences, books.allocator);
  }
}

TEST(Batch, SendsATableAgainFromTheFirstEntryThatChanged) {
  Books books(100);
  books.sequences.add(1);
  books.append(1, 40);
  books.sequences.pop(1, 10);  // 30 tokens: 8 of 10 pages left
  books.begin({1}, {6});       // 36 tokens: 9 pages, the last is new
  const std::vector<int32_t> words = books.batch.step_words();
  ASSERT_EQ(words.size(), 2u + 5u + 1u);
  EXPECT_EQ(words[2 + 3], 8);
  EXPECT_EQ(words[2 + 4], 1);
  EXPECT_EQ(words.back(), books.sequences.get(1).pages.back());
  books.batch.rollback(books.allocator);
}

}  // namespace
}  // namespace kvc
