// Shifts by the thousand: rows of rotated K stay as they are, so that small rotations are not lost,
// and whatever leaves the cache is rotated for the positions that tokens have now.
#include "tests/capi/layers.h"
#include "tests/capi/state_files.h"

namespace kvc::test {
namespace {

constexpr int64_t kKeep = 4, kContext = 40, kStream = 3100;

// A chat at its limit: the token behind the first four goes, and one comes.
class Chat {
 public:
  explicit Chat(const kvc_layer& layer, int64_t keep = kKeep) : keep_(keep) {
    net_ = std::make_unique<Net>(std::vector<kvc_layer>{layer}, 40);
    set_host_pages(net_->config, 40);
    cache = std::make_unique<Cache>(net_->config);
    EXPECT_EQ(kvc_seq_add(cache->get(), 1, nullptr), KVC_OK);
    attend_rows(*cache, 1, 0, tokens, 0, kContext, out);
    for (next_ = 0; next_ < kContext; ++next_) kept.push_back(next_);
  }
  const kvc_config& config() const { return net_->config; }
  // Tokens `keep` and later move by `drop`.
  void shift(int64_t drop = 1) {
    ASSERT_EQ(kvc_seq_shift(cache->get(), 1, keep_, keep_ + drop, -drop, nullptr), KVC_OK);
    kept.erase(kept.begin() + keep_, kept.begin() + keep_ + drop);
  }
  void append(Cache& to, kvc_seq seq = 1) {
    attend_rows(to, seq, 0, tokens, next_, 1, out);
    kept.push_back(next_++);
  }
  void append() { append(*cache); }
  // The last token's output, relative to the largest element of the exact one.
  double error() const {
    const int64_t last = kept.back();
    const auto turn = [&](std::vector<double> row, int64_t key) {
      const int64_t token = key >= 0 ? key : last;
      const auto place = std::find(kept.begin(), kept.end(), token) - kept.begin();
      return rotated(std::move(row), static_cast<double>(place));
    };
    const NaiveQuery query{const_cast<Tokens&>(tokens), kept, turn};
    double largest = 0, most = 0;
    for (int64_t head = 0; head < kHeads; ++head) {
      const std::vector<double> exact = query.attend(last, head);
      for (size_t d = 0; d < exact.size(); ++d) {
        const double got = const_cast<HostTensor&>(out).get(last, head, static_cast<int64_t>(d));
        largest = std::max(largest, std::fabs(got - exact[d]));
        most = std::max(most, std::fabs(exact[d]));
      }
    }
    return largest / most;
  }
  void expect_stored(const Cache& of, kvc_seq seq, double tolerance = 2e-6) const {
    const auto count = static_cast<int64_t>(kept.size());
    HostTensor k(Elem::kF32, {count, 1, kDim});
    ASSERT_EQ(kvc_debug_get_layer(of.get(), seq, 0, 0, count, k.dl(), nullptr, nullptr, nullptr),
              KVC_OK);
    expect_rows(k, tolerance);
  }
  void expect_rows(HostTensor& k, double tolerance = 2e-6) const {
    for (size_t i = 0; i < kept.size(); ++i) {
      const std::vector<double> exact =
          rotated(row_of(const_cast<HostTensor&>(tokens.k), kept[i], 0), static_cast<double>(i));
      for (size_t d = 0; d < exact.size(); ++d) {
        ASSERT_NEAR(k.get(static_cast<int64_t>(i), 0, static_cast<int64_t>(d)), exact[d], tolerance)
            << "token " << i;
      }
    }
  }

  Tokens tokens{kStream};
  HostTensor out{Elem::kF32, {kStream, kHeads, kDim}};
  std::unique_ptr<Cache> cache;
  std::vector<int64_t> kept;

