// What a forward sends to a device, in the form that kernels/cuda/step.h describes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/plan/spec.h"

namespace kvc {

struct BatchEntry;
struct PageCopy;

class StepDelta {
 public:
  // `has_memory`: a device computes with the tokens, and has to know of windows, positions, trees
  // and states; else page tables are all that is told.
  explicit StepDelta(bool has_memory) : has_memory_(has_memory) {}

  // What there will be to say of page tables.
  struct TableWork {
    int64_t num_entries = 0;  // of tables
    int64_t num_copies = 0;   // of pages
    int64_t num_changes = 0;  // tables with new entries, and groups with copies
  };
  // Makes room, the only part that can fail. The tables have grown by the time of build(). Returns
  // how many words that will make. Throws std::bad_alloc.
  int64_t reserve(const std::vector<BatchEntry>& entries, const TableWork& work, const Spec& spec);
  // Of a batch that holds its pages. The tables count as sent then.
  void build(const std::vector<BatchEntry>& entries, int64_t num_rows,
             const std::vector<PageCopy>& copies, const Spec& spec) noexcept;

  const std::vector<int32_t>& words() const { return words_; }

 private:
  int32_t columns_of(const std::vector<BatchEntry>& entries, const Spec& spec) const noexcept;
  void add_columns(const std::vector<BatchEntry>& entries, int32_t columns,
                   const Spec& spec) noexcept;
  void add_changes(const std::vector<BatchEntry>& entries, const std::vector<PageCopy>& copies,
                   size_t num_groups) noexcept;

  bool has_memory_;
  std::vector<int32_t> words_;
};

}  // namespace kvc
