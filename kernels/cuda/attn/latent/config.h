// The shape of attn_latent, with the reasons for its numbers. Host and device.
#pragma once

#include <cstdint>

#include "kernels/target.h"

namespace kvc::cuda::latent {

// Absorbed MLA of DeepSeek-V2 and later, with one KV head. A row of 512 latent and 64 rotary
// elements is K, and its first 512 elements are V.
constexpr int32_t kKDim = 576;
constexpr int32_t kVDim = 512;

// 64 packed rows (heads x tokens) are the M of one wgmma. Two warpgroups share them: each holds
// half of the output columns, 128 registers per thread. In the producer warpgroup one warp issues
// TMA. A single ninth warp would not do, because ptxas assigns registers by whole warpgroups (168).
constexpr int32_t kTileRows = 64;
constexpr int32_t kConsumers = 2;
constexpr int32_t kThreads = 128 * (1 + kConsumers);
constexpr int32_t kProducerRegisters = 40;
constexpr int32_t kConsumerRegisters = 232;
constexpr int32_t kColumns = kVDim / kConsumers;
constexpr int32_t kKeyBlock = 64;
constexpr int32_t kOwnKeys = kKeyBlock / kConsumers;  // Keys whose scores one warpgroup computes.
constexpr int32_t kStages = 2;
// TMA boxes of 64 columns per row of a block. Each column has a barrier, so that scores begin with
// the first one.
constexpr int32_t kColumnBoxes = kKDim / 64;
// Fixed cost of a work item in key blocks: 72 KiB of queries, and the output. An estimate.
constexpr int32_t kItemCost = 3;

constexpr int32_t kQBytes = kTileRows * kKDim * 2;
constexpr int32_t kKBytes = kKeyBlock * kKDim * 2;
constexpr int32_t kPBytes = kTileRows * kKeyBlock * 2;
constexpr int32_t kScopeBytes = 80;
// Order in shared memory: queries, stages, probabilities, maxima or sums of rows [consumer][row],
// barriers (full of each column, and empty), an ItemScope per warpgroup.
constexpr int32_t kKAt = kQBytes;
constexpr int32_t kPAt = kKAt + kStages * kKBytes;
constexpr int32_t kRowsAt = kPAt + kPBytes;
constexpr int32_t kBarriersAt = kRowsAt + kConsumers * kTileRows * 4;
constexpr int32_t kScopesAt = kBarriersAt + kStages * (kColumnBoxes + 1) * 8;
constexpr int32_t kSharedBytes = kScopesAt + (1 + kConsumers) * kScopeBytes;
static_assert(kScopesAt % 16 == 0 && kSharedBytes <= 227 * 1024);

}  // namespace kvc::cuda::latent
