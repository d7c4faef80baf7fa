// kvc_op_linear_step through the C ABI, against the recurrence of the header written out in double.
#include <algorithm>
#include <cmath>
#include <memory>
#include <thread>

#include "fixture.h"

namespace kvc::test {
namespace {

constexpr int64_t kValueHeads = 4, kKeyHeads = 2, kKeyDim = 6, kValueDim = 10;

// Three sequences of 1, 0 and 5 tokens; TOKEN_DECAY with DELTA.
struct LinearCall {
  explicit LinearCall(Elem elem = Elem::kF32, std::vector<int64_t> tokens_in = {1, 0, 5},
                      int64_t padding = 0)
      : tokens(std::move(tokens_in)) {
    linear.struct_size = sizeof linear;
    linear.flags = KVC_LINEAR_DELTA;
    linear.decay = KVC_DECAY_TOKEN;
    opt.struct_size = sizeof opt;
    const auto batch = static_cast<int64_t>(tokens.size());
    for (const int64_t count : tokens) total += count;
    Placement gaps;
    gaps.extra_rows = padding, gaps.row_gap = padding, gaps.inner_gap = padding;
    Placement no_gaps;
    no_gaps.extra_rows = padding;
    Placement state_gaps;
    state_gaps.row_gap = state_gaps.inner_gap = padding;
    Random random(17);
    const auto make = [&](std::unique_ptr<HostTensor>& tensor, Elem type,
                          std::vector<int64_t> shape, const Placement& placement, double scale) {
      tensor = std::make_unique<HostTensor>(type, std::move(shape), placement);
      tensor->fill_random(random, scale);
    };
    make(states, elem, {batch, kValueHeads, kKeyDim, kValueDim}, state_gaps, 1);
    make(before, elem, {batch, kValueHeads, kKeyDim, kValueDim}, state_gaps, 1);
    make(q, elem, {total, kKeyHeads, kKeyDim}, gaps, 1);
    make(k, elem, {total, kKeyHeads, kKeyDim}, gaps, 0.5);
    make(v, elem, {total, kValueHeads, kValueDim}, gaps, 1);
    make(beta, Elem::kF32, {total, kValueHeads}, gaps, 1);
    make(head_decay, Elem::kF32, {kValueHeads}, {}, 1);
    make(token_decay, Elem::kF32, {total, kValueHeads}, gaps, 1);
    make(channel_decay, Elem::kF32, {total, kValueHeads, kKeyDim}, gaps, 1);
    make(skip, Elem::kF32, {kValueHeads}, {}, 1);
    for (HostTensor* decay : {head_decay.get(), token_decay.get(), channel_decay.get()}) {
      decay->for_each([&](int64_t i, int64_t j, int64_t c, int64_t) {
        decay->set(-std::fabs(decay->get(i, j, c)), i, j, c);
      });
    }
    out = std::make_unique<HostTensor>(Elem::kF32,
                                       std::vector<int64_t>{total, kValueHeads, kValueDim}, gaps);
    indptr = std::make_unique<HostTensor>(Elem::kI32, std::vector<int64_t>{batch + 1});
    int64_t end = 0;
    indptr->set(0, 0);
    for (int64_t i = 0; i < batch; ++i)
      indptr->set(static_cast<double>(end += tokens[static_cast<size_t>(i)]), i + 1);
    before->for_each([&](int64_t b, int64_t h, int64_t i, int64_t d) {
      before->set(states->get(b, h, i, d), b, h, i, d);
    });
  }

  HostTensor* decay() {
    switch (linear.decay) {
      case KVC_DECAY_HEAD: return head_decay.get();
      case KVC_DECAY_TOKEN: return token_decay.get();
      case KVC_DECAY_CHANNEL: return channel_decay.get();
      default: return nullptr;
    }
  }
  kvc_status run(kvc_error* err) {
    return kvc_op_linear_step(&linear, &opt, indptr->dl(), states->dl(), q->dl(), k->dl(), v->dl(),
                              decay() == nullptr ? nullptr : decay()->dl(), beta->dl(), out->dl(),
                              err);
  }

