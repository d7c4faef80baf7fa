#include "src/capi/op_options.h"

#include "src/capi/sized_struct.h"
#include "src/plan/spec.h"

namespace kvc {
namespace {

void refuse_unused(bool is_set, const char* field, const char* function) {
  if (is_set)
    fail(KVC_E_INVALID_ARGUMENT, "%s is set, but %s does not use it: expected 0 or NULL", field,
         function);
}

void read_executor(const kvc_executor* executor, OpOptions* out) {
  if (executor == nullptr) return;
  out->executor = read_struct(executor, "opt.executor");
  if (out->executor.concurrency == nullptr || out->executor.parallel_for == nullptr) {
    fail(KVC_E_INVALID_ARGUMENT, "opt.executor->%s is NULL",
         out->executor.concurrency == nullptr ? "concurrency" : "parallel_for");
  }
}

void read_attn(OpOptions* out) {
  if (out->opt.full != 0 && out->opt.full != 1) {
    fail_with(KVC_E_INVALID_ARGUMENT, out->opt.full,
              "opt.full = %d, expected 0 (causal) or 1 (all keys)", out->opt.full);
  }
  if (out->opt.attn == nullptr) return;
  out->attn = read_struct(out->opt.attn, "opt.attn");
  refuse_extensions(out->attn.ext, "opt.attn");
  // Checked before anything is computed with it.
  if (out->attn.window < 0) {
    fail_with(KVC_E_OUT_OF_RANGE, out->attn.window,
              "opt.attn->window = %lld out of range: 0 to %lld",
              static_cast<long long>(out->attn.window), static_cast<long long>(kMaxSequenceLength));
  }
  if (out->attn.spans != nullptr)
    fail(KVC_E_UNSUPPORTED,
         "opt.attn->spans is set: operators have causal (full = 0) and full attention only");
  if (out->opt.full == 1 && out->attn.window != 0) {
    fail_with(KVC_E_UNSUPPORTED, out->attn.window,
              "opt.attn->window = %lld with opt.full = 1: a row that sees all keys has no window",
              static_cast<long long>(out->attn.window));
  }
}

}  // namespace

OpOptions read_op_options(const kvc_op_opt* opt, unsigned uses, const char* function) {
  OpOptions out;
  if (opt == nullptr) return out;
  out.opt = read_struct(opt, "opt");
  refuse_extensions(out.opt.ext, "opt");
  read_executor(out.opt.executor, &out);
  if ((uses & kUsesAttn) != 0) {
    read_attn(&out);
  } else {
    refuse_unused(out.opt.full != 0, "opt.full", function);
    refuse_unused(out.opt.attn != nullptr, "opt.attn", function);
  }
  if ((uses & kUsesRotation) == 0) {
    refuse_unused(out.opt.positions != nullptr, "opt.positions", function);
    refuse_unused(out.opt.rope != nullptr, "opt.rope", function);
  } else if (out.opt.rope != nullptr) {
    out.rope = read_struct(out.opt.rope, "opt.rope");
  }
  return out;
}

}  // namespace kvc
