// State files: what comes back, what is shared, what never gets in, and what no file may do.
#include "tests/capi/state_files.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "tests/support/folder.h"

namespace kvc::test {
namespace {

namespace fs = std::filesystem;

Bytes read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(StateFiles, ASequenceComesBackInEveryKindOfLayerAndEitherPoolLayout) {
  for (const kvc_pool_layout layout : {KVC_POOL_LAYER_FIRST, KVC_POOL_PAGE_FIRST}) {
    SCOPED_TRACE(layout == KVC_POOL_PAGE_FIRST ? "to PAGE_FIRST" : "to LAYER_FIRST");
    AllKinds from, to(layout);
    Cache first(from.net.config), second(to.net.config);
    append_pattern(first, 1, 13, 41, 7);
    append_pattern(first, 1, 6, 41);
    const Bytes file = saved(first, {1});
    const kvc_seq_info before = info_of(first, 1);
    first.destroy();
    append_pattern(second, 3, 5, 42);
    overwrite_free_pages(second);
    expect_ok([&](kvc_error* err) { return load(second, {9}, file, err); });
    expect_same_info(before, info_of(second, 9));
    EXPECT_EQ(pattern_difference(second, 9, 41), "");
    EXPECT_EQ(pattern_difference(second, 3, 42), "");
    expect_sound(second);
    append_pattern(second, 9, 6, 41);
    EXPECT_EQ(pattern_difference(second, 9, 41), "") << "and grows as ever";
    ASSERT_EQ(kvc_seq_remove(second.get(), 9, nullptr), KVC_OK);
    ASSERT_EQ(kvc_seq_remove(second.get(), 3, nullptr), KVC_OK);
    EXPECT_EQ(kvc_cache_is_empty(second.get()), 1);
    expect_sound(second);
  }
}

// At length 0 a state is the one that every sequence begins with: no slot holds it.
TEST(StateFiles, ACheckpointOfTheInitialStateComesBack) {
  std::vector<int64_t> shape{2, 3};
  std::vector<kvc_state_spec> specs{state_spec(shape)};
  Net net({attention_layer(), state_layer(specs)});
  Cache first(net.config), second(net.config);
  ASSERT_EQ(kvc_seq_add(first.get(), 1, nullptr), KVC_OK);
  ASSERT_EQ(kvc_state_checkpoint(first.get(), 1, nullptr), KVC_OK);
  append_pattern(first, 1, 5, 7);
  ASSERT_EQ(kvc_state_checkpoint(first.get(), 1, nullptr), KVC_OK);
  append_pattern(first, 1, 4, 7);
  const Bytes file = saved(first, {1});
  expect_ok([&](kvc_error* err) { return load(second, {2}, file, err); });
  EXPECT_EQ(saved(second, {2}).size(), file.size());
  expect_same_info(info_of(first, 1), info_of(second, 2));
  expect_sound(second);
  for (const int64_t length : {9, 5, 0}) {
    SCOPED_TRACE(length);
    for (const auto& [cache, seq] :
         {std::pair{&first, kvc_seq{1}}, std::pair{&second, kvc_seq{2}}}) {
      const int64_t popped = length_of(*cache, seq) - length;
      expect_ok([&](kvc_error* err) { return kvc_seq_pop(cache->get(), seq, popped, err); });
    }
    HostTensor before(Elem::kF32, {2, 3}), after(Elem::kF32, {2, 3});
    ASSERT_EQ(kvc_debug_get_state(first.get(), 1, 1, 0, before.dl(), nullptr, nullptr), KVC_OK);
    ASSERT_EQ(kvc_debug_get_state(second.get(), 2, 1, 0, after.dl(), nullptr, nullptr), KVC_OK);
    for (int64_t i = 0; i < 2; ++i)
      for (int64_t j = 0; j < 3; ++j) EXPECT_EQ(after.get(i, j), before.get(i, j));
    expect_sound(second);
  }
}

TEST(StateFiles, WhatSequencesShareIsInAFileOnceAndSharedAgain) {
  Net net({attention_layer()});
  Cache first(net.config), second(net.config);
  append_pattern(first, 1, 10, 7);
  ASSERT_EQ(kvc_seq_fork(first.get(), 1, 2, -1, nullptr), KVC_OK);
  ASSERT_EQ(kvc_seq_fork(first.get(), 1, 3, 8, nullptr), KVC_OK);
  append_pattern(first, 2, 3, 7);
  const kvc_stats before = stats_of(first);
  const Bytes all = saved(first, {1, 2, 3});
  EXPECT_NE(described(all).find("\"num_pages\": 5"), std::string::npos) << described(all);
  expect_ok([&](kvc_error* err) { return load(second, {4, 5, 6}, all, err); });
  EXPECT_EQ(stats_of(second).pages_used, before.pages_used);
  EXPECT_EQ(stats_of(second).pages_shared, before.pages_shared);
  EXPECT_EQ(length_of(second, 4), 10);
  EXPECT_EQ(length_of(second, 5), 13);
  EXPECT_EQ(length_of(second, 6), 8);
  for (const kvc_seq seq : {4, 5, 6}) EXPECT_EQ(pattern_difference(second, seq, 7), "");
  append_pattern(second, 6, 4, 7);
  for (const kvc_seq seq : {4, 5, 6}) EXPECT_EQ(pattern_difference(second, seq, 7), "");
  expect_sound(second);
}

TEST(StateFiles, NothingOfOthersGetsIntoAFile) {
  AllKinds model;
  Cache clean(model.net.config), used(model.net.config);
  // Another history of the pool: what lies behind the tokens of a page is somebody else's.
  append_pattern(used, 7, 40, 99, 9);
  ASSERT_EQ(kvc_seq_remove(used.get(), 7, nullptr), KVC_OK);
  for (Cache* cache : {&clean, &used}) append_pattern(*cache, 1, 13, 41, 7);
  EXPECT_EQ(saved(clean, {1}), saved(used, {1}));
  Cache again(model.net.config);
  ASSERT_EQ(load(again, {1}, saved(used, {1})), KVC_OK);
  EXPECT_EQ(saved(again, {1}), saved(clean, {1})) << "a file of a loaded file is the same";
}

TEST(StateFiles, FilesMemoryAndFunctionsGiveTheSameBytes) {
  const Folder folder;
  AllKinds model;
  Cache cache(model.net.config);
  append_pattern(cache, 1, 13, 41, 7);
  const Bytes expected = saved(cache, {1});
  const std::string path = folder.file("one.kvc");
  kvc_save_desc to_file = save_desc();
  to_file.path = path.c_str();
  expect_ok([&](kvc_error* err) { return save(cache, {1}, to_file, err); });
  EXPECT_EQ(read_file(path), expected);
  EXPECT_EQ(folder.size(), 1u) << "nothing lies beside it";
  Bytes collected;
  kvc_save_desc to_function = save_desc();
  to_function.user = &collected;
  to_function.write = [](void* user, const void* data, size_t size) {
    const auto* bytes = static_cast<const uint8_t*>(data);
    static_cast<Bytes*>(user)->insert(static_cast<Bytes*>(user)->end(), bytes, bytes + size);
    return 0;
  };
  expect_ok([&](kvc_error* err) { return save(cache, {1}, to_function, err); });
  EXPECT_EQ(collected, expected);

  kvc_load_desc from_file = load_desc();
  from_file.path = path.c_str();
  kvc_load_desc from_function = load_desc();
  from_function.user = &collected;
  from_function.read = [](void* user, uint64_t offset, void* data, size_t size) -> int64_t {
    const Bytes& bytes = *static_cast<Bytes*>(user);
    const size_t count = std::min({size, bytes.size() - offset, size_t{1000}});  // short reads
    std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(offset), count,
                static_cast<uint8_t*>(data));
    return static_cast<int64_t>(count);
  };
  expect_ok([&](kvc_error* err) { return load(cache, {2}, from_file, err); });
  expect_ok([&](kvc_error* err) { return load(cache, {3}, from_function, err); });
  for (const kvc_seq seq : {2, 3}) EXPECT_EQ(pattern_difference(cache, seq, 41), "");
  expect_sound(cache);
}

TEST(StateFiles, AFailedSaveLeavesTheOldFile) {
  const Folder folder;
  Net net({attention_layer()});
  Cache cache(net.config);
  append_pattern(cache, 1, 10, 7);
  const std::string path = folder.file("one.kvc");
  kvc_save_desc desc = save_desc();
  desc.path = path.c_str();
  ASSERT_EQ(save(cache, {1}, desc), KVC_OK);
  const Bytes before = read_file(path);
  expect_error(KVC_E_NOT_FOUND, {"77"},
               [&](kvc_error* err) { return save(cache, {77}, desc, err); });
  EXPECT_EQ(read_file(path), before);
  EXPECT_EQ(folder.size(), 1u);
  const std::string nowhere = folder.file("missing/one.kvc"), place = folder.file("");
  desc.path = nowhere.c_str();
  const kvc_error error = expect_error(KVC_E_IO, {"missing/one.kvc", "No such file"},
                                       [&](kvc_error* err) { return save(cache, {1}, desc, err); });
  EXPECT_EQ(error.sys_code, ENOENT);
  desc.path = place.c_str();
  EXPECT_EQ(save(cache, {1}, desc), KVC_E_IO);
  EXPECT_EQ(folder.size(), 1u);
  // The function fails at each of its calls.
  struct Failing {
    int left, calls;
  };
  desc = save_desc();
  desc.write = [](void* user, const void*, size_t) {
    auto* failing = static_cast<Failing*>(user);
    ++failing->calls;
    return failing->left-- == 0 ? ENOSPC : 0;
  };
  Failing never{-1, 0};
  desc.user = &never;
  ASSERT_EQ(save(cache, {1}, desc), KVC_OK);
  for (int at = 0; at < never.calls; ++at) {
    Failing failing{at, 0};
    desc.user = &failing;
    kvc_error failure{};
    EXPECT_EQ(save(cache, {1}, desc, &failure), KVC_E_IO);
    EXPECT_EQ(failure.sys_code, ENOSPC);
    EXPECT_EQ(failing.calls, at + 1) << "and is not called again";
  }
  expect_sound(cache);
}

// Each is refused, by a status of damage, and changes nothing.
class DamagedFiles {
 public:
  DamagedFiles(Cache& cache, const std::vector<kvc_seq>& ids)
      : cache_(cache), ids_(ids), before_(take_snapshot(cache.get(), nullptr, groups())) {}

