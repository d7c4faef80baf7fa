// Resident memory of the process: what a pool costs follows what is in use, and what nobody uses
// goes back to the system.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "tests/capi/borrowed.h"
#include "tests/capi/prefix_support.h"
#include "tests/support/sanitizers.h"

namespace kvc::test {
namespace {

int64_t resident_bytes() {
  int64_t total = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * int64_t{sysconf(_SC_PAGESIZE)};
}

// 1,000 pages of 256 KiB in four layers.
class ResidentMemory : public testing::Test {
 protected:
  static constexpr int64_t kPageTokens = 16, kHeadsOfLayer = 8, kDimOfLayer = 128;
  static constexpr int64_t kPageBytes = 4 * 2 * kPageTokens * kHeadsOfLayer * kDimOfLayer * 2;

  void SetUp() override {
#ifdef KVC_UNDER_TSAN
    GTEST_SKIP() << "ThreadSanitizer keeps a record of every byte, which no trim frees";
#endif
  }

  ResidentMemory() : net_(layers(), 1000) {
    net_.config.page_size = kPageTokens;
    cache_ = std::make_unique<Cache>(net_.config);
    row_ = std::make_unique<HostTensor>(
        Elem::kBF16, std::vector<int64_t>{kMostTokens, kHeadsOfLayer, kDimOfLayer});
    Random random(1);
    row_->fill_random(random);
    append(0, 1);  // What the first forward allocates beside the pool.
    remove_seq(*cache_, 0);
    (void)trim();
    before_ = resident_bytes();
  }
  static std::vector<kvc_layer> layers() {
    kvc_layer layer = attention_layer();
    layer.num_q_heads = layer.num_kv_heads = kHeadsOfLayer;
    layer.k_dim = kDimOfLayer;
    layer.k_dtype = dl_type(Elem::kBF16);
    return std::vector<kvc_layer>(4, layer);
  }
  void append(kvc_seq seq, int64_t pages) {
    ASSERT_EQ(kvc_seq_add(cache_->get(), seq, nullptr), KVC_OK);
    ASSERT_EQ(cache_->begin({seq}, {pages * kPageTokens}), KVC_OK);
    for (int32_t layer = 0; layer < 4; ++layer)
      ASSERT_EQ(kvc_kv_append(cache_->forward, layer, row_->dl(), row_->dl(), nullptr), KVC_OK);
    cache_->end();
  }
  uint64_t trim() const {
    uint64_t released = 0;
    expect_ok([&](kvc_error* err) { return kvc_cache_trim(cache_->get(), &released, err); });
    return released;
  }
  int64_t grown() const { return resident_bytes() - before_; }

