// A step in the host's pinned memory.
#pragma once

#include "kernels/cuda/ptx/ptx.cuh"
#include "kernels/cuda/step.h"

namespace kvc::cuda::step_kernels {

constexpr int32_t kStepChangeWords = sizeof(StepChange) / 4;

// Words per sequence of all columns.
KVC_HD int32_t column_words(int32_t columns) {
  int32_t words = 3;
  if (columns & kColumnWindow) words += 2;
  if (columns & kColumnOffset) words += 1;
  if (columns & kColumnCross) words += 2;
  if (columns & kColumnState) words += 2;
  if (columns & kColumnLength) words += 1;
  if (columns & kColumnLong) words += 1;
  return words;
}

struct Entry {
  const uint32_t* words;  // Pinned: the entry of the ring, or the long step that it points to.
  int32_t num_sequences;
  int32_t num_rows;
  int32_t columns;
  int32_t num_copies;  // The first changes, of kind kCopy.
  int32_t num_changes;

  KVC_HD int32_t changes_at() const {
    return kStepHeaderWords + num_sequences * column_words(columns);
  }
  KVC_HD int32_t data_at() const { return changes_at() + kStepChangeWords * num_changes; }
  KVC_HD const uint32_t* changes() const { return words + changes_at(); }
  KVC_HD const uint32_t* data() const { return words + data_at(); }
};

// All threads of the CTA; one of them reads. `shared` [8] is free again after the next sync_cta().
// `first` (nullable) receives the first kFirstWords words of the entry in the same round trip to
// the host.
KVC_DEVICE Entry read_header(const uint32_t* in_ring, uint32_t* shared, int32_t* first,
                             int64_t first_words) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  if (4 * thread + 4 <= first_words || thread < 2) {
    const Words4 x = load_host_16(in_ring + 4 * thread);
    if (thread < 2) {
      for (int i = 0; i < 4; ++i) shared[4 * thread + i] = x.x[i];
    }
    if (4 * thread + 4 <= first_words) store_16(first + 4 * thread, x);
  }
  sync_cta();
  const uint32_t* words = in_ring;
  if (static_cast<int32_t>(shared[3]) == -1) {
    words = reinterpret_cast<const uint32_t*>(
        static_cast<uintptr_t>(uint64_t{shared[5]} << 32 | shared[4]));
    sync_cta();
    if (thread < kStepHeaderWords) shared[thread] = load_host_word(words + thread);
    sync_cta();
  }
  return {.words = words,
          .num_sequences = static_cast<int32_t>(shared[0]),
          .num_rows = static_cast<int32_t>(shared[1]),
          .columns = static_cast<int32_t>(shared[2] & ((1u << kStepCopiesShift) - 1)),
          .num_copies = static_cast<int32_t>(shared[2] >> kStepCopiesShift),
          .num_changes = static_cast<int32_t>(shared[3])};
}

}  // namespace kvc::cuda::step_kernels
