// The checks of a batch request that need no pages: ids, lengths, trees, encoder tokens.
#pragma once

#include <vector>

#include "src/step/batch.h"

namespace kvc {

// Fills `entries`, new_state aside. Throws what Batch::measure() throws.
void check_request(const BatchRequest& request, const Batch::Context& context, uint64_t stamp,
                   std::vector<BatchEntry>* entries);

// Throws NEVER_FITS where a sequence has no room for its states, even if it had the whole cache.
// Checkpoints that the cache made by itself give way.
void check_states_fit(const std::vector<BatchEntry>& entries, const Batch::Context& context);

}  // namespace kvc
