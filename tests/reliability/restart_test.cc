// A process saves and dies; another one loads and goes on. What it then computes has the bits that
// the first one would have computed.
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "tests/capi/borrowed.h"
#include "tests/capi/state_files.h"
#include "tests/support/folder.h"

namespace kvc::test {
namespace {

namespace fs = std::filesystem;

Bytes read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void write_file(const std::string& path, const Bytes& bytes) {
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
}

// Runs `work` in a process of its own.
void in_other_process(const std::function<void()>& work) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    work();
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "the saving process failed";
}

// A model of all kinds of layers, rotated keys, and two types of storage.
struct Model {
  Model() {
    rope = rope_of(KVC_ROPE_ON_APPEND);
    for (kvc_layer& layer : layers) {
      const bool is_rotated =
          layer.kind == KVC_LAYER_ATTENTION && (layer.flags & KVC_LAYER_V_IS_K) == 0;
      if (is_rotated) layer.rope = &rope;
    }
    layers[1].k_dtype = {kDLBfloat, 16, 1};
    net = std::make_unique<Net>(layers, 96);
    net->config.max_cross_len = 8;
  }
  std::vector<int64_t> shape{2, 3};
  std::vector<kvc_state_spec> specs{state_spec(shape)};
  std::vector<kvc_layer> layers{attention_layer(),  attention_layer(8), attention_layer(0, 6),
                                mla_layer(),        joint_layer(),      cross_layer(),
                                state_layer(specs), shared_layer(0)};
  kvc_rope rope;
  std::unique_ptr<Net> net;
};

// [count][heads][dim]
struct RandomRows : HostTensor {
  RandomRows(std::mt19937_64& random, int64_t count, int64_t heads, int64_t dim)
      : HostTensor(Elem::kF32, {count, heads, dim}) {
    for_each([&](int64_t token, int64_t head, int64_t d, int64_t) {
      set(round_to(Elem::kF32, static_cast<double>(random() % 2048) / 1024 - 1), token, head, d);
    });
  }
};

void keep(HostTensor& rows, Bytes* out) {
  rows.for_each([&](int64_t token, int64_t head, int64_t d, int64_t) {
    const auto value = static_cast<float>(rows.get(token, head, d));
    const auto* bytes = reinterpret_cast<const uint8_t*>(&value);
    out->insert(out->end(), bytes, bytes + sizeof value);
  });
}

// One forward of the whole model: `count` tokens of a sequence, random inputs of `seed`. Appends
// every output to `out`.
void step(Cache& cache, const Model& model, kvc_seq seq, int64_t count, int64_t encoder,
          uint64_t seed, Bytes* out) {
  std::mt19937_64 random(seed);
  Request request{{seq}, {count}};
  if (encoder > 0) request.cross_lengths = {encoder};
  kvc_error error{};
  ASSERT_EQ(cache.begin_with(request, &error), KVC_OK) << error.message;
  const kvc_attn_opt opt = scaled();
  for (size_t l = 0; l < model.layers.size(); ++l) {
    const auto layer = static_cast<int32_t>(l);
    const kvc_layer_kind kind = model.layers[l].kind;
    if (kind == KVC_LAYER_STATE) {
      HostTensor state(Elem::kF32, {1, 2, 3});
      ASSERT_EQ(kvc_state_get(cache.forward, layer, 0, state.dl(), &error), KVC_OK)
          << error.message;
      keep(state, out);
      RandomRows next(random, 1, 2, 3);
      next.for_each([&](int64_t b, int64_t i, int64_t j, int64_t) {
        next.set(round_to(Elem::kF32, next.get(b, i, j) + 0.5 * state.get(b, i, j)), b, i, j);
      });
      ASSERT_EQ(kvc_state_set(cache.forward, layer, 0, next.dl(), &error), KVC_OK) << error.message;
      continue;
    }
    const bool is_mla = kind == KVC_LAYER_MLA;
    const bool is_joint = (model.layers[l].flags & KVC_LAYER_V_IS_K) != 0;
    const int64_t rows = kind == KVC_LAYER_CROSS ? encoder : count;
    const int64_t k_dim = is_mla ? kRank + kRopeDim : kDim;
    RandomRows q(random, count, kHeads, k_dim), k(random, rows, 1, k_dim),
        v(random, rows, 1, k_dim);
    HostTensor result(Elem::kF32, {count, kHeads, is_mla ? kRank : kDim});
    DLTensor* given_v = is_mla || is_joint ? nullptr : v.dl();
    kvc_status status = KVC_OK;
    if (kind == KVC_LAYER_CROSS)
      status = kvc_attn_cross(cache.forward, layer, &opt, q.dl(), rows > 0 ? k.dl() : nullptr,
                              rows > 0 ? v.dl() : nullptr, result.dl(), nullptr, &error);
    else if (kind == KVC_LAYER_SHARED)
      status = kvc_attn_shared_kv(cache.forward, 0, &opt, q.dl(), result.dl(), nullptr, &error);
    else
      status = kvc_attn(cache.forward, layer, &opt, q.dl(), k.dl(), given_v, result.dl(), nullptr,
                        &error);
    ASSERT_EQ(status, KVC_OK) << "layer " << l << ": " << error.message;
    keep(result, out);
  }
  cache.end();
}

// Both go on alike: several forwards, a fork, and one of the fork.
Bytes continuation(Cache& cache, const Model& model, kvc_seq first, kvc_seq second) {
  Bytes out;
  step(cache, model, first, 1, 0, 50, &out);
  step(cache, model, second, 3, 0, 51, &out);
  step(cache, model, first, 9, 0, 52, &out);
  EXPECT_EQ(kvc_seq_fork(cache.get(), first, 90, -1, nullptr), KVC_OK);
  step(cache, model, 90, 2, 0, 53, &out);
  return out;
}

TEST(Restart, AContinuationHasTheSameBitsAndNoTokenIsComputedAgain) {
  const Folder folder;
  const std::string file = folder.file("state"), expected = folder.file("expected");
  in_other_process([&] {
    Model model;
    Cache cache(model.net->config);
    Bytes ignored;
    ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
    step(cache, model, 1, 21, 5, 1, &ignored);
    ASSERT_EQ(kvc_seq_fork(cache.get(), 1, 2, -1, nullptr), KVC_OK);
    step(cache, model, 2, 4, 0, 2, &ignored);
    kvc_save_desc desc = save_desc();
    desc.path = file.c_str();
    ASSERT_EQ(save(cache, {1, 2}, desc), KVC_OK);
    write_file(expected, continuation(cache, model, 1, 2));
  });
  Model model;
  Cache cache(model.net->config);
  kvc_load_desc desc = load_desc();
  desc.path = file.c_str();
  expect_ok([&](kvc_error* err) { return load(cache, {7, 8}, desc, err); });
  EXPECT_EQ(length_of(cache, 7), 21);
  EXPECT_EQ(length_of(cache, 8), 25);
  const Bytes found = continuation(cache, model, 7, 8), wanted = read_file(expected);
  ASSERT_FALSE(found.empty());
  EXPECT_EQ(found, wanted);
  expect_sound(cache);
}

TEST(Restart, AWindowWithSinksGoesOnWithTheSameBits) {
  const Folder folder;
  const std::string file = folder.file("state"), expected = folder.file("expected");
  const auto make_model = [] {
    auto model = std::make_unique<Model>();
    model->layers = {attention_layer(), attention_layer()};
    model->layers[0].rope = &model->rope;
    model->net = std::make_unique<Net>(model->layers, 96);
    return model;
  };
  in_other_process([&] {
    const auto model = make_model();
    Cache cache(model->net->config);
    Bytes ignored;
    ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
    ASSERT_EQ(kvc_seq_set_window(cache.get(), 1, 9, 3, nullptr), KVC_OK);
    step(cache, *model, 1, 30, 0, 1, &ignored);
    ASSERT_EQ(kvc_seq_fork(cache.get(), 1, 2, -1, nullptr), KVC_OK);
    kvc_save_desc desc = save_desc();
    desc.path = file.c_str();
    ASSERT_EQ(save(cache, {1, 2}, desc), KVC_OK);
    write_file(expected, continuation(cache, *model, 1, 2));
  });
  const auto model = make_model();
  Cache cache(model->net->config);
  kvc_load_desc desc = load_desc();
  desc.path = file.c_str();
  expect_ok([&](kvc_error* err) { return load(cache, {1, 2}, desc, err); });
  EXPECT_EQ(continuation(cache, *model, 1, 2), read_file(expected));
}

// The bytes of the pages of a sequence in a layer, in their order.
Bytes stored_bytes(const Cache& cache, kvc_seq seq, int32_t layer) {
  DLManagedTensorVersioned *pool = nullptr, *pages = nullptr;
  EXPECT_EQ(kvc_export_pool(cache.get(), layer, KVC_POOL_BYTES, &pool, nullptr), KVC_OK);
  EXPECT_EQ(kvc_export_seq_pages(cache.get(), seq, 0, &pages, nullptr), KVC_OK);
  Bytes all;
  const auto* ids = static_cast<const int32_t*>(pages->dl_tensor.data);
  for (int64_t i = 0; i < pages->dl_tensor.shape[0]; ++i) {
    const auto* page = static_cast<const uint8_t*>(pool->dl_tensor.data) +
                       pool->dl_tensor.byte_offset + ids[i] * pool->dl_tensor.strides[0];
    all.insert(all.end(), page, page + pool->dl_tensor.shape[1]);
  }
  pool->deleter(pool);
  pages->deleter(pages);
  return all;
}

TEST(Restart, QuantisedRowsAndTheirScalesComeBackAsTheyWereStored) {
  struct Kind {
    kvc_quant quant;
    DLDataType type;
  };
  for (const Kind& kind : {Kind{KVC_QUANT_PER_TENSOR, {kDLFloat8_e4m3fn, 8, 1}},
                           Kind{KVC_QUANT_PER_TOKEN_HEAD, {kDLInt, 4, 1}},
                           Kind{KVC_QUANT_BLOCK16, {kDLFloat4_e2m1fn, 4, 1}}}) {
    SCOPED_TRACE("quant " + std::to_string(kind.quant));
    std::vector<kvc_layer> layers(2, attention_layer());
    for (kvc_layer& layer : layers) {
      layer.quant = kind.quant;
      layer.k_dtype = kind.type;
      layer.num_kv_heads = 1;
      layer.k_dim = layer.v_dim = 32;
    }
    Net net(layers, 32), other(layers, 32);
    const BorrowedPool first_pool(net.config), second_pool(other.config);
    Cache first(net.config), second(other.config);
    // Whole pages, whose bytes the test writes as a kernel of the host program would.
    ASSERT_EQ(kvc_seq_add(first.get(), 1, nullptr), KVC_OK);
    Request request{{1}, {12}};
    request.flags = KVC_FORWARD_PARTIAL;
    ASSERT_EQ(first.begin_with(request), KVC_OK);
    first.end();
    std::mt19937_64 random(9);
    for (const int32_t layer : {0, 1}) {
      DLManagedTensorVersioned* pool = nullptr;
      ASSERT_EQ(kvc_export_pool(first.get(), layer, KVC_POOL_BYTES, &pool, nullptr), KVC_OK);
      const DLTensor& tensor = pool->dl_tensor;
      for (int64_t page = 0; page < tensor.shape[0]; ++page) {
        auto* at =
            static_cast<uint8_t*>(tensor.data) + tensor.byte_offset + page * tensor.strides[0];
        for (int64_t i = 0; i < tensor.shape[1]; ++i) at[i] = static_cast<uint8_t>(random());
      }
      pool->deleter(pool);
    }
    const Bytes file = saved(first, {1});
    expect_ok([&](kvc_error* err) { return load(second, {4}, file, err); });
    for (const int32_t layer : {0, 1}) {
      const Bytes before = stored_bytes(first, 1, layer), after = stored_bytes(second, 4, layer);
      ASSERT_EQ(before.size(), after.size());
      // Gaps between the regions of a layer are nobody's: zeros in the file.
      int64_t different = 0;
      for (size_t i = 0; i < before.size(); ++i) {
        if (before[i] != after[i]) {
          EXPECT_EQ(after[i], 0);
          ++different;
        }
      }
      const kvc_layer_info info = layer_of(second, layer);
      EXPECT_GE(static_cast<int64_t>(before.size()) - different,
                static_cast<int64_t>(static_cast<double>(info.bytes_per_token) * 12 * 0.98));
    }
  }
}

}  // namespace
}  // namespace kvc::test
