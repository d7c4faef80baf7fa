// Reads a step from the host. See kernels/cuda/step.h.
#pragma once

#include "kernels/cuda/step.h"
#include "kernels/cuda/step/config.h"
#include "kernels/cuda/step/copies.cuh"
#include "kernels/cuda/step/entry.cuh"
#include "kernels/cuda/step/scan.cuh"
#include "kernels/cuda/step/tables.cuh"

namespace kvc::cuda::step_kernels {

// More than the first CTA needs: [33] sums, and [8] of the header.
constexpr uint32_t kSharedBytes = CopiesShared::kBytes;

// All threads of the CTA. Copies words [begin, end) of the entry to the device. Both addresses are
// 16-byte aligned: entries of the ring are, and the host aligns long steps likewise.
KVC_DEVICE void fetch_words(const StepState& state, const Entry& entry, int32_t begin,
                            int32_t end) {
  constexpr auto kThreads = static_cast<int32_t>(step_config::kThreads);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t whole = begin + (end - begin) / 4 * 4;
  for (int32_t i = begin + 4 * thread; i < whole; i += 4 * kThreads)
    store_16(state.words + i, load_host_16(entry.words + i));
  for (int32_t i = whole + thread; i < end; i += kThreads)
    state.words[i] = static_cast<int32_t>(load_host_word(entry.words + i));
}

// End of the data of all changes, once the changes lie on the device.
KVC_DEVICE int32_t end_of_data(const StepState& state, const Entry& entry, int32_t* scratch) {
  const int32_t* changes = state.words + entry.changes_at();
  int32_t words = 0;
  for (auto i = static_cast<int32_t>(threadIdx.x); i < entry.num_changes;
       i += static_cast<int32_t>(step_config::kThreads)) {
    const int32_t* from = changes + kStepChangeWords * i;
    words += change_words({from[0], from[1], from[2], from[3]});
  }
  int32_t total = 0;
  cta_exclusive_sum(words, step_config::kWarps, scratch, total);
  sync_cta();
  return entry.data_at() + total;
}

KVC_DEVICE void read_step(const StepState& state, const uint32_t* in_ring, int32_t* shared) {
  const int64_t first_words = state.words_capacity < step_config::kFirstWords
                                  ? state.words_capacity / 4 * 4
                                  : step_config::kFirstWords;
  const Entry entry =
      read_header(in_ring, reinterpret_cast<uint32_t*>(shared), state.words, first_words);
  const auto brought = entry.words == in_ring ? static_cast<int32_t>(first_words) : 0;
  if (entry.data_at() > brought) fetch_words(state, entry, brought, entry.data_at());
  sync_cta();
  const int32_t end = end_of_data(state, entry, shared);
  const int32_t known = entry.data_at() > brought ? entry.data_at() : brought;
  if (end > known) fetch_words(state, entry, known / 4 * 4, end);  // A few words are read twice.

  const int32_t cross_rows = write_sequences(state, entry, shared);
  sync_cta();  // Makes visible where rows begin, and the defaults that changes overwrite.
  apply_changes(state, entry, shared);
  // The changes are visible now: slots are looked up in the updated tables.
  write_rows(state, entry.num_sequences, entry.num_rows, false);
  write_rows(state, entry.num_sequences, cross_rows, true);
  if (threadIdx.x == 0) {
    state.counts[0] = entry.num_sequences;
    state.counts[1] = entry.num_rows;
    state.counts[2] = cross_rows;
    state.counts[3] = entry.columns;
    state.counts[4] = entry.num_changes;
    state.counts[5] = state.counts[6] = state.counts[7] = 0;
  }
}

// CTA 0 reads the step and writes the tables; the others copy pages. No CTA waits for another. The
// last CTA to finish moves on to the next entry, so all CTAs have found the same entry before.
__global__ void __launch_bounds__(step_config::kThreads)
    step_kernel(const __grid_constant__ StepState state, const __grid_constant__ StepPages pages) {
  auto* shared = reinterpret_cast<int32_t*>(cta_shared());
  const uint32_t number = *state.next_entry;
  const uint32_t* in_ring =
      state.ring + static_cast<int64_t>(number % kStepEntries) * kStepEntryWords;
  if (blockIdx.x == 0) {
    read_step(state, in_ring, shared);
  } else {
    const Entry entry = read_header(in_ring, reinterpret_cast<uint32_t*>(shared), nullptr, 0);
    if (entry.num_copies > 0) copy_all(pages, entry, CopiesShared(shared));
  }
  sync_cta();
  if (threadIdx.x == 0 && atomic_add_fenced(state.ctas_done, 1) == gridDim.x - 1) {
    *state.next_entry = number + 1;
    *state.ctas_done = 0;
    store_host_word(state.progress, number + 1);
  }
}

}  // namespace kvc::cuda::step_kernels