  void expect_refused(const Bytes& file, const std::string& what) {
    kvc_error error{};
    const kvc_status status = load(cache_, ids_, file, &error);
    const bool is_damage =
        status == KVC_E_CORRUPT || status == KVC_E_INVALID_ARGUMENT || status == KVC_E_VERSION;
    ASSERT_TRUE(is_damage) << what << ": " << kvc_status_name(status) << " " << error.message;
    ASSERT_NE(error.message[0], '\0') << what;
    const std::string change = difference(before_, take_snapshot(cache_.get(), nullptr, groups()));
    ASSERT_EQ(change, "") << what;
    const kvc_load_desc desc = load_desc(file);
    size_t len = 0;
    ASSERT_EQ(kvc_state_file_describe(&desc, nullptr, &len, nullptr), status) << what;
  }

 private:
  size_t groups() const { return static_cast<size_t>(plan_of(cache_.plan()).num_groups); }

  Cache& cache_;
  std::vector<kvc_seq> ids_;
  Snapshot before_;
};

TEST(StateFiles, EveryTruncationAndEveryFlippedBitIsRefused) {
  AllKinds model;
  Cache cache(model.net.config);
  append_pattern(cache, 1, 7, 41, 3);
  Bytes file = saved(cache, {1}, "a model");
  DamagedFiles damaged(cache, {2});
  for (size_t size = 0; size < file.size(); ++size) {
    const Bytes part(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(size));
    ASSERT_NO_FATAL_FAILURE(damaged.expect_refused(part, std::to_string(size) + " bytes"));
  }
  for (size_t bit = 0; bit < file.size() * 8; ++bit) {
    file[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    ASSERT_NO_FATAL_FAILURE(damaged.expect_refused(file, "bit " + std::to_string(bit)));
    file[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
  }
  file.push_back(0);
  damaged.expect_refused(file, "a byte more");
  file.pop_back();
  EXPECT_EQ(load(cache, {2}, file), KVC_OK);
  EXPECT_EQ(pattern_difference(cache, 2, 41), "");
  expect_sound(cache);
}

TEST(StateFiles, AnotherLayoutIsRefusedByName) {
  const auto base = [] { return std::vector<kvc_layer>{attention_layer(), attention_layer(8)}; };
  Net net(base());
  Cache cache(net.config);
  append_pattern(cache, 1, 9, 7);
  const Bytes file = saved(cache, {1}, "llama");
  const auto refuses = [&](Net& other, std::initializer_list<const char*> parts) {
    Cache target(other.config);
    EXPECT_NE(fingerprint(target.plan()), fingerprint(cache.plan()));
    expect_error(KVC_E_UNSUPPORTED, parts,
                 [&](kvc_error* err) { return load(target, {1}, file, err); });
    EXPECT_EQ(kvc_cache_is_empty(target.get()), 1);
  };
  Net heads(base());
  heads.layers[1].num_kv_heads = 2;
  refuses(heads, {"layers[1].num_kv_heads is 1 in the file, 2 in this cache"});
  Net pages(base());
  pages.config.page_size = 8;
  refuses(pages, {"page_size is 4 in the file, 8 in this cache"});
  Net window(base());
  window.layers[1].window = 9;
  refuses(window, {"groups[1].window is 8 in the file, 9 in this cache"});
  Net dtype(base());
  dtype.layers[0].k_dtype = dtype.layers[1].k_dtype = {kDLFloat, 16, 1};
  refuses(dtype, {"layers[0].k_dtype is float32 in the file, float16 in this cache"});
  Net more({attention_layer(), attention_layer(8), attention_layer()});
  refuses(more, {"num_layers is 2 in the file, 3 in this cache"});
  Net rotated(base());
  const kvc_rope rope = rope_of(KVC_ROPE_ON_APPEND);
  rotated.layers[0].rope = &rope;
  refuses(rotated, {"layers[0].rope is 0 in this cache, not set in the file"});

  // What is no part of the layout.
  Net same(base(), 64);
  same.config.pool_layout = KVC_POOL_PAGE_FIRST;
  same.layers[0].num_q_heads = 4;
  same.config.max_seqs = 5;
  Cache target(same.config);
  EXPECT_EQ(fingerprint(target.plan()), fingerprint(cache.plan()));
  EXPECT_EQ(fingerprint(target.plan()).size(), 81u);
  kvc_load_desc desc = load_desc(file);
  desc.model_id = "qwen";
  expect_error(KVC_E_INVALID_ARGUMENT, {"qwen", "llama"},
               [&](kvc_error* err) { return load(target, {1}, desc, err); });
  desc.model_id = "llama";
  expect_ok([&](kvc_error* err) { return load(target, {1}, desc, err); });
  EXPECT_EQ(pattern_difference(target, 1, 7), "");
}

TEST(StateFiles, ElementTypesAreConvertedOnRequest) {
  const auto model = [](DLDataType type) {
    std::vector<kvc_layer> layers{attention_layer(), attention_layer(8), mla_layer()};
    for (kvc_layer& layer : layers) layer.k_dtype = type;
    layers[0].num_kv_heads = 2;
    return layers;
  };
  std::vector<int64_t> shape{2, 3};
  const std::vector<DLDataType> types{{kDLFloat, 32, 1}, {kDLFloat, 16, 1}, {kDLBfloat, 16, 1}};
  for (const DLDataType from : types) {
    for (const DLDataType to : types) {
      SCOPED_TRACE(std::to_string(from.bits) + " to " + std::to_string(to.bits));
      std::vector<kvc_state_spec> first_states{state_spec(shape)};
      std::vector<kvc_state_spec> second_states{state_spec(shape, Elem::kBF16)};
      std::vector<kvc_layer> first_layers = model(from), second_layers = model(to);
      first_layers.push_back(state_layer(first_states));
      second_layers.push_back(state_layer(second_states));
      Net first_net(first_layers), second_net(second_layers);
      Cache first(first_net.config), second(second_net.config);
      append_pattern(first, 1, 13, 7);
      const Bytes file = saved(first, {1});
      kvc_load_desc desc = load_desc(file);
      EXPECT_EQ(load(second, {1}, desc), KVC_E_UNSUPPORTED);
      desc.flags = KVC_LOAD_CONVERT;
      expect_ok([&](kvc_error* err) { return load(second, {1}, desc, err); });
      EXPECT_EQ(pattern_difference(second, 1, 7), "") << "small integers are exact in every type";
      expect_sound(second);
    }
  }
  Net wide({attention_layer()}), narrow({attention_layer()});
  narrow.layers[0].k_dim = 6;
  narrow.layers[0].k_dtype = {kDLFloat, 16, 1};
  Cache first(wide.config), second(narrow.config);
  append_pattern(first, 1, 5, 7);
  const Bytes file = saved(first, {1});
  kvc_load_desc desc = load_desc(file);
  desc.flags = KVC_LOAD_CONVERT;
  expect_error(KVC_E_UNSUPPORTED, {"layers[0].k_dim is 8 in the file, 6 in this cache"},
               [&](kvc_error* err) { return load(second, {1}, desc, err); });
}

TEST(StateFiles, MisuseIsRefusedAndChangesNothing) {
  Net net({attention_layer()}, 8);
  Cache cache(net.config);
  append_pattern(cache, 1, 20, 7);  // 5 pages
  const Bytes file = saved(cache, {1});
  const Snapshot before = take_snapshot(cache.get(), nullptr, 1);
  const auto refused = [&](kvc_status status, std::initializer_list<const char*> parts,
                           const Call& call) {
    const kvc_error error = expect_error(status, parts, call);
    EXPECT_EQ(difference(before, take_snapshot(cache.get(), nullptr, 1)), "");
    return error;
  };
  const auto loads = [&](const std::vector<kvc_seq>& ids) {
    return [&, ids](kvc_error* err) { return load(cache, ids, file, err); };
  };
  EXPECT_EQ(refused(KVC_E_INVALID_ARGUMENT, {"n = 2", "1 sequences"}, loads({2, 3})).detail, 1);
  refused(KVC_E_INVALID_ARGUMENT, {"n = 0", "1 sequences"}, loads({}));
  refused(KVC_E_INVALID_ARGUMENT, {"-1"}, loads({-1}));
  refused(KVC_E_ALREADY_EXISTS, {"1"}, loads({1}));
  EXPECT_EQ(refused(KVC_E_NO_PAGES, {"5 pages", "2 pages"}, loads({2})).detail, 2);
  const auto desc_call = [&](kvc_load_desc desc) {
    return [&, desc](kvc_error* err) { return load(cache, {2}, desc, err); };
  };
  kvc_load_desc desc = load_desc();
  refused(KVC_E_INVALID_ARGUMENT, {"0 of desc.path"}, desc_call(desc));
  desc = load_desc(file);
  desc.path = "x";
  refused(KVC_E_INVALID_ARGUMENT, {"2 of desc.path"}, desc_call(desc));
  desc = load_desc(file);
  desc.flags = 4;
  refused(KVC_E_UNSUPPORTED, {"flags = 4"}, desc_call(desc));
  desc = load_desc();
  desc.path = "/nonexistent/file";
  EXPECT_EQ(refused(KVC_E_IO, {"/nonexistent/file"}, desc_call(desc)).sys_code, ENOENT);
  desc.path = "/";
  refused(KVC_E_IO, {"cannot open"}, desc_call(desc));
  desc.path = "/dev/null";
  refused(KVC_E_INVALID_ARGUMENT, {"no state file"}, desc_call(desc));
  const std::string long_id(256, 'x');
  desc = load_desc(file);
  desc.model_id = long_id.c_str();
  refused(KVC_E_INVALID_ARGUMENT, {"256 bytes"}, desc_call(desc));
  refused(KVC_E_INVALID_ARGUMENT, {"cache is NULL"}, [&](kvc_error* err) {
    const kvc_seq id = 2;
    const kvc_load_desc from = load_desc(file);
    return kvc_seq_load(nullptr, &from, 1, &id, nullptr, err);
  });

  kvc_save_desc to = save_desc();
  const auto saves = [&](const std::vector<kvc_seq>& ids) {
    return [&, ids](kvc_error* err) { return save(cache, ids, to, err); };
  };
  refused(KVC_E_INVALID_ARGUMENT, {"n = 0"}, saves({}));
  refused(KVC_E_INVALID_ARGUMENT, {"twice"}, saves({1, 1}));
  refused(KVC_E_NOT_FOUND, {"5"}, saves({5}));
  Bytes small(10);
  to.data = small.data();
  to.size = small.size();
  EXPECT_EQ(refused(KVC_E_BUFFER_TOO_SMALL, {"10"}, saves({1})).detail,
            static_cast<int64_t>(file.size()));
  EXPECT_EQ(small, Bytes(10)) << "nothing is written";

  Net tiny({attention_layer()}, 4);
  Cache narrow(tiny.config);
  expect_error(KVC_E_NEVER_FITS, {"5 pages", "4"},
               [&](kvc_error* err) { return load(narrow, {1}, file, err); });
  net.config.storage = KVC_STORAGE_NONE;
  Cache numbers(net.config);
  expect_error(KVC_E_UNSUPPORTED, {"storage"},
               [&](kvc_error* err) { return load(numbers, {1}, file, err); });
  ASSERT_EQ(cache.begin({1}, {1}), KVC_OK);
  EXPECT_EQ(load(cache, {2}, file), KVC_E_BUSY);
  EXPECT_EQ(save(cache, {1}, save_desc()), KVC_E_BUSY);
  cache.abort();
}

}  // namespace
}  // namespace kvc::test
