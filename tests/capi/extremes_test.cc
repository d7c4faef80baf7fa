// The ends of the integers in every argument. What comes of it is a status; that nothing overflows
// on the way is for the undefined-behaviour sanitizer to say, and that a refused call changes
// nothing is checked here.
#include <memory>

#include "tests/capi/layers.h"
#include "tests/capi/ops_fixture.h"

namespace kvc::test {
namespace {

constexpr int64_t kEnds[] = {
    INT64_MIN,     INT64_MIN + 1, int64_t{INT32_MIN} - 1, INT32_MIN,     -2,       -1, 0, 1,
    INT32_MAX - 1, INT32_MAX,     INT64_MAX / 4,          INT64_MAX - 1, INT64_MAX};

// Two layers, one with a window, and a sequence of 11 tokens.
struct World {
  World() {
    EXPECT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
    EXPECT_EQ(cache.begin({1}, {11}), KVC_OK);
    for (int32_t layer = 0; layer < 2; ++layer)
      EXPECT_EQ(kvc_kv_append(cache.forward, layer, k.dl(), v.dl(), nullptr), KVC_OK);
    cache.end();
  }
  static std::vector<kvc_layer> layers() { return {attention_layer(), attention_layer(5)}; }

  Net net{layers()};
  Cache cache{net.config};
  HostTensor k{Elem::kF32, {11, 1, kDim}}, v{Elem::kF32, {11, 1, kDim}};
};

// The call with every end, each on a world of its own: a call that succeeds may change it.
void at_all_ends(const char* what,
                 const std::function<kvc_status(kvc_cache*, int64_t, kvc_error*)>& call) {
  for (const int64_t value : kEnds) {
    SCOPED_TRACE(testing::Message() << what << " = " << value);
    World world;
    const Snapshot before = world.cache.snapshot();
    kvc_error error{};
    error.struct_size = sizeof error;
    const kvc_status status = call(world.cache.get(), value, &error);
    EXPECT_NE(status, KVC_E_INTERNAL) << error.message;
    if (status != KVC_OK) {
      EXPECT_STRNE(error.message, "");
      EXPECT_EQ(difference(before, world.cache.snapshot()), "");
    }
    EXPECT_EQ(kvc_cache_check(world.cache.get(), &error), KVC_OK) << error.message;
  }
}

TEST(Extremes, OfSequences) {
  at_all_ends("seq", [](kvc_cache* cache, int64_t seq, kvc_error* err) {
    return kvc_seq_add(cache, seq, err);
  });
  at_all_ends("seq", [](kvc_cache* cache, int64_t seq, kvc_error* err) {
    return kvc_seq_remove(cache, seq, err);
  });
  at_all_ends("pos", [](kvc_cache* cache, int64_t pos, kvc_error* err) {
    return kvc_seq_fork(cache, 1, 2, pos, err);
  });
  at_all_ends("n", [](kvc_cache* cache, int64_t n, kvc_error* err) {
    return kvc_seq_pop(cache, 1, n, err);
  });
  for (const int64_t other : kEnds) {
    at_all_ends("begin", [other](kvc_cache* cache, int64_t begin, kvc_error* err) {
      return kvc_seq_shift(cache, 1, begin, other, -1, err);
    });
    at_all_ends("delta", [other](kvc_cache* cache, int64_t delta, kvc_error* err) {
      return kvc_seq_shift(cache, 1, other == 1 ? 1 : 3, 3, delta, err);
    });
    at_all_ends("window", [other](kvc_cache* cache, int64_t window, kvc_error* err) {
      return kvc_seq_set_window(cache, 1, window, other, err);
    });
  }
  for (const kvc_seq_op op : {KVC_SEQ_FORK, KVC_SEQ_POP}) {
    at_all_ends("pos", [op](kvc_cache* cache, int64_t pos, kvc_error* err) {
      int64_t nearest = 0;
      return kvc_seq_can(cache, 1, op, pos, &nearest, err);
    });
  }
  at_all_ends("lengths", [](kvc_cache* cache, int64_t length, kvc_error* err) {
    const kvc_seq seqs[] = {1};
    int64_t missing = 0;
    return kvc_seq_can_append(cache, 1, seqs, &length, &missing, err);
  });
}

TEST(Extremes, OfForwards) {
  for (const int64_t other : {int64_t{1}, INT64_MAX, INT64_MIN}) {
    at_all_ends("append_lengths", [other](kvc_cache* cache, int64_t length, kvc_error* err) {
      const kvc_seq seqs[] = {1, 2};
      EXPECT_EQ(kvc_seq_add(cache, 2, nullptr), KVC_OK);
      const int64_t lengths[] = {length, other};
      kvc_forward_desc desc{};
      desc.struct_size = sizeof desc;
      desc.num_seqs = 2, desc.seqs = seqs, desc.append_lengths = lengths;
      kvc_forward* forward = nullptr;
      const kvc_status status = kvc_forward_begin(cache, &desc, &forward, err);
      EXPECT_EQ(kvc_forward_abort(forward, nullptr), KVC_OK) << "NULL where begin refused";
      EXPECT_EQ(kvc_seq_remove(cache, 2, nullptr), KVC_OK);
      return status;
    });
  }
  at_all_ends("layer", [](kvc_cache* cache, int64_t layer, kvc_error* err) {
    DLManagedTensorVersioned* exported = nullptr;
    const kvc_status status =
        kvc_export_pool(cache, static_cast<int32_t>(layer), KVC_POOL_K, &exported, err);
    if (exported != nullptr) exported->deleter(exported);
    return status;
  });
}

TEST(Extremes, OfTheWindowOfACall) {
  World world;
  ASSERT_EQ(world.cache.begin({1}, {2}), KVC_OK);
  HostTensor q(Elem::kF32, {2, kHeads, kDim}), k(Elem::kF32, {2, 1, kDim}),
      v(Elem::kF32, {2, 1, kDim}), out(Elem::kF32, {2, kHeads, kDim});
  for (const int64_t window : kEnds) {
    kvc_attn_opt opt{};
    opt.struct_size = sizeof opt;
    opt.window = window;
    EXPECT_EQ(
        kvc_attn(world.cache.forward, 0, &opt, q.dl(), k.dl(), v.dl(), out.dl(), nullptr, nullptr),
        window < 0 ? KVC_E_OUT_OF_RANGE : KVC_OK)
        << window;
  }
  world.cache.abort();
}

TEST(Extremes, OfCachesAndDebugging) {
  World world;
  at_all_ends("num_pages", [](kvc_cache* cache, int64_t pages, kvc_error* err) {
    return pages > INT32_MAX / 2 && pages <= INT32_MAX ? KVC_OK
                                                       : kvc_cache_resize(cache, pages, err);
  });
  at_all_ends("pages", [](kvc_cache* cache, int64_t pages, kvc_error* err) {
    int64_t freed = 0;
    return kvc_prefix_evict(cache, pages, &freed, err);
  });
  for (const int64_t other : kEnds) {
    at_all_ends("begin", [other](kvc_cache* cache, int64_t begin, kvc_error* err) {
      HostTensor k(Elem::kF32, {2, 1, kDim});
      return kvc_debug_get_layer(cache, 1, 0, begin, other, k.dl(), nullptr, nullptr, err);
    });
  }
  at_all_ends("begin", [](kvc_cache* cache, int64_t begin, kvc_error* err) {
    HostTensor k(Elem::kF32, {2, 1, kDim});
    return kvc_debug_set_layer(cache, 1, 0, begin, k.dl(), nullptr, nullptr, err);
  });
  at_all_ends("tokens", [&](kvc_cache*, int64_t tokens, kvc_error* err) {
    int64_t pages = 0;
    return kvc_plan_request_pages(world.cache.plan(), tokens, &pages, err);
  });
  at_all_ends("byte_budget", [&](kvc_cache*, int64_t bytes, kvc_error* err) {
    int64_t count = 0;
    const kvc_status status =
        kvc_plan_max_tokens(world.cache.plan(), static_cast<uint64_t>(bytes), &count, err);
    return status != KVC_OK
               ? status
               : kvc_plan_pages_for(world.cache.plan(), static_cast<uint64_t>(bytes), &count, err);
  });
}

TEST(Extremes, OfPlans) {
  using Change = std::function<void(kvc_config&, kvc_layer&, int64_t)>;
  for (const Change& change :
       {Change([](kvc_config&config, kvc_layer&, int64_t value) { config.num_pages = value; }),
        Change([](kvc_config&config, kvc_layer&, int64_t value) {
          config.byte_budget = static_cast<uint64_t>(value);
          config.num_pages = 0;
        }),
        Change([](kvc_config&config, kvc_layer&, int64_t value) { config.max_seq_len = value; }),
        Change([](kvc_config&config, kvc_layer&, int64_t value) {
          config.max_tokens_per_forward = value;
        }),
        Change([](kvc_config&config, kvc_layer&, int64_t value) {
          config.host_byte_budget = static_cast<uint64_t>(value);
        }),
        Change([](kvc_config&, kvc_layer&layer, int64_t value) { layer.window = value; }),
        Change([](kvc_config&, kvc_layer&layer, int64_t value) { layer.chunk = value; })}) {
    for (const int64_t value : kEnds) {
      Net net(World::layers());
      net.config.storage = KVC_STORAGE_NONE;
      std::vector<kvc_layer> own = World::layers();
      net.config.layers = own.data();
      change(net.config, own[0], value);
      kvc_error error{};
      error.struct_size = sizeof error;
      EXPECT_NE(plan_status(net.config, &error), KVC_E_INTERNAL) << value << ": " << error.message;
    }
  }
}

TEST(ExtremesOfFences, AnyTimeoutIsOne) {
  Net net(std::vector<kvc_layer>{attention_layer()});
  net.config.host_byte_budget = 1 << 16;
  Cache cache(net.config);
  EXPECT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
  const kvc_seq seqs[] = {1};
  kvc_fence* fence = nullptr;
  ASSERT_EQ(kvc_swap_out(cache.get(), 1, seqs, nullptr, &fence, nullptr), KVC_OK);
  for (const int64_t timeout : kEnds) {
    kvc_error error{};
    error.struct_size = sizeof error;
    const kvc_status status = kvc_fence_wait(fence, timeout, &error);
    EXPECT_TRUE(status == KVC_OK || status == KVC_E_INVALID_ARGUMENT)
        << timeout << ": " << error.message;
  }
  kvc_fence_destroy(fence);
}

TEST(ExtremesOfOperators, AnyWindowSlotAndPairIsServedOrRefused) {
  Random random(3);
  PoolShape shape{};
  Pool pool(shape);
  Tables tables(random, shape, {9, 5}, {2, 1});
  tables.fill(random, pool);
  kvc_op_table table = tables.c(false);
  HostTensor q(Elem::kF32, {3, 4, 8}), out(Elem::kF32, {3, 4, 8}), k(Elem::kF32, {2, 2, 8}),
      v(Elem::kF32, {2, 2, 8});
  Indices<int32_t> cuts({0, 2});
  HostTensor rows(Elem::kF32, {2, 4, 8}), rows_out(Elem::kF32, {2, 4, 8});
  for (const int64_t value : kEnds) {
    SCOPED_TRACE(value);
    kvc_attn_opt attn = attn_options();
    attn.window = value;
    kvc_op_opt opt = op_options();
    opt.attn = &attn;
    for (const kvc_status status :
         {kvc_op_attention_paged(pool.c(), &table, &opt, q.dl(), out.dl(), nullptr, nullptr),
          kvc_op_attention_ragged(cuts.dl(), nullptr, &opt, rows.dl(), k.dl(), v.dl(),
                                  rows_out.dl(), nullptr, nullptr)})
      EXPECT_EQ(status, value < 0 ? KVC_E_OUT_OF_RANGE : KVC_OK);
    Indices<int64_t> slots({value, -1});
    EXPECT_EQ(kvc_op_append(pool.c(), nullptr, slots.dl(), k.dl(), v.dl(), nullptr),
              value < shape.pages * shape.page_size ? KVC_OK : KVC_E_OUT_OF_RANGE);
    Indices<int64_t> from({value, 1}, {1, 2}), to({1, value}, {1, 2});
    EXPECT_NE(kvc_op_copy_pages(pool.c(), nullptr, from.dl(), nullptr), KVC_E_INTERNAL);
    EXPECT_NE(kvc_op_copy_pages(pool.c(), nullptr, to.dl(), nullptr), KVC_E_INTERNAL);
  }
}

// Every extent and stride of every tensor of a call, empty tensors included.
TEST(ExtremesOfTensors, ShapesStridesAndOffsetsAreServedOrRefused) {
  Indices<int32_t> cuts({0, 2}), none({0}), positions({0, 1});
  for (const int64_t rows : {int64_t{0}, int64_t{2}}) {
    for (const int64_t value : kEnds) {
      for (int dimension = 0; dimension < 3; ++dimension) {
        for (const int what : {0, 1, 2}) {
          SCOPED_TRACE(testing::Message() << rows << " rows, "
                                          << (what == 0   ? "shape"
                                              : what == 1 ? "stride"
                                                          : "offset")
                                          << "[" << dimension << "] = " << value);
          HostTensor q(Elem::kF32, {2, 2, 8}), k(Elem::kF32, {2, 2, 8}), v(Elem::kF32, {2, 2, 8}),
              out(Elem::kF32, {2, 2, 8});
          for (HostTensor* tensor : {&q, &k, &v, &out}) {
            DLTensor odd = *tensor->dl();
            int64_t odd_shape[] = {rows, 2, 8}, odd_strides[] = {16, 8, 1};
            // An empty tensor has a dimension of 0 whatever the others say.
            (what == 0 ? odd_shape : odd_strides)[dimension] =
                what == 2 ? odd_strides[dimension] : value;
            odd.shape = odd_shape;
            odd.strides = what == 0 && dimension == 1 ? nullptr : odd_strides;
            if (what == 2) odd.byte_offset = static_cast<uint64_t>(value) & ~uint64_t{3};
            // A valid pointer is the caller's business: addresses that pass every check are not
            // touched here.
            const bool is_far = value > (int64_t{1} << 57) || value < -(int64_t{1} << 57);
            if (rows != 0 && what == 2 && odd.byte_offset != 0 && !is_far) continue;
            if (rows != 0 && what == 1 && value != 1 && value != 0 && !is_far) continue;
            if (rows != 0 && what == 0 && dimension == 0 && value > 2) continue;
            const auto use = [&](HostTensor& one) { return &one == tensor ? &odd : one.dl(); };
            const kvc_status status =
                kvc_op_attention_ragged(rows == 0 ? none.dl() : cuts.dl(), nullptr, nullptr, use(q),
                                        use(k), use(v), use(out), nullptr, nullptr);
            EXPECT_NE(status, KVC_E_INTERNAL);
            if (tensor != &q) continue;
            kvc_rope rope = rope_on_append(KVC_ROPE_HALF, 8);
            kvc_op_opt opt = op_options();
            opt.rope = &rope, opt.positions = positions.dl();
            EXPECT_NE(kvc_op_rotate(&opt, &odd, out.dl(), nullptr), KVC_E_INTERNAL);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvc::test
