// Context shift (kvc_seq_shift): tokens in the middle of a sequence go, those behind them move up.
#pragma once

#include <cstdint>

#include "kvcache.h"
#include "src/cache/cache_core.h"

namespace kvc {

// Drops tokens [begin, end) and moves the positions of those behind them by `delta`. Throws Error
// or std::bad_alloc; nothing has changed then. What is enqueued afterwards does not throw.
void shift_tokens(CacheCore& core, kvc_seq id, int64_t begin, int64_t end, int64_t delta);

// The nearest position, ties to the smaller one, where one token could be taken out; -1: none.
// `position` -1: the last token.
int64_t nearest_shift(const CacheCore& core, const Sequence& sequence, int64_t position);

}  // namespace kvc