  static constexpr int64_t kMostTokens = 100 * kPageTokens;
  Net net_;
  std::unique_ptr<Cache> cache_;
  std::unique_ptr<HostTensor> row_;
  int64_t before_ = 0;
};

TEST_F(ResidentMemory, OfRequestsOneAfterTheOtherIsThatOfOne) {
  append(1, 3);
  const int64_t one = std::max(grown(), 3 * kPageBytes);
  remove_seq(*cache_, 1);
  for (kvc_seq seq = 2; seq < 402; ++seq) {
    append(seq, 3);
    remove_seq(*cache_, seq);
  }
  EXPECT_LE(grown(), 2 * one);
}

// Four at a time, of 1 to 8 pages.
TEST_F(ResidentMemory, OfRequestsSideBySideIsThatOfTheirMost) {
  for (kvc_seq seq = 1; seq <= 4; ++seq) append(seq, 8);
  const int64_t most = std::max(grown(), 32 * kPageBytes);
  Random random(3);
  for (kvc_seq seq = 5; seq < 205; ++seq) {
    remove_seq(*cache_, seq - 4);
    append(seq, random.range(1, 8));
  }
  EXPECT_LE(grown(), 2 * most);
}

// 150 MiB are back within 5 %, and a second trim finds nothing.
TEST_F(ResidentMemory, OfRemovedSequencesGoesBackWithATrim) {
  constexpr int64_t kBytes = 600 * kPageBytes;
  for (kvc_seq seq = 1; seq <= 6; ++seq) append(seq, 100);
  EXPECT_GE(grown(), kBytes);
  for (kvc_seq seq = 2; seq <= 6; ++seq) remove_seq(*cache_, seq);
  const uint64_t most = trim();
  EXPECT_GE(most, static_cast<uint64_t>(kBytes / 6 * 5));
  EXPECT_LE(grown(), kBytes / 6 + kBytes / 20);
  remove_seq(*cache_, 1);
  EXPECT_GE(most + trim(), static_cast<uint64_t>(kBytes));
  EXPECT_LE(grown(), kBytes / 20);
  EXPECT_EQ(trim(), 0u);
  append(7, 100);
  EXPECT_GE(grown(), 100 * kPageBytes) << "and memory is committed again";
}

TEST_F(ResidentMemory, GoesBackWhenTheCacheIsCleared) {
  for (kvc_seq seq = 1; seq <= 6; ++seq) append(seq, 100);
  EXPECT_GE(grown(), 600 * kPageBytes);
  ASSERT_EQ(kvc_cache_clear(cache_->get(), nullptr), KVC_OK);
  EXPECT_LE(grown(), 600 * kPageBytes / 20);
  EXPECT_EQ(trim(), 0u);
}

// The flag ("hg", "nh": huge pages are advised, or not) of the mapping at this address; empty: the
// system does not say.
std::string huge_page_flag(const void* data) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  std::ifstream maps("/proc/self/smaps");
  bool is_inside = false;
  for (std::string line; std::getline(maps, line);) {
    unsigned long begin = 0, end = 0;
    char dash = 0;
    std::istringstream range(line);
    if (range >> std::hex >> begin >> dash >> end && dash == '-')
      is_inside = begin <= address && address < end;
    if (!is_inside || line.rfind("VmFlags:", 0) != 0) continue;
    for (const char* flag : {"hg", "nh"}) {
      if (line.find(std::string(" ") + flag) != std::string::npos) return flag;
    }
  }
  return "";
}

const char* pool_data(const Cache& cache, int32_t layer) {
  DLManagedTensorVersioned* exported = nullptr;
  EXPECT_EQ(kvc_export_pool(cache.get(), layer, KVC_POOL_K, &exported, nullptr), KVC_OK);
  const char* data =
      static_cast<const char*>(exported->dl_tensor.data) + exported->dl_tensor.byte_offset;
  exported->deleter(exported);
  return data;
}

// The system can move what was written to huge pages, so that pools begin without them.
bool has_collapse() {
  constexpr int kCollapse = 25;  // MADV_COLLAPSE
  return madvise(nullptr, 0, kCollapse) == 0;
}

// Layers of 32 MiB each, then of 1 MiB. With 64 KiB per page, 32 pages in use fill a huge one in
// each layer.
TEST(HugePages, AreForLayersThatFillThem) {
  kvc_layer layer = attention_layer();
  layer.num_q_heads = layer.num_kv_heads = 8;
  layer.k_dim = 64;
  for (const kvc_pool_layout layout : {KVC_POOL_LAYER_FIRST, KVC_POOL_PAGE_FIRST}) {
    for (const uint64_t flags : {uint64_t{0}, uint64_t{KVC_CONFIG_NO_HUGE_PAGES}}) {
      for (const int64_t num_pages : {512, 15}) {
        SCOPED_TRACE(testing::Message()
                     << "layout " << layout << " flags " << flags << " pages " << num_pages);
        Net net({layer, layer}, num_pages);
        net.config.page_size = 16;
        net.config.pool_layout = layout;
        net.config.flags = flags;
        Cache cache(net.config);
        if (huge_page_flag(pool_data(cache, 0)).empty())
          GTEST_SKIP() << "no VmFlags, or no huge pages";
        const bool gets_huge = flags == 0 && num_pages == 512;
        const auto expect_huge = [&](bool is_huge, const char* when) {
          for (const int32_t local : {0, 1})
            EXPECT_EQ(huge_page_flag(pool_data(cache, local)), is_huge ? "hg" : "nh") << when;
        };
        expect_huge(gets_huge && !has_collapse(), "new");
        ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
        ASSERT_EQ(kvc_seq_reserve(cache.get(), 1, 14 * 16, nullptr), KVC_OK);
        expect_huge(gets_huge && !has_collapse(), "14 pages");
        if (!gets_huge) continue;
        ASSERT_EQ(kvc_seq_reserve(cache.get(), 1, 18 * 16, nullptr), KVC_OK);
        expect_huge(true, "32 pages");
        ASSERT_EQ(kvc_seq_pop(cache.get(), 1, 20 * 16, nullptr), KVC_OK);
        ASSERT_EQ(kvc_cache_trim(cache.get(), nullptr, nullptr), KVC_OK);
        expect_huge(true, "12 pages");
        ASSERT_EQ(kvc_cache_clear(cache.get(), nullptr), KVC_OK);
        expect_huge(!has_collapse(), "cleared");
      }
    }
  }
}

// What they hold stays when small pages become huge ones, while tokens come and go.
TEST(HugePages, TakeOverWhatSmallPagesHold) {
  for (const kvc_pool_layout layout : {KVC_POOL_LAYER_FIRST, KVC_POOL_PAGE_FIRST}) {
    for (const int32_t page_size : {1, 16, 48}) {
      SCOPED_TRACE(testing::Message() << "layout " << layout << " page_size " << page_size);
      kvc_layer layer = attention_layer();
      layer.num_q_heads = layer.num_kv_heads = 3;
      layer.k_dim = 80;
      layer.v_dim = 65;
      kvc_layer narrow = attention_layer();
      narrow.k_dim = 65;
      Net net({layer, narrow, layer}, 12000 / page_size);
      net.config.page_size = page_size;
      net.config.pool_layout = layout;
      Cache cache(net.config);
      for (kvc_seq seq = 1; seq <= 8; ++seq) {
        append_pattern(cache, seq, 500, static_cast<uint64_t>(seq));
        append_pattern(cache, seq, 1, static_cast<uint64_t>(seq));
        if (seq == 4) remove_seq(cache, 2);
      }
      for (const kvc_seq seq : {1, 3, 4, 5, 6, 7, 8})
        EXPECT_EQ(pattern_difference(cache, seq, static_cast<uint64_t>(seq)), "") << seq;
      expect_sound(cache);
    }
  }
}

// 32 layers of 1.6 MiB, pages of 4 KiB; larger ones, with and without huge pages.
TEST(HugePages, AreNotCommittedByOneToken) {
  for (const int kind : {0, 1, 2}) {
    if (kind == 2 && !has_collapse()) continue;
    SCOPED_TRACE(kind);
    kvc_layer layer = attention_layer();
    layer.num_q_heads = 1;
    layer.k_dim = 64;
    layer.k_dtype = dl_type(Elem::kBF16);
    Net net(std::vector<kvc_layer>(32, layer), kind == 0 ? 400 : 4096);
    net.config.page_size = 16;
    if (kind == 1) net.config.flags = KVC_CONFIG_NO_HUGE_PAGES;
    Cache cache(net.config);
    ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
    HostTensor row(Elem::kBF16, {1, 1, 64});
    ASSERT_EQ(cache.begin({1}, {1}), KVC_OK);
    const int64_t before = resident_bytes();
    for (int32_t local = 0; local < 32; ++local)
      ASSERT_EQ(kvc_kv_append(cache.forward, local, row.dl(), row.dl(), nullptr), KVC_OK);
    EXPECT_LE(resident_bytes() - before, 2 << 20) << "64 MiB, with a huge page per layer";
    cache.end();
  }
}

TEST(HugePages, CanBeSwitchedOffForMemoryOfTheLibraryAlone) {
  Net net({attention_layer()});
  net.config.flags = KVC_CONFIG_NO_HUGE_PAGES;
  for (const kvc_storage storage : {KVC_STORAGE_BORROWED, KVC_STORAGE_NONE}) {
    net.config.storage = storage;
    expect_error(KVC_E_UNSUPPORTED, {"config.storage", "KVC_CONFIG_NO_HUGE_PAGES (4)", "OWNED"},
                 [&](kvc_error* err) { return plan_status(net.config, err); });
  }
  net.config.storage = KVC_STORAGE_OWNED;
  net.config.device = {kDLCUDA, 0};
  expect_error(KVC_E_UNSUPPORTED, {"config.device.device_type = 2", "KVC_CONFIG_NO_HUGE_PAGES (4)"},
               [&](kvc_error* err) { return plan_status(net.config, err); });
  net.config.device = {};
  kvc_allocator allocator{};
  allocator.struct_size = sizeof allocator;
  allocator.alloc = [](void*, DLDevice, uint64_t, uint64_t) -> void* { return nullptr; };
  allocator.free = [](void*, DLDevice, void*, uint64_t) {};
  net.config.allocator = &allocator;
  expect_error(KVC_E_UNSUPPORTED, {"config.allocator", "KVC_CONFIG_NO_HUGE_PAGES (4)"},
               [&](kvc_error* err) { return plan_status(net.config, err); });
  net.config.allocator = nullptr;
  Cache cache(net.config);
  add_tokens(cache, 1, 9);
  EXPECT_EQ(length_of(cache, 1), 9);
}

// Pages of 48 bytes, so that a system page has those of several sequences.
TEST(Trim, LeavesWhatSequencesHold) {
  for (const kvc_pool_layout layout : {KVC_POOL_LAYER_FIRST, KVC_POOL_PAGE_FIRST}) {
    for (const int32_t page_size : {1, 3, 16}) {
      SCOPED_TRACE(testing::Message() << "layout " << layout << " page_size " << page_size);
      kvc_layer layer = attention_layer();
      layer.num_kv_heads = 1, layer.num_q_heads = 3;
      layer.k_dim = 9;
      layer.v_dim = 5;
      Net net({layer, layer}, 3000);
      net.config.page_size = page_size;
      net.config.pool_layout = layout;
      Cache trimmed(net.config), whole(net.config);
      Random random(11);
      std::vector<kvc_seq> live;
      for (kvc_seq seq = 0; seq < 60; ++seq) {
        const int64_t count = random.range(1, 40);
        HostTensor q(Elem::kF32, {count, 3, 9}), k(Elem::kF32, {count, 1, 9}),
            v(Elem::kF32, {count, 1, 5});
        for (HostTensor* tensor : {&q, &k, &v}) tensor->fill_random(random);
        HostTensor outs[] = {{Elem::kF32, {count, 3, 5}}, {Elem::kF32, {count, 3, 5}}};
        const bool forks = live.size() > 2 && random.chance(0.3);
        const kvc_seq parent = forks ? random.pick(live) : 0;
        for (Cache* cache : {&trimmed, &whole}) {
          ASSERT_EQ(forks ? kvc_seq_fork(cache->get(), parent, seq, -1, nullptr)
                          : kvc_seq_add(cache->get(), seq, nullptr),
                    KVC_OK);
          ASSERT_EQ(cache->begin({seq}, {count}), KVC_OK);
          for (int32_t local = 0; local < 2; ++local)
            ASSERT_EQ(kvc_attn(cache->forward, local, nullptr, q.dl(), k.dl(), v.dl(),
                               outs[cache == &whole].dl(), nullptr, nullptr),
                      KVC_OK);
          cache->end();
        }
        ASSERT_EQ(largest_difference(outs[0], outs[1]), 0) << "sequence " << seq;
        live.push_back(seq);
        if (live.size() > 8) {
          std::swap(live.back(), live[static_cast<size_t>(random.range(0, 8))]);
          for (Cache* cache : {&trimmed, &whole}) remove_seq(*cache, live.back());
          live.pop_back();
        }
        expect_ok([&](kvc_error* err) { return kvc_cache_trim(trimmed.get(), nullptr, err); });
        expect_sound(trimmed);
      }
    }
  }
}

TEST(Trim, IsRefusedWhileAForwardIsOpen) {
  Model model;
  Cache cache(model.config);
  cache.fill({1}, {9});
  ASSERT_EQ(cache.begin({1}, {1}), KVC_OK);
  uint64_t released = 77;
  expect_refused(cache, KVC_E_BUSY, {"trim"},
                 [&](kvc_error* err) { return kvc_cache_trim(cache.get(), &released, err); });
  EXPECT_EQ(released, 77u);
  cache.abort();
  expect_ok([&](kvc_error* err) { return kvc_cache_trim(cache.get(), &released, err); });
  expect_ok([&](kvc_error* err) { return kvc_cache_trim(cache.get(), nullptr, err); });
}

TEST(Trim, LeavesWhatThePrefixIndexKnowsAndWhatIsOnTheHost) {
  Net net({attention_layer()}, 64);
  set_host_pages(net.config, 16);
  Cache cache(net.config);
  append_ids(cache, 1, token_ids(32, 1));
  append_ids(cache, 2, token_ids(24, 2));
  const auto rows_of = [&](kvc_seq seq, int64_t count) {
    HostTensor k(Elem::kF32, {count, 1, kDim});
    EXPECT_EQ(kvc_debug_get_layer(cache.get(), seq, 0, 0, count, k.dl(), nullptr, nullptr, nullptr),
              KVC_OK);
    std::vector<double> values;
    k.for_each([&](int64_t t, int64_t h, int64_t d, int64_t) { values.push_back(k.get(t, h, d)); });
    return values;
  };
  const std::vector<double> known = rows_of(1, 32), swapped = rows_of(2, 24);
  ASSERT_EQ(swap_out(cache, {2}), KVC_OK);
  remove_seq(cache, 1);
  expect_ok([&](kvc_error* err) { return kvc_cache_trim(cache.get(), nullptr, err); });
  EXPECT_EQ(stats_of(cache).pages_cached, 8 + 6);
  EXPECT_EQ(attach(cache, 3, Query(token_ids(32, 1))), 32);
  EXPECT_EQ(rows_of(3, 32), known);
  ASSERT_EQ(swap_in(cache, {2}), KVC_OK);
  EXPECT_EQ(rows_of(2, 24), swapped);
  expect_sound(cache);
}

// The host program keeps its own books of the host pool.
TEST(Trim, LeavesHostPagesThatAreUsedByTheirIds) {
  Net net({attention_layer()}, 64);
  set_host_pages(net.config, 16);
  Cache cache(net.config);
  add_tokens(cache, 1, 4);
  HostTensor before(Elem::kF32, {4, 1, kDim}), after(Elem::kF32, {4, 1, kDim});
  const auto read = [&](HostTensor& into) {
    return kvc_debug_get_layer(cache.get(), 1, 0, 0, 4, into.dl(), nullptr, nullptr, nullptr);
  };
  ASSERT_EQ(read(before), KVC_OK);
  DLManagedTensorVersioned* exported = nullptr;
  ASSERT_EQ(kvc_export_seq_pages(cache.get(), 1, 0, &exported, nullptr), KVC_OK);
  int64_t out_pair[] = {*static_cast<const int32_t*>(exported->dl_tensor.data), 3};
  int64_t in_pair[] = {out_pair[1], out_pair[0]};
  exported->deleter(exported);
  int64_t shape[] = {1, 2};
  DLTensor pairs{out_pair, {kDLCPU, 0}, 2, {kDLInt, 64, 1}, shape, nullptr, 0};
  ASSERT_EQ(kvc_pages_swap(cache.get(), &pairs, KVC_SWAP_OUT, nullptr, nullptr, nullptr), KVC_OK);
  expect_ok([&](kvc_error* err) { return kvc_cache_trim(cache.get(), nullptr, err); });
  HostTensor zeros(Elem::kF32, {4, 1, kDim});
  zeros.for_each([&](int64_t a, int64_t b, int64_t c, int64_t d) { zeros.set(0, a, b, c, d); });
  ASSERT_EQ(kvc_debug_set_layer(cache.get(), 1, 0, 0, zeros.dl(), zeros.dl(), nullptr, nullptr),
            KVC_OK);
  pairs.data = in_pair;
  ASSERT_EQ(kvc_pages_swap(cache.get(), &pairs, KVC_SWAP_IN, nullptr, nullptr, nullptr), KVC_OK);
  ASSERT_EQ(read(after), KVC_OK);
  EXPECT_EQ(largest_difference(before, after), 0);
}

// Slots of 4 MiB: states that no sequence has go back, those of others stay what they are.
TEST(Trim, GivesFreeStateSlotsBack) {
  const std::vector<int64_t> shape{1 << 20};
  const std::vector<kvc_state_spec> specs{state_spec(shape)};
  Net net({attention_layer(), state_layer(specs)}, 4096);
  Cache cache(net.config);
  HostTensor value(Elem::kF32, {1, 1 << 20}), got(Elem::kF32, {1 << 20});
  const auto fill = [&](kvc_seq seq, double x) {
    value.for_each([&](int64_t a, int64_t b, int64_t c, int64_t d) { value.set(x, a, b, c, d); });
    EXPECT_EQ(kvc_seq_add(cache.get(), seq, nullptr), KVC_OK);
    EXPECT_EQ(cache.begin({seq}, {1}), KVC_OK);
    EXPECT_EQ(kvc_state_set(cache.forward, 1, 0, value.dl(), nullptr), KVC_OK);
    cache.finish();
  };
  fill(1, 3);
  fill(2, 5);
  remove_seq(cache, 1);
  uint64_t released = 0;
  expect_ok([&](kvc_error* err) { return kvc_cache_trim(cache.get(), &released, err); });
  EXPECT_GE(released, uint64_t{4} << 20);
  fill(3, 7);
  for (const auto& [seq, want] : {std::pair<kvc_seq, double>{2, 5}, {3, 7}}) {
    ASSERT_EQ(kvc_debug_get_state(cache.get(), seq, 1, 0, got.dl(), nullptr, nullptr), KVC_OK);
    for (const int64_t at : {0, 4095, (1 << 20) - 1}) EXPECT_EQ(got.get(at), want);
  }
  expect_sound(cache);
}

TEST(Trim, GivesNothingBackOfABorrowedPoolOrOfNone) {
  for (const bool is_borrowed : {true, false}) {
    Net net({attention_layer()});
    std::unique_ptr<BorrowedPool> pool;
    if (is_borrowed) pool = std::make_unique<BorrowedPool>(net.config);
    if (!is_borrowed) net.config.storage = KVC_STORAGE_NONE;
    Cache cache(net.config);
    add_tokens(cache, 1, 30);
    remove_seq(cache, 1);
    uint64_t released = 77;
    expect_ok([&](kvc_error* err) { return kvc_cache_trim(cache.get(), &released, err); });
    EXPECT_EQ(released, 0u);
  }
}

}  // namespace
}  // namespace kvc::test
