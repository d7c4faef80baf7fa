// Pages that a step copies on write, by all CTAs of the step kernel but the first.
#pragma once

#include "kernels/cuda/step.h"
#include "kernels/cuda/step/config.h"
#include "kernels/cuda/step/entry.cuh"
#include "kernels/cuda/step/scan.cuh"

namespace kvc::cuda::step_kernels {

template <typename Word>
KVC_DEVICE void copy_words(std::byte* to, const std::byte* from, int64_t count) {
  auto* out = reinterpret_cast<Word*>(to);
  const auto* in = reinterpret_cast<const Word*>(from);
  for (int64_t i = threadIdx.x; i < count; i += step_config::kThreads) out[i] = in[i];
}

// All threads of the CTA. In vectors of 16 bytes where both ends can be brought to such a boundary, four at a time so that their loads overlap.
KVC_DEVICE void copy_bytes(std::byte* to, const std::byte* from, int64_t bytes) {
  constexpr int64_t kThreads = step_config::kThreads;
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
  const int64_t vectors = bytes / 16;
  for (int64_t i = threadIdx.x; i < vectors; i += 4 * kThreads) {
    Words4 x[4];
    for (int j = 0; j < 4; ++j) {
      if (i + j * kThreads < vectors) x[j] = load_16_stream(from + 16 * (i + j * kThreads));
    }
    for (int j = 0; j < 4; ++j) {
      if (i + j * kThreads < vectors) store_16(to + 16 * (i + j * kThreads), x[j]);
    }
  }
  copy_words<uint8_t>(to + 16 * vectors, from + 16 * vectors, bytes - 16 * vectors);
}

// The pairs of one kCopy change, parts of pages dealt out over CTAs 1 and up. `data`: of the change, in pinned memory.
KVC_DEVICE void copy_pages_of(const StepPages& pages, const StepChange& change, const uint32_t* data) {
  const int32_t group = change.kind_group & 0xffff;
  const int64_t units = static_cast<int64_t>(change.count) * pages.num_layers;
  for (int64_t unit = static_cast<int64_t>(blockIdx.x) - 1; unit < units; unit += gridDim.x - 1) {
    const StepPageSlot& part = pages.layers[unit % pages.num_layers];
    if (part.group != group) continue;
    const uint32_t* pair = data + 2 * (unit / pages.num_layers);
    const auto from = static_cast<int32_t>(load_host_word(pair));
    const auto to = static_cast<int32_t>(load_host_word(pair + 1));
    copy_bytes(part.base + to * part.page_stride, part.base + from * part.page_stride, part.bytes);
  }
}

// These CTAs read the pinned entry themselves: waiting for the first CTA's copy would make one CTA wait for another. `scratch` in shared
// memory: [33], then kThreads changes, then kThreads places of data.
KVC_DEVICE void do_copies(const StepPages& pages, const Entry& entry, int32_t* scratch) {
  constexpr auto kThreads = static_cast<int32_t>(step_config::kThreads);
  const uint32_t* changes = entry.changes();
  const uint32_t* data = entry.data();
  const auto thread = static_cast<int32_t>(threadIdx.x);
  int32_t* found = scratch + 40;
  for (int32_t first = 0; first < entry.num_changes; first += kThreads) {
    StepChange change{};
    bool is_copy = false;
    int32_t words = 0;
    if (first + thread < entry.num_changes) {
      change = load_host_change(changes + kStepChangeWords * (first + thread));
      words = change_words(change);
      is_copy = static_cast<ChangeKind>(change.kind_group >> 16) == ChangeKind::kCopy;
    }
    int32_t all_words = 0, num_found = 0;
    const int32_t at = cta_exclusive_sum(words, step_config::kWarps, scratch, all_words);
    sync_cta();
    const int32_t place = cta_exclusive_sum(is_copy ? 1 : 0, step_config::kWarps, scratch, num_found);
    if (is_copy) {
      found[3 * place] = change.kind_group;
      found[3 * place + 1] = change.count;
      found[3 * place + 2] = at;
    }
    sync_cta();
    for (int32_t i = 0; i < num_found; ++i)
      copy_pages_of(pages, {found[3 * i], 0, 0, found[3 * i + 1]}, data + found[3 * i + 2]);
    data += all_words;
    sync_cta();
  }
}

}  // namespace kvc::cuda::step_kernels