  // The header's formula from `before`: outputs and states as they should be, within `limit`.
  void expect_recurrence(double limit, bool with_beta = true) {
    const double scale =
        linear.scale != 0 ? static_cast<double>(linear.scale) : 1 / std::sqrt(double{kKeyDim});
    int64_t t = 0;
    for (int64_t b = 0; b < before->size(0); ++b) {
      for (int64_t h = 0; h < kValueHeads; ++h) {
        double s[kKeyDim][kValueDim];
        for (int64_t i = 0; i < kKeyDim; ++i) {
          for (int64_t d = 0; d < kValueDim; ++d) s[i][d] = before->get(b, h, i, d);
        }
        const int64_t kh = h / (kValueHeads / kKeyHeads);
        for (int64_t row = t; row < t + tokens[static_cast<size_t>(b)]; ++row) {
          for (int64_t d = 0; d < kValueDim; ++d) {
            double predicted = 0, o = 0;
            for (int64_t i = 0; i < kKeyDim; ++i) {
              const double ln = linear.decay == KVC_DECAY_HEAD      ? head_decay->get(h)
                                : linear.decay == KVC_DECAY_TOKEN   ? token_decay->get(row, h)
                                : linear.decay == KVC_DECAY_CHANNEL ? channel_decay->get(row, h, i)
                                                                    : 0;
              s[i][d] *= std::exp(ln);
              predicted += s[i][d] * k->get(row, kh, i);
            }
            const double gate = with_beta ? beta->get(row, h) : 1;
            const double u = gate * (v->get(row, h, d) -
                                     ((linear.flags & KVC_LINEAR_DELTA) != 0 ? predicted : 0));
            for (int64_t i = 0; i < kKeyDim; ++i) {
              s[i][d] += k->get(row, kh, i) * u;
              o += s[i][d] * q->get(row, kh, i);
            }
            o = scale * o + (linear.skip != nullptr ? skip->get(h) * v->get(row, h, d) : 0);
            ASSERT_NEAR(out->get(row, h, d), o, 1e-5)
                << "row " << row << " head " << h << " element " << d;
          }
        }
        for (int64_t i = 0; i < kKeyDim; ++i) {
          for (int64_t d = 0; d < kValueDim; ++d)
            ASSERT_NEAR(states->get(b, h, i, d), s[i][d], limit)
                << "sequence " << b << " head " << h;
        }
      }
      t += tokens[static_cast<size_t>(b)];
    }
    EXPECT_TRUE(out->padding_untouched());
    EXPECT_TRUE(states->padding_untouched());
  }

  // Refused, and nothing was written.
  kvc_error expect_refused(kvc_status status, std::initializer_list<const char*> parts) {
    const kvc_error error = expect_error(status, parts, [&](kvc_error* err) { return run(err); });
    EXPECT_TRUE(states->same_bytes(*before));
    EXPECT_TRUE(out->is_untouched());
    return error;
  }

