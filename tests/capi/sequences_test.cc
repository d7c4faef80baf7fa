// kvcache.h, section "Sequences".
#include "tests/capi/fixture.h"

namespace kvc::test {
namespace {

class Sequences : public testing::Test {
 protected:
  kvc_cache* get() const { return cache_.get(); }
  int64_t length(kvc_seq seq) {
    int64_t length = -1;
    EXPECT_EQ(kvc_seq_length(get(), seq, &length, nullptr), KVC_OK);
    return length;
  }
  Model model_;
  Cache cache_{model_.config};
};

TEST_F(Sequences, AreAddedAndRemovedInAnyOrder) {
  for (const kvc_seq seq : {kvc_seq{7}, kvc_seq{0}, kvc_seq{INT64_MAX}, kvc_seq{3}}) {
    expect_ok([&](kvc_error* err) { return kvc_seq_add(get(), seq, err); });
  }
  kvc_seq ids[4];
  size_t count = 4;
  expect_ok([&](kvc_error* err) { return kvc_seq_list(get(), ids, &count, err); });
  EXPECT_EQ(count, 4u);
  EXPECT_EQ(std::vector<kvc_seq>(ids, ids + 4), (std::vector<kvc_seq>{0, 3, 7, INT64_MAX}))
      << "ascending";
  expect_ok([&](kvc_error* err) { return kvc_seq_remove(get(), 7, err); });
  expect_ok([&](kvc_error* err) { return kvc_seq_add(get(), 7, err); });
}

TEST_F(Sequences, RefuseBadIds) {
  cache_.fill({4}, {6});
  expect_refused(cache_, KVC_E_INVALID_ARGUMENT, {"seq", "-1"},
                 [&](kvc_error* err) { return kvc_seq_add(get(), -1, err); });
  const kvc_error taken =
      expect_refused(cache_, KVC_E_ALREADY_EXISTS, {"seq", "4"},
                     [&](kvc_error* err) { return kvc_seq_add(get(), 4, err); });
  EXPECT_EQ(taken.detail, 4);
  int64_t number = -9;
  kvc_seq_info info{};
  info.struct_size = sizeof info;
  for (const kvc_seq seq : {kvc_seq{5}, kvc_seq{-4}}) {
    const std::string id = std::to_string(seq);
    const auto missing = [&](const Call& fn) {
      expect_refused(cache_, KVC_E_NOT_FOUND, {"sequence", id.c_str()}, fn);
    };
    missing([&](kvc_error* err) { return kvc_seq_remove(get(), seq, err); });
    missing([&](kvc_error* err) { return kvc_seq_fork(get(), seq, 9, -1, err); });
    missing([&](kvc_error* err) { return kvc_seq_pop(get(), seq, 0, err); });
    missing([&](kvc_error* err) { return kvc_seq_length(get(), seq, &number, err); });
    missing([&](kvc_error* err) { return kvc_seq_info_get(get(), seq, &info, err); });
    missing([&](kvc_error* err) { return kvc_seq_can(get(), seq, KVC_SEQ_POP, 0, &number, err); });
  }
  EXPECT_EQ(number, -9) << "outputs are written on success only";
}

TEST_F(Sequences, ForkSharesPagesUntilOneSideWrites) {
  cache_.fill({1}, {10});
  EXPECT_EQ(kvc_cache_available_pages(get()), 5);
  expect_ok([&](kvc_error* err) { return kvc_seq_fork(get(), 1, 2, -1, err); });
  EXPECT_EQ(length(2), 10);
  EXPECT_EQ(kvc_cache_available_pages(get()), 5) << "nothing is copied at fork time";
  expect_ok([&](kvc_error* err) { return kvc_seq_fork(get(), 1, 3, 4, err); });
  expect_ok([&](kvc_error* err) { return kvc_seq_fork(get(), 1, 4, 0, err); });
  EXPECT_EQ(length(3), 4);
  EXPECT_EQ(length(4), 0);
  int64_t missing = -1;
  const kvc_seq two = 2;
  const int64_t one = 1;
  ASSERT_EQ(kvc_seq_can_append(get(), 1, &two, &one, &missing, nullptr), KVC_OK);
  EXPECT_EQ(missing, 0);
  ASSERT_EQ(cache_.begin({2}, {1}), KVC_OK);
  EXPECT_EQ(kvc_cache_available_pages(get()), 4) << "the partial page was copied";
  cache_.finish();
  const Snapshot after = cache_.snapshot();
  EXPECT_EQ(after.pages[0][0], after.pages[1][0]);
  EXPECT_EQ(after.pages[0][1], after.pages[1][1]);
  EXPECT_NE(after.pages[0][2], after.pages[1][2]);
}

TEST_F(Sequences, ForkRefusesBadArguments) {
  cache_.fill({1, 2}, {10, 3});
  expect_refused(cache_, KVC_E_ALREADY_EXISTS, {"child", "2"},
                 [&](kvc_error* err) { return kvc_seq_fork(get(), 1, 2, -1, err); });
  expect_refused(cache_, KVC_E_ALREADY_EXISTS, {"child", "1"},
                 [&](kvc_error* err) { return kvc_seq_fork(get(), 1, 1, -1, err); });
  expect_refused(cache_, KVC_E_INVALID_ARGUMENT, {"child", "-8"},
                 [&](kvc_error* err) { return kvc_seq_fork(get(), 1, -8, -1, err); });
  expect_refused(cache_, KVC_E_OUT_OF_RANGE, {"pos", "11", "10"},
                 [&](kvc_error* err) { return kvc_seq_fork(get(), 1, 5, 11, err); });
  expect_refused(cache_, KVC_E_OUT_OF_RANGE, {"pos", "-2", "10"},
                 [&](kvc_error* err) { return kvc_seq_fork(get(), 1, 5, -2, err); });
  expect_refused(cache_, KVC_E_OUT_OF_RANGE, {"pos"},
                 [&](kvc_error* err) { return kvc_seq_fork(get(), 1, 5, INT64_MIN, err); });
}

TEST_F(Sequences, PopGoesPastForkPointsAndLeavesSiblingsAlone) {
  cache_.fill({1}, {10});
  ASSERT_EQ(kvc_seq_fork(get(), 1, 2, -1, nullptr), KVC_OK);
  expect_ok([&](kvc_error* err) { return kvc_seq_pop(get(), 2, 7, err); });
  EXPECT_EQ(length(2), 3);
  EXPECT_EQ(length(1), 10);
  expect_ok([&](kvc_error* err) { return kvc_seq_pop(get(), 2, 0, err); });
  expect_ok([&](kvc_error* err) { return kvc_seq_pop(get(), 2, 3, err); });
  EXPECT_EQ(length(2), 0) << "a sequence popped empty stays";
  expect_refused(cache_, KVC_E_OUT_OF_RANGE, {"n", "1", "0"},
                 [&](kvc_error* err) { return kvc_seq_pop(get(), 2, 1, err); });
  expect_refused(cache_, KVC_E_OUT_OF_RANGE, {"n", "11", "10"},
                 [&](kvc_error* err) { return kvc_seq_pop(get(), 1, 11, err); });
  expect_refused(cache_, KVC_E_OUT_OF_RANGE, {"n", "-1"},
                 [&](kvc_error* err) { return kvc_seq_pop(get(), 1, -1, err); });
  expect_refused(cache_, KVC_E_OUT_OF_RANGE, {"n"},
                 [&](kvc_error* err) { return kvc_seq_pop(get(), 1, INT64_MIN, err); });
  ASSERT_EQ(kvc_seq_remove(get(), 1, nullptr), KVC_OK);
  EXPECT_EQ(kvc_cache_available_pages(get()), 8);
}

TEST_F(Sequences, InfoTellsPositionsAndSharedPages) {
  cache_.fill({1}, {10});
  ASSERT_EQ(kvc_seq_fork(get(), 1, 2, 5, nullptr), KVC_OK);
  ASSERT_EQ(kvc_seq_add(get(), 3, nullptr), KVC_OK);
  kvc_seq_info info{};
  info.struct_size = sizeof info;
  expect_ok([&](kvc_error* err) { return kvc_seq_info_get(get(), 1, &info, err); });
  EXPECT_EQ(info.struct_size, sizeof info);
  EXPECT_EQ(info.length, 10);
  EXPECT_EQ(info.first_position, 0);
  EXPECT_EQ(info.last_position, 9);
  EXPECT_EQ(info.num_pages, 3);
  EXPECT_EQ(info.num_shared_pages, 2);
  EXPECT_EQ(info.window, 0);
  EXPECT_EQ(info.sink, 0);
  EXPECT_EQ(info.in_forward, 0);
  ASSERT_EQ(kvc_seq_info_get(get(), 3, &info, nullptr), KVC_OK);
  EXPECT_EQ(info.first_position, -1);
  EXPECT_EQ(info.last_position, -1);
  EXPECT_EQ(info.num_pages, 0);
  ASSERT_EQ(cache_.begin({3}, {5}), KVC_OK);
  ASSERT_EQ(kvc_seq_info_get(get(), 3, &info, nullptr), KVC_OK);
  EXPECT_EQ(info.in_forward, 1);
  EXPECT_EQ(info.length, 0) << "the open forward's tokens count from its end on";
  cache_.finish();
  EXPECT_EQ(length(3), 5);
}

TEST_F(Sequences, OfTheOpenForwardAreLockedAndOthersAreNot) {
  cache_.fill({1, 2}, {6, 6});
  ASSERT_EQ(cache_.begin({1}, {1}), KVC_OK);
  int64_t number = 0;
  const auto busy = [&](const Call& fn) {
    expect_refused(cache_, KVC_E_BUSY, {"sequence", "1"}, fn);
  };
  busy([&](kvc_error* err) { return kvc_seq_remove(get(), 1, err); });
  busy([&](kvc_error* err) { return kvc_seq_fork(get(), 1, 9, -1, err); });
  busy([&](kvc_error* err) { return kvc_seq_pop(get(), 1, 1, err); });
  busy([&](kvc_error* err) { return kvc_seq_can(get(), 1, KVC_SEQ_FORK, 2, &number, err); });
  EXPECT_EQ(kvc_seq_fork(get(), 2, 3, -1, nullptr), KVC_OK);
  EXPECT_EQ(kvc_seq_pop(get(), 2, 3, nullptr), KVC_OK);
  EXPECT_EQ(kvc_seq_remove(get(), 2, nullptr), KVC_OK);
  EXPECT_EQ(kvc_seq_add(get(), 8, nullptr), KVC_OK);
  EXPECT_EQ(kvc_cache_check(get(), nullptr), KVC_OK);
  cache_.finish();
  EXPECT_EQ(length(1), 7);
}

TEST_F(Sequences, ListFollowsTheTwoCallRule) {
  cache_.fill({9, 1, 5}, {1, 1, 1});
  size_t count = 77;
  expect_ok([&](kvc_error* err) { return kvc_seq_list(get(), nullptr, &count, err); });
  EXPECT_EQ(count, 3u);
  kvc_seq ids[3] = {-1, -1, -1};
  count = 2;
  const kvc_error error =
      expect_error(KVC_E_BUFFER_TOO_SMALL, {"ids", "2", "3"}, [&](kvc_error* err) {
        count = 2;
        return kvc_seq_list(get(), ids, &count, err);
      });
  EXPECT_EQ(count, 3u);
  EXPECT_EQ(error.detail, 3);
  EXPECT_EQ(ids[0], -1);
  expect_error(KVC_E_INVALID_ARGUMENT, {"count"},
               [&](kvc_error* err) { return kvc_seq_list(get(), ids, nullptr, err); });
  Cache empty(model_.config);
  count = 0;
  EXPECT_EQ(kvc_seq_list(empty.get(), ids, &count, nullptr), KVC_OK);
  EXPECT_EQ(count, 0u);
}

TEST_F(Sequences, CanAppendCountsMissingPages) {
  cache_.fill({1, 2}, {14, 10});  // 4 + 3 pages of 8
  ASSERT_EQ(kvc_seq_fork(get(), 1, 3, -1, nullptr), KVC_OK);
  const auto missing = [&](const std::vector<kvc_seq>& seqs, const std::vector<int64_t>& lengths) {
    int64_t pages = -1;
    EXPECT_EQ(kvc_seq_can_append(get(), seqs.size(), seqs.data(), lengths.data(), &pages, nullptr),
              KVC_OK);
    return pages;
  };
  EXPECT_EQ(missing({2}, {2}), 0);
  EXPECT_EQ(missing({2}, {6}), 0);
  EXPECT_EQ(missing({2}, {7}), 1);
  EXPECT_EQ(missing({1}, {1}), 0) << "the copy of the shared partial page";
  EXPECT_EQ(missing({1}, {3}), 1) << "the copy and a new page";
  EXPECT_EQ(missing({1, 3}, {1, 1}), 0) << "one of the two holders keeps the page";
  EXPECT_EQ(missing({1, 2, 3}, {1, 3, 1}), 1);
  EXPECT_EQ(missing({1, 2, 3}, {15, 15, 15}), 4 + 4 + 4 + 1 - 1);
}

TEST_F(Sequences, BatchesAreCheckedAlikeByCanAppendAndBegin) {
  model_.config.max_seqs = 2;
  model_.config.max_tokens_per_forward = 20;
  Cache cache(model_.config);
  cache.fill({1, 2}, {2, 2});
  ASSERT_EQ(kvc_seq_add(cache.get(), 3, nullptr), KVC_OK);
  const auto refused = [&](kvc_status status, std::initializer_list<const char*> parts,
                           const std::vector<kvc_seq>& seqs, const std::vector<int64_t>& lengths) {
    int64_t pages = -5;
    expect_refused(cache, status, parts, [&](kvc_error* err) {
      return kvc_seq_can_append(cache.get(), seqs.size(), seqs.data(), lengths.data(), &pages, err);
    });
    EXPECT_EQ(pages, -5);
    const kvc_error error = expect_refused(
        cache, status, parts, [&](kvc_error* err) { return cache.begin(seqs, lengths, err); });
    EXPECT_EQ(cache.forward, nullptr);
    return error;
  };
  refused(KVC_E_INVALID_ARGUMENT, {"num_seqs", "0"}, {}, {});
  EXPECT_EQ(refused(KVC_E_NOT_FOUND, {"sequence", "4"}, {1, 4}, {1, 1}).detail, 4);
  EXPECT_EQ(refused(KVC_E_INVALID_ARGUMENT, {"sequence", "1", "twice"}, {1, 1}, {1, 1}).detail, 1);
  refused(KVC_E_INVALID_ARGUMENT, {"append_lengths[1]", "0"}, {1, 2}, {1, 0});
  refused(KVC_E_INVALID_ARGUMENT, {"append_lengths[0]", "-7"}, {1}, {-7});
  refused(KVC_E_INVALID_ARGUMENT, {"append_lengths[0]"}, {1}, {INT64_MIN});
  refused(KVC_E_OUT_OF_RANGE, {"num_seqs", "3", "2"}, {1, 2, 3}, {1, 1, 1});
  refused(KVC_E_OUT_OF_RANGE, {"21", "20"}, {1, 2}, {11, 10});
  EXPECT_EQ(refused(KVC_E_OUT_OF_RANGE, {"31", "20"}, {1}, {31}).detail, 31)
      << "more than one forward takes";
  refused(KVC_E_NEVER_FITS, {"sequence", "1"}, {1}, {INT64_MAX});
  int64_t pages = 0;
  const kvc_seq seq = 1;
  const int64_t one = 1;
  expect_error(KVC_E_INVALID_ARGUMENT, {"seqs"}, [&](kvc_error* err) {
    return kvc_seq_can_append(cache.get(), 1, nullptr, &one, &pages, err);
  });
  expect_error(KVC_E_INVALID_ARGUMENT, {"lengths"}, [&](kvc_error* err) {
    return kvc_seq_can_append(cache.get(), 1, &seq, nullptr, &pages, err);
  });
  expect_error(KVC_E_INVALID_ARGUMENT, {"out_missing_pages"}, [&](kvc_error* err) {
    return kvc_seq_can_append(cache.get(), 1, &seq, &one, nullptr, err);
  });
}

TEST_F(Sequences, CanAppendAndBeginSayTheLongestPossibleLength) {
  cache_.fill({1, 2}, {2, 2});
  const kvc_seq seq = 1;
  for (const int64_t length :
       {int64_t{31}, int64_t{INT32_MAX} - 2, int64_t{INT32_MAX}, INT64_MAX}) {
    const std::string text = std::to_string(length);
    const char* longest =
        length < INT32_MAX - 1 ? "longest possible is 32" : "longest possible is 2147483647";
    int64_t pages = -5;
    expect_refused(
        cache_, KVC_E_NEVER_FITS, {"sequence 1", text.c_str(), longest},
        [&](kvc_error* err) { return kvc_seq_can_append(get(), 1, &seq, &length, &pages, err); });
    expect_refused(cache_, KVC_E_NEVER_FITS, {"sequence 1", text.c_str(), longest},
                   [&](kvc_error* err) { return cache_.begin({1}, {length}, err); });
    EXPECT_EQ(pages, -5);
  }
  ASSERT_EQ(kvc_seq_remove(get(), 2, nullptr), KVC_OK);
  EXPECT_EQ(cache_.begin({1}, {30}), KVC_OK) << "32 tokens fit";
}

TEST_F(Sequences, CanSaysTheNearestPosition) {
  cache_.fill({1}, {10});
  int64_t nearest = -1;
  for (const kvc_seq_op op : {KVC_SEQ_FORK, KVC_SEQ_POP}) {
    for (const auto& [pos, want] : {std::pair<int64_t, int64_t>{-1, 10},
                                    {0, 0},
                                    {7, 7},
                                    {10, 10},
                                    {11, 10},
                                    {INT64_MAX, 10}}) {
      expect_ok(
          [&, p = pos](kvc_error* err) { return kvc_seq_can(get(), 1, op, p, &nearest, err); });
      EXPECT_EQ(nearest, want) << pos;
    }
  }
  expect_error(KVC_E_OUT_OF_RANGE, {"pos", "-2"}, [&](kvc_error* err) {
    return kvc_seq_can(get(), 1, KVC_SEQ_FORK, -2, &nearest, err);
  });
  int64_t below = -7, above = -7;
  expect_error(KVC_E_OUT_OF_RANGE, {"pos", "-2"}, [&](kvc_error* err) {
    return kvc_seq_positions(get(), 1, KVC_SEQ_FORK, -2, &below, &above, err);
  });
  expect_error(KVC_E_NOT_FOUND, {"sequence 9"}, [&](kvc_error* err) {
    return kvc_seq_positions(get(), 9, KVC_SEQ_FORK, 0, &below, &above, err);
  });
  EXPECT_EQ(below, -7);
  EXPECT_EQ(above, -7);
  for (const kvc_seq_op op : {-1, 3}) {
    expect_error(KVC_E_UNSUPPORTED, {"op", std::to_string(op).c_str()},
                 [&](kvc_error* err) { return kvc_seq_can(get(), 1, op, 0, &nearest, err); });
  }
}

TEST_F(Sequences, NullArgumentsAreRefusedByName) {
  cache_.fill({1}, {3});
  int64_t number = 0;
  size_t count = 0;
  kvc_seq_info info{};
  const kvc_seq seq = 1;
  const auto null = [&](const char* name, const Call& fn) {
    expect_refused(cache_, KVC_E_INVALID_ARGUMENT, {name}, fn);
  };
  null("cache", [&](kvc_error* err) { return kvc_seq_add(nullptr, 1, err); });
  null("cache", [&](kvc_error* err) { return kvc_seq_remove(nullptr, 1, err); });
  null("cache", [&](kvc_error* err) { return kvc_seq_fork(nullptr, 1, 2, 0, err); });
  null("cache", [&](kvc_error* err) { return kvc_seq_pop(nullptr, 1, 0, err); });
  null("cache", [&](kvc_error* err) { return kvc_seq_length(nullptr, 1, &number, err); });
  null("out_length", [&](kvc_error* err) { return kvc_seq_length(get(), 1, nullptr, err); });
  null("cache", [&](kvc_error* err) { return kvc_seq_info_get(nullptr, 1, &info, err); });
  null("out", [&](kvc_error* err) { return kvc_seq_info_get(get(), 1, nullptr, err); });
  null("struct_size", [&](kvc_error* err) { return kvc_seq_info_get(get(), 1, &info, err); });
  null("cache", [&](kvc_error* err) { return kvc_seq_list(nullptr, nullptr, &count, err); });
  null("cache",
       [&](kvc_error* err) { return kvc_seq_can_append(nullptr, 1, &seq, &number, &number, err); });
  null("cache",
       [&](kvc_error* err) { return kvc_seq_can(nullptr, 1, KVC_SEQ_POP, 0, &number, err); });
  null("out_nearest",
       [&](kvc_error* err) { return kvc_seq_can(get(), 1, KVC_SEQ_POP, 0, nullptr, err); });
  const auto positions = [](kvc_cache* cache, int64_t* below, int64_t* above) {
    return [=](kvc_error* err) {
      return kvc_seq_positions(cache, 1, KVC_SEQ_POP, 0, below, above, err);
    };
  };
  null("cache", positions(nullptr, &number, &number));
  null("out_below", positions(get(), nullptr, &number));
  null("out_above", positions(get(), &number, nullptr));
}

}  // namespace
}  // namespace kvc::test
