// Copies the copy-on-write pages of a step, by all CTAs of the step kernel but the first.
#pragma once

#include "kernels/cuda/step.h"
#include "kernels/cuda/step/config.h"
#include "kernels/cuda/step/entry.cuh"
#include "kernels/cuda/step/scan.cuh"

namespace kvc::cuda::step_kernels {

// Shared memory of a CTA that copies, behind the words that read_header uses.
struct CopiesShared {
  int32_t* changes;  // [kMaxLayerGroups] of StepChange.
  int32_t* pairs;    // [step_config::kPairs][2]

  KVC_HD explicit CopiesShared(int32_t* memory)
      : changes(memory + 40), pairs(changes + kStepChangeWords * kMaxLayerGroups) {}
  static constexpr uint32_t kBytes =
      4 * (40 + kStepChangeWords * kMaxLayerGroups + 2 * step_config::kPairs);
};

template <typename Word>
KVC_DEVICE void copy_words(std::byte* to, const std::byte* from, int64_t count) {
  auto* out = reinterpret_cast<Word*>(to);
  const auto* in = reinterpret_cast<const Word*>(from);
  // Words may cover a whole page; bytes mostly cover the few at its ends.
#pragma unroll(sizeof(Word) == 4 ? 4 : 1)
  for (int64_t i = threadIdx.x; i < count; i += step_config::kThreads) out[i] = in[i];
}

// All threads of the CTA. Copies vectors of 16 bytes where both ends can be aligned, four at a time
// so that their loads overlap.
KVC_DEVICE void copy_bytes(std::byte* to, const std::byte* from, int64_t bytes) {
  constexpr auto kThreads = static_cast<int32_t>(step_config::kThreads);
  const auto apart = (reinterpret_cast<uintptr_t>(to) ^ reinterpret_cast<uintptr_t>(from)) & 15;
  if (apart != 0) {
    const bool has_words = ((apart | reinterpret_cast<uintptr_t>(to)) & 3) == 0;
    const int64_t words = has_words ? bytes / 4 : 0;
    copy_words<uint32_t>(to, from, words);
    copy_words<uint8_t>(to + 4 * words, from + 4 * words, bytes - 4 * words);
    return;
  }
  int64_t head = static_cast<int64_t>(-reinterpret_cast<uintptr_t>(to) & 15);
  head = head < bytes ? head : bytes;
  copy_words<uint8_t>(to, from, head);
  to += head, from += head, bytes -= head;
  const auto vectors = static_cast<int32_t>(bytes / 16);
  for (auto i = static_cast<int32_t>(threadIdx.x); i < vectors; i += 4 * kThreads) {
    Words4 x[4];
    for (int j = 0; j < 4; ++j) {
      if (i + j * kThreads < vectors)
        x[j] = load_16_stream(from + int64_t{16} * (i + j * kThreads));
    }
    for (int j = 0; j < 4; ++j) {
      if (i + j * kThreads < vectors) store_16(to + int64_t{16} * (i + j * kThreads), x[j]);
    }
  }
  copy_words<uint8_t>(to + int64_t{16} * vectors, from + int64_t{16} * vectors, bytes % 16);
}

// All threads of the CTA. Reads words of pinned memory, each once. They are visible after the next
// sync_cta().
KVC_DEVICE void fetch(int32_t* shared, const uint32_t* pinned, int32_t count) {
  for (auto i = static_cast<int32_t>(threadIdx.x); i < count;
       i += static_cast<int32_t>(step_config::kThreads))
    shared[i] = static_cast<int32_t>(load_host_word(pinned + i));
}

// Copies `count` pairs (from, to) of a layer group. CTAs take the regions, layer by layer, in turn:
// `next` is this CTA's first one.
KVC_DEVICE void copy_pairs(const StepPages& pages, int32_t group, const int32_t* pairs,
                           int32_t count, int32_t& next) {
  const auto num_ctas = static_cast<int32_t>(gridDim.x) - 1;
  for (int32_t layer = 0; layer < pages.num_layers; ++layer) {
    const PageRegion& region = pages.layers[layer];
    if (region.group != group) continue;
    for (; next < count; next += num_ctas) {
      const int64_t from = pairs[2 * next], to = pairs[2 * next + 1];
      copy_bytes(region.base + to * region.page_stride, region.base + from * region.page_stride,
                 region.bytes);
    }
    next -= count;
  }
}

// These CTAs read the pinned entry themselves: otherwise they would wait for the first CTA's copy.
// There are two round trips to the host for any number of layers: the changes, and up to kPairs
// pairs at once.
KVC_DEVICE void copy_all(const StepPages& pages, const Entry& entry, const CopiesShared& shared) {
  constexpr int32_t kPairs = step_config::kPairs;
  fetch(shared.changes, entry.changes(), kStepChangeWords * entry.num_copies);
  sync_cta();
  const auto count_of = [&](int32_t change) {
    return shared.changes[kStepChangeWords * change + 3];
  };
  int32_t all = 0;
  for (int32_t change = 0; change < entry.num_copies; ++change) all += count_of(change);
  auto next = static_cast<int32_t>(blockIdx.x) - 1;
  int32_t change = 0, begin = 0;  // First pair of the change among all pairs.
  for (int32_t first = 0; first < all; first += kPairs) {
    const int32_t last = all - first < kPairs ? all : first + kPairs;
    fetch(shared.pairs, entry.data() + 2 * first, 2 * (last - first));
    sync_cta();
    for (int32_t at = first; at < last;) {
      const int32_t end = begin + count_of(change), until = end < last ? end : last;
      copy_pairs(pages, shared.changes[kStepChangeWords * change] & 0xffff,
                 shared.pairs + 2 * (at - first), until - at, next);
      at = until;
      if (at == end) begin = end, ++change;
    }
    sync_cta();  // The next pairs overwrite these.
  }
}

}  // namespace kvc::cuda::step_kernels
