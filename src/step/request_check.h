// The checks of a batch request that need no pages: ids, lengths, trees, encoder tokens.
#pragma once

#include <vector>

#include "src/step/batch.h"

namespace kvc {

// Fills `entries`, new_state aside. Throws what Batch::measure() throws.
void check_request(const BatchRequest& request, const Batch::Context& context, uint64_t stamp,
                   std::vector<BatchEntry>* entries);

}  // namespace kvc