  std::vector<int64_t> tokens;
  int64_t total = 0;
  kvc_linear_opt linear{};
  kvc_op_opt opt{};
  std::unique_ptr<HostTensor> states, before, q, k, v, beta, head_decay, token_decay, channel_decay,
      skip, out, indptr;
};

TEST(OpLinearStep, EveryDecayWithAndWithoutDeltaFollowsTheFormula) {
  for (const kvc_decay decay :
       {KVC_DECAY_NONE, KVC_DECAY_HEAD, KVC_DECAY_TOKEN, KVC_DECAY_CHANNEL}) {
    for (const uint64_t flags : {0, int{KVC_LINEAR_DELTA}}) {
      SCOPED_TRACE("decay " + std::to_string(decay) + " flags " + std::to_string(flags));
      LinearCall call;
      call.linear.decay = decay, call.linear.flags = flags;
      expect_ok([&](kvc_error* err) { return call.run(err); });
      call.expect_recurrence(1e-5);
    }
  }
}

TEST(OpLinearStep, StridedPaddedAndNarrowTensorsAreTakenAsTheyAre) {
  for (const Elem elem : {Elem::kF32, Elem::kF16, Elem::kBF16}) {
    LinearCall call(elem, {2, 1, 40}, 3);
    expect_ok([&](kvc_error* err) { return call.run(err); });
    call.expect_recurrence(elem == Elem::kF32 ? 1e-5 : elem == Elem::kF16 ? 3e-3 : 3e-2);
  }
}

TEST(OpLinearStep, ScaleSkipAndInstructionSetAreTheCallers) {
  for (const kvc_cpu_isa isa : {KVC_CPU_ISA_REFERENCE, KVC_CPU_ISA_SCALAR}) {
    LinearCall call;
    call.linear.scale = 0.75f;
    call.linear.skip = call.skip->dl();
    call.opt.cpu_isa = isa;
    expect_ok([&](kvc_error* err) { return call.run(err); });
    call.expect_recurrence(1e-5);
  }
}

TEST(OpLinearStep, DefaultsAreOneTokenEachNoDecayNoDeltaNoGate) {
  LinearCall call(Elem::kF32, {1, 1});
  expect_ok([&](kvc_error* err) {
    return kvc_op_linear_step(nullptr, nullptr, nullptr, call.states->dl(), call.q->dl(),
                              call.k->dl(), call.v->dl(), nullptr, nullptr, call.out->dl(), err);
  });
  call.linear.flags = 0, call.linear.decay = KVC_DECAY_NONE;
  call.expect_recurrence(1e-5, false);
}

TEST(OpLinearStep, ABatchOfNoneDoesNothing) {
  LinearCall call(Elem::kF32, {});
  expect_ok([&](kvc_error* err) { return call.run(err); });
}

struct HostThreads {
  static int32_t concurrency(void*) { return 3; }
  static void parallel_for(void* user, int64_t num_tasks, void (*fn)(void*, int64_t, int32_t),
                           void* arg) {
    auto* self = static_cast<HostThreads*>(user);
    self->tasks += num_tasks;
    std::vector<std::thread> threads;
    for (int32_t worker = 0; worker < 3; ++worker) {
      threads.emplace_back([=] {
        for (int64_t task = worker; task < num_tasks; task += 3) fn(arg, task, worker);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  int64_t tasks = 0;
};

TEST(OpLinearStep, TheHostsThreadsGiveTheSameBits) {
  LinearCall alone(Elem::kF32, {1500, 1, 700}), shared(Elem::kF32, {1500, 1, 700});
  HostThreads host;
  kvc_executor executor{};
  executor.struct_size = sizeof executor;
  executor.user = &host;
  executor.concurrency = HostThreads::concurrency;
  executor.parallel_for = HostThreads::parallel_for;
  shared.opt.executor = &executor;
  expect_ok([&](kvc_error* err) { return alone.run(err); });
  expect_ok([&](kvc_error* err) { return shared.run(err); });
  EXPECT_GT(host.tasks, 1);
  EXPECT_TRUE(alone.out->same_bytes(*shared.out));
  EXPECT_TRUE(alone.states->same_bytes(*shared.states));
}

TEST(OpLinearStep, ASmallCallStaysOnTheCallersThread) {
  LinearCall call;
  HostThreads host;
  kvc_executor executor{sizeof executor, &host, HostThreads::concurrency,
                        HostThreads::parallel_for};
  call.opt.executor = &executor;
  expect_ok([&](kvc_error* err) { return call.run(err); });
  EXPECT_EQ(host.tasks, 0);
  call.expect_recurrence(1e-5);
}

TEST(OpLinearStep, MissingTensorsAreRefused) {
  LinearCall call;
  const auto with = [&](DLTensor* states, DLTensor* q, DLTensor* k, DLTensor* v, DLTensor* out) {
    return [=, &call](kvc_error* err) {
      return kvc_op_linear_step(&call.linear, &call.opt, call.indptr->dl(), states, q, k, v,
                                call.decay()->dl(), call.beta->dl(), out, err);
    };
  };
  DLTensor *states = call.states->dl(), *q = call.q->dl(), *k = call.k->dl(), *v = call.v->dl(),
           *out = call.out->dl();
  expect_error(KVC_E_INVALID_ARGUMENT, {"states is NULL"}, with(nullptr, q, k, v, out));
  expect_error(KVC_E_INVALID_ARGUMENT, {"q is NULL"}, with(states, nullptr, k, v, out));
  expect_error(KVC_E_INVALID_ARGUMENT, {"k is NULL"}, with(states, q, nullptr, v, out));
  expect_error(KVC_E_INVALID_ARGUMENT, {"v is NULL"}, with(states, q, k, nullptr, out));
  expect_error(KVC_E_INVALID_ARGUMENT, {"out is NULL"}, with(states, q, k, v, nullptr));
  EXPECT_TRUE(call.states->same_bytes(*call.before));
}

TEST(OpLinearStep, LinearOptionsOutOfTheirRangeAreRefused) {
  const auto expect = [](kvc_status status, std::initializer_list<const char*> parts,
                         auto&& change) {
    LinearCall call;
    change(call);
    call.expect_refused(status, parts);
  };
  expect(KVC_E_UNSUPPORTED, {"linear.flags", "0x4"}, [](LinearCall& c) { c.linear.flags = 4; });
  expect(KVC_E_UNSUPPORTED, {"linear.decay = 9"}, [](LinearCall& c) { c.linear.decay = 9; });
  expect(KVC_E_OUT_OF_RANGE, {"linear.state = 1"}, [](LinearCall& c) { c.linear.state = 1; });
  expect(KVC_E_OUT_OF_RANGE, {"linear.scale"}, [](LinearCall& c) { c.linear.scale = NAN; });
  expect(KVC_E_UNSUPPORTED, {"linear.reserved = 7"}, [](LinearCall& c) { c.linear.reserved = 7; });
  expect(KVC_E_SHAPE, {"linear.skip has shape [3], expected [n = 4]"}, [](LinearCall& c) {
    c.skip = std::make_unique<HostTensor>(Elem::kF32, std::vector<int64_t>{3});
    c.linear.skip = c.skip->dl();
  });
  expect(KVC_E_INVALID_ARGUMENT, {"linear->struct_size"},
         [](LinearCall& c) { c.linear.struct_size = 0; });
}

TEST(OpLinearStep, OperatorOptionsThatDoNotApplyAreRefused) {
  const auto expect = [](kvc_status status, std::initializer_list<const char*> parts,
                         auto&& change) {
    LinearCall call;
    change(call);
    call.expect_refused(status, parts);
  };
  static const kvc_attn_opt attn{};
  static const kvc_rope rope{};
  static const kvc_executor executor{sizeof(kvc_executor), nullptr, nullptr, nullptr};
  expect(KVC_E_INVALID_ARGUMENT, {"opt.full"}, [](LinearCall& c) { c.opt.full = 1; });
  expect(KVC_E_INVALID_ARGUMENT, {"opt.attn"}, [](LinearCall& c) { c.opt.attn = &attn; });
  expect(KVC_E_INVALID_ARGUMENT, {"opt.rope"}, [](LinearCall& c) { c.opt.rope = &rope; });
  expect(KVC_E_INVALID_ARGUMENT, {"opt.positions"},
         [](LinearCall& c) { c.opt.positions = c.indptr->dl(); });
  expect(KVC_E_OUT_OF_RANGE, {"opt.cpu_isa = 77"}, [](LinearCall& c) { c.opt.cpu_isa = 77; });
  expect(KVC_E_INVALID_ARGUMENT, {"opt.executor->concurrency"},
         [](LinearCall& c) { c.opt.executor = &executor; });
  expect(KVC_E_INVALID_ARGUMENT, {"opt", "struct_size"},
         [](LinearCall& c) { c.opt.struct_size = 3; });
}

TEST(OpLinearStep, DecayThatContradictsItsKindIsRefused) {
  LinearCall given;
  expect_error(KVC_E_INVALID_ARGUMENT, {"decay is set", "linear.decay = 0"}, [&](kvc_error* err) {
    given.linear.decay = KVC_DECAY_NONE;
    return kvc_op_linear_step(&given.linear, &given.opt, given.indptr->dl(), given.states->dl(),
                              given.q->dl(), given.k->dl(), given.v->dl(), given.token_decay->dl(),
                              nullptr, given.out->dl(), err);
  });
  expect_error(KVC_E_INVALID_ARGUMENT, {"decay is NULL", "linear.decay = 1"}, [&](kvc_error* err) {
    given.linear.decay = KVC_DECAY_HEAD;
    return kvc_op_linear_step(&given.linear, &given.opt, given.indptr->dl(), given.states->dl(),
                              given.q->dl(), given.k->dl(), given.v->dl(), nullptr, nullptr,
                              given.out->dl(), err);
  });
  LinearCall narrow;
  narrow.linear.decay = KVC_DECAY_CHANNEL;
  narrow.channel_decay =
      std::make_unique<HostTensor>(Elem::kF16, std::vector<int64_t>{6, kValueHeads, kKeyDim});
  narrow.expect_refused(KVC_E_DTYPE, {"decay is float16", "float32"});
  LinearCall per_head;
  per_head.linear.decay = KVC_DECAY_HEAD;
  per_head.head_decay =
      std::make_unique<HostTensor>(Elem::kF32, std::vector<int64_t>{kValueHeads - 1});
  per_head.expect_refused(KVC_E_SHAPE, {"decay has shape [3]", "n = 4"});
}

TEST(OpLinearStep, TensorsThatDoNotFitTheStatesAreRefused) {
  const auto expect = [](std::initializer_list<const char*> parts, auto&& change) {
    LinearCall call;
    change(call);
    call.expect_refused(KVC_E_SHAPE, parts);
  };
  const auto tensor = [](std::vector<int64_t> shape) {
    return std::make_unique<HostTensor>(Elem::kF32, shape);
  };
  expect({"q has shape [5, 2, 6], expected [T = 6 or more, heads = 2, dim = 6]"},
         [&](LinearCall& c) {
           c.q = tensor({5, kKeyHeads, kKeyDim});
         });
  expect({"q has shape [6, 3, 6]", "divisor"}, [&](LinearCall& c) {
    c.q = tensor({6, 3, kKeyDim});
  });
  expect({"q has shape [6, 2, 7]", "dim = 6"}, [&](LinearCall& c) {
    c.q = tensor({6, kKeyHeads, 7});
  });
  expect({"q has 2 dimensions"}, [&](LinearCall& c) { c.q = tensor({6, kKeyDim}); });
  expect({"k has shape [6, 4, 6]", "heads = 2"}, [&](LinearCall& c) {
    c.k = tensor({6, 4, kKeyDim});
  });
  expect({"v has shape [6, 4, 9]"}, [&](LinearCall& c) { c.v = tensor({6, kValueHeads, 9}); });
  expect({"beta has shape [6, 5]"}, [&](LinearCall& c) { c.beta = tensor({6, 5}); });
  expect({"decay has shape [4, 4]"}, [&](LinearCall& c) {
    c.token_decay = tensor({4, kValueHeads});
  });
  expect({"qo_indptr has shape [3], expected [n = 4 or more]"}, [&](LinearCall& c) {
    c.indptr = std::make_unique<HostTensor>(Elem::kI32, std::vector<int64_t>{3});
  });
  LinearCall flat;
  flat.states = tensor({3, kValueHeads, kKeyDim});
  expect_error(KVC_E_SHAPE, {"states has 3 dimensions"},
               [&](kvc_error* err) { return flat.run(err); });
  LinearCall empty;
  empty.states = tensor({3, 0, kKeyDim, kValueDim});
  expect_error(KVC_E_SHAPE, {"states has shape[1] = 0"},
               [&](kvc_error* err) { return empty.run(err); });
}

TEST(OpLinearStep, RowsThatRunBackwardsAreRefused) {
  LinearCall late;
  late.indptr->set(1, 0);
  late.expect_refused(KVC_E_INVALID_ARGUMENT, {"qo_indptr[0] = 1"});
  LinearCall backwards;
  backwards.indptr->set(-1, 2);
  backwards.expect_refused(KVC_E_INVALID_ARGUMENT, {"qo_indptr[2] = -1"});
}

TEST(OpLinearStep, OtherDevicesAndTypesAreRefused) {
  LinearCall device;
  device.v->dl()->device = {kDLCUDA, 0};
  device.expect_refused(KVC_E_DEVICE_MISMATCH, {"v lives on device type CUDA (2)"});
  LinearCall integer;
  integer.k = std::make_unique<HostTensor>(Elem::kI32, std::vector<int64_t>{6, kKeyHeads, kKeyDim});
  integer.expect_refused(KVC_E_DTYPE, {"k is int32"});
  LinearCall states;
  states.states = std::make_unique<HostTensor>(
      Elem::kI32, std::vector<int64_t>{3, kValueHeads, kKeyDim, kValueDim});
  expect_error(KVC_E_DTYPE, {"states is int32"}, [&](kvc_error* err) { return states.run(err); });
}

}  // namespace
}  // namespace kvc::test