 private:
  const int64_t keep_;
  std::unique_ptr<Net> net_;
  int64_t next_ = 0;
};

kvc_layer rotated_layer(const kvc_rope* rope) {
  kvc_layer layer = attention_layer();
  layer.rope = rope;
  return layer;
}

TEST(ShiftDrift, ThousandsOfShiftsLeaveNoMoreErrorThanOne) {
  const kvc_rope rope = rope_of(KVC_ROPE_ON_APPEND);
  for (const DLDataType type :
       {DLDataType{kDLFloat, 32, 1}, DLDataType{kDLFloat, 16, 1}, DLDataType{kDLBfloat, 16, 1},
        DLDataType{kDLInt, 8, 1}, DLDataType{kDLFloat8_e4m3fn, 8, 1}}) {
    for (const int64_t keep : {int64_t{0}, kKeep, int64_t{7}}) {
      SCOPED_TRACE(testing::Message()
                   << "type " << int{type.code} << " bits " << int{type.bits} << " keep " << keep);
      kvc_layer layer = rotated_layer(&rope);
      layer.k_dtype = type;
      if (type.bits == 8) layer.quant = KVC_QUANT_PER_TOKEN_HEAD;
      Chat chat(layer, keep);
      double early = 0, late = 0;
      for (int step = 0; step < 3000; ++step) {
        chat.shift();
        chat.append();
        if (step < 40) early = std::max(early, chat.error());
        if (step >= 2960) late = std::max(late, chat.error());
      }
      EXPECT_LE(late, 1.5 * early + 1e-6);
      EXPECT_EQ(kvc_cache_check(chat.cache->get(), nullptr), KVC_OK);
    }
  }
}

TEST(ShiftDrift, LeavesWindowsOfSequencesAndLayersRight) {
  const kvc_rope rope = rope_of(KVC_ROPE_ON_APPEND);
  for (const int64_t layer_window : {0, 12}) {
    kvc_layer layer = rotated_layer(&rope);
    layer.window = layer_window;
    Net net({layer}, 40);
    Cache cache(net.config);
    Tokens tokens(400);
    HostTensor out(Elem::kF32, {400, kHeads, kDim});
    ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
    if (layer_window == 0) {
      ASSERT_EQ(kvc_seq_set_window(cache.get(), 1, 14, 2, nullptr), KVC_OK);
    }
    std::vector<int64_t> kept;
    Random random(5);
    for (int64_t next = 0; next < 400; ++next) {
      attend_rows(cache, 1, 0, tokens, next, 1, out);
      kept.push_back(next);
      const auto length = static_cast<int64_t>(kept.size());
      std::vector<int64_t> seen;
      for (int64_t i = 0; i < length; ++i) {
        const bool sink = layer_window == 0 && i < 2;
        if (sink || i > length - 1 - 12) seen.push_back(kept[static_cast<size_t>(i)]);
      }
      const auto turn = [&](std::vector<double> row, int64_t key) {
        const int64_t token = key >= 0 ? key : next;
        const auto place = std::find(kept.begin(), kept.end(), token) - kept.begin();
        return rotated(std::move(row), static_cast<double>(place));
      };
      expect_row(out, next, {tokens, seen, turn}, next);
      const int64_t begin = random.chance(0.7) ? 2 : random.range(0, length - 1);
      if (length > 20 && kvc_seq_shift(cache.get(), 1, begin, begin + 1, -1, nullptr) == KVC_OK)
        kept.erase(kept.begin() + begin);
    }
    EXPECT_LT(kept.size(), 60u);
    EXPECT_EQ(kvc_cache_check(cache.get(), nullptr), KVC_OK);
  }
}

TEST(ShiftDrift, WhatLeavesTheCacheIsRotatedForItsPosition) {
  const kvc_rope rope = rope_of(KVC_ROPE_ON_APPEND);
  Chat chat(rotated_layer(&rope));
  for (int step = 0; step < 1000; ++step) chat.shift(), chat.append();
  Cache& cache = *chat.cache;
  chat.expect_stored(cache, 1);
  // Gathered in a forward, with its new token.
  ASSERT_EQ(cache.begin({1}, {1}), KVC_OK);
  HostTensor k(Elem::kF32, {static_cast<int64_t>(chat.kept.size()) + 1, 1, kDim});
  Rows row(chat.tokens.k, 0, 1), value(chat.tokens.v, 0, 1);
  ASSERT_EQ(kvc_kv_append(cache.forward, 0, row.dl(), value.dl(), nullptr), KVC_OK);
  ASSERT_EQ(kvc_kv_gather(cache.forward, 0, 1, k.dl(), nullptr, nullptr), KVC_OK);
  chat.expect_rows(k);
  ASSERT_EQ(kvc_forward_abort(cache.forward, nullptr), KVC_OK);
  cache.forward = nullptr;
  // Saved, and loaded where the host reads pages: rotated there; where not, as it is.
  const Bytes file = saved(cache, {1});
  Cache twin(chat.config());
  ASSERT_EQ(load(twin, {1}, file), KVC_OK);
  chat.expect_stored(twin, 1);
  EXPECT_TRUE(saved(twin, {1}) == file) << "the same bits";
  Cache open(chat.config());
  DLManagedTensorVersioned* pool = nullptr;
  ASSERT_EQ(kvc_export_pool(open.get(), 0, KVC_POOL_K, &pool, nullptr), KVC_OK);
  ASSERT_EQ(load(open, {1}, file), KVC_OK);
  chat.expect_stored(open, 1);
  const auto pages = taken([&] {
    DLManagedTensorVersioned* exported = nullptr;
    EXPECT_EQ(kvc_export_seq_pages(open.get(), 1, 0, &exported, nullptr), KVC_OK);
    return exported;
  }());
  const auto* rows = static_cast<const float*>(pool->dl_tensor.data);
  for (size_t i = 0; i < chat.kept.size(); ++i) {
    const std::vector<double> exact =
        rotated(row_of(chat.tokens.k, chat.kept[i], 0), static_cast<double>(i));
    for (size_t d = 0; d < exact.size(); ++d) {
      const auto page = static_cast<size_t>(pages[i / 4] * pool->dl_tensor.strides[0]);
      ASSERT_NEAR(rows[page + i % 4 * kDim + d], exact[d], 2e-6) << "token " << i;
    }
  }
  pool->deleter(pool);
  // Swapped, forked, popped.
  ASSERT_EQ(swap_out(cache, {1}), KVC_OK);
  ASSERT_EQ(swap_in(cache, {1}), KVC_OK);
  chat.expect_stored(cache, 1);
  ASSERT_EQ(kvc_seq_fork(cache.get(), 1, 2, -1, nullptr), KVC_OK);
  chat.expect_stored(cache, 2);
  ASSERT_EQ(kvc_seq_pop(cache.get(), 2, static_cast<int64_t>(chat.kept.size()) - kKeep, nullptr),
            KVC_OK);
  attend_rows(cache, 2, 0, chat.tokens, 100, 9, chat.out);
  const auto turn = [](std::vector<double> of, int64_t key) {
    const int64_t token = key >= 0 ? key : 108;
    return rotated(std::move(of), static_cast<double>(token < kKeep ? token : token - 96));
  };
  std::vector<int64_t> keys = key_range(0, kKeep);
  for (int64_t key = 100; key < 109; ++key) keys.push_back(key);
  expect_row(chat.out, 108, {chat.tokens, keys, turn}, 108);
  // The pool is handed out: rows are rotated at once from here on.
  ASSERT_EQ(kvc_export_pool(cache.get(), 0, KVC_POOL_K, &pool, nullptr), KVC_OK);
  pool->deleter(pool);
  chat.expect_stored(cache, 1);
  chat.append();
  EXPECT_LE(chat.error(), 1e-5);
  chat.shift(3);
  chat.append();
  EXPECT_LE(chat.error(), 1e-5);
}

// Rows that a forward holds, or that lie on the host, cannot be rotated.
TEST(ShiftDrift, IsInTheWayOfAnExportWhileItsRowsCannotBeRotated) {
  const kvc_rope rope = rope_of(KVC_ROPE_ON_APPEND);
  Chat chat(rotated_layer(&rope));
  chat.shift();
  Cache& cache = *chat.cache;
  DLManagedTensorVersioned* pool = nullptr;
  const auto export_pool = [&](kvc_error* err) {
    return kvc_export_pool(cache.get(), 0, KVC_POOL_K, &pool, err);
  };
  ASSERT_EQ(cache.begin({1}, {1}), KVC_OK);
  expect_error(KVC_E_BUSY, {"shifted"}, export_pool);
  ASSERT_EQ(kvc_forward_abort(cache.forward, nullptr), KVC_OK);
  cache.forward = nullptr;
  ASSERT_EQ(swap_out(cache, {1}), KVC_OK);
  expect_refused(cache, KVC_E_INVALID_STATE, {"sequence 1", "swap it in"}, export_pool);
  ASSERT_EQ(swap_in(cache, {1}), KVC_OK);
  chat.append();
  EXPECT_LE(chat.error(), 1e-5);
  expect_ok(export_pool);
  pool->deleter(pool);
  chat.expect_stored(cache, 1);
}

// Whichever sequence is met first.
TEST(ShiftDrift, SequencesOfOtherLengthsThatShareAPageAreAllRotated) {
  const kvc_rope rope = rope_of(KVC_ROPE_ON_APPEND);
  for (const bool is_export : {false, true}) {
    Chat chat(rotated_layer(&rope));
    chat.shift(2);  // 38 tokens: the last page has two.
    Cache& cache = *chat.cache;
    for (const kvc_seq shorter : {0, 2})
      ASSERT_EQ(kvc_seq_fork(cache.get(), 1, shorter, 37, nullptr), KVC_OK);
    if (is_export) {
      DLManagedTensorVersioned* pool = nullptr;
      ASSERT_EQ(kvc_export_pool(cache.get(), 0, KVC_POOL_K, &pool, nullptr), KVC_OK);
      pool->deleter(pool);
      chat.expect_stored(cache, 1);
      continue;
    }
    Cache open(chat.config());
    DLManagedTensorVersioned* pool = nullptr;
    ASSERT_EQ(kvc_export_pool(open.get(), 0, KVC_POOL_K, &pool, nullptr), KVC_OK);
    pool->deleter(pool);
    ASSERT_EQ(load(open, {5, 6, 7}, saved(cache, {0, 1, 2})), KVC_OK);
    chat.expect_stored(open, 6);
  }
}

TEST(ShiftDrift, WhatTheHostSetsIsRotatedAsItSays) {
  const kvc_rope rope = rope_of(KVC_ROPE_ON_APPEND);
  Chat chat(rotated_layer(&rope));
  for (int step = 0; step < 50; ++step) chat.shift(), chat.append();
  const auto count = static_cast<int64_t>(chat.kept.size());
  HostTensor k(Elem::kF32, {count, 1, kDim}), v(Elem::kF32, {count, 1, kDim});
  kvc_cache* cache = chat.cache->get();
  ASSERT_EQ(kvc_debug_get_layer(cache, 1, 0, 0, count, k.dl(), v.dl(), nullptr, nullptr), KVC_OK);
  ASSERT_EQ(kvc_debug_set_layer(cache, 1, 0, 0, k.dl(), v.dl(), nullptr, nullptr), KVC_OK);
  chat.expect_stored(*chat.cache, 1, 4e-6);
  chat.append();
  EXPECT_LE(chat.error(), 1e-5);
}

TEST(ShiftDrift, PagesLeaveRotated) {
  const kvc_rope rope = rope_of(KVC_ROPE_ON_APPEND);
  Chat chat(rotated_layer(&rope));
  for (int step = 0; step < 50; ++step) chat.shift(), chat.append();
  DLManagedTensorVersioned* exported = nullptr;
  ASSERT_EQ(kvc_export_seq_pages(chat.cache->get(), 1, 0, &exported, nullptr), KVC_OK);
  std::vector<int64_t> ids = taken(exported);
  kvc_layer_info info{};
  info.struct_size = sizeof info;
  ASSERT_EQ(kvc_plan_layer_get(chat.cache->plan(), 0, &info, nullptr), KVC_OK);
  const auto bytes = static_cast<int64_t>(info.page_bytes);
  std::vector<uint8_t> pages(ids.size() * static_cast<size_t>(bytes));
  int64_t id_shape[1] = {static_cast<int64_t>(ids.size())}, shape[2] = {id_shape[0], bytes};
  DLTensor of_ids{ids.data(), {kDLCPU, 0}, 1, {kDLInt, 64, 1}, id_shape, nullptr, 0};
  DLTensor of_pages{pages.data(), {kDLCPU, 0}, 2, {kDLUInt, 8, 1}, shape, nullptr, 0};
  ASSERT_EQ(kvc_pages_export(chat.cache->get(), 0, &of_ids, &of_pages, nullptr, nullptr), KVC_OK);
  for (size_t i = 0; i < chat.kept.size(); ++i) {
    const std::vector<double> exact =
        rotated(row_of(chat.tokens.k, chat.kept[i], 0), static_cast<double>(i));
    const auto* row = reinterpret_cast<const float*>(
        pages.data() + i / 4 * static_cast<size_t>(bytes) + i % 4 * kDim * sizeof(float));
    for (size_t d = 0; d < exact.size(); ++d) ASSERT_NEAR(row[d], exact[d], 2e-6) << "token " << i;
  }
  // Imported pages are the host's: everything is rotated where it is.
  ASSERT_EQ(kvc_pages_import(chat.cache->get(), 0, &of_ids, &of_pages, nullptr, nullptr), KVC_OK);
  chat.expect_stored(*chat.cache, 1, 4e-6);
  chat.append();
  EXPECT_LE(chat.error(), 1e-5);
}

}  // namespace
}  // namespace kvc::test
