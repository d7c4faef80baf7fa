// The structs of kvcache.h, section "Operators", read by the sized-struct rules; what an operator
// does not use is refused by name.
#pragma once

#include "kvcache.h"

namespace kvc {

// Fields of kvc_op_opt beyond executor and cpu_isa that an operator uses.
enum OpUse : unsigned {
  kUsesAttn = 1,      // `full` and `attn`.
  kUsesRotation = 2,  // `rope` and `positions`.
};

struct OpOptions {
  kvc_op_opt opt{};  // Its pointers are the caller's, NULL or set.
  kvc_attn_opt attn{};
  kvc_rope rope{};
  kvc_executor executor{};

  const kvc_executor* host() const { return opt.executor == nullptr ? nullptr : &executor; }
  const kvc_rope* rotation() const { return opt.rope == nullptr ? nullptr : &rope; }
};

// `function` appears in messages. A NULL `opt` stands for all defaults. Throws INVALID_ARGUMENT,
// UNSUPPORTED or VERSION.
OpOptions read_op_options(const kvc_op_opt* opt, unsigned uses, const char* function);

}  // namespace kvc
