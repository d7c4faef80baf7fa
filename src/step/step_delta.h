// The step delta: what a forward sends to a device, in the form of kernels/step_words.h.
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
  // `has_memory`: a device computes with the tokens, so it needs windows, positions, trees and
  // states. Otherwise only page tables are sent.
  explicit StepDelta(bool has_memory) : has_memory_(has_memory) {}

  // How much of the page tables will be sent.
  struct TableWork {
    int64_t num_entries = 0;  // Table entries.
    int64_t num_copies = 0;   // Page copies.
    int64_t num_changes = 0;  // Tables with new entries, and layer groups with copies.
  };
  // Makes room and returns how many words build() will make. The tables grow in between. Throws
  // std::bad_alloc.
  int64_t reserve(const std::vector<BatchEntry>& entries, const TableWork& work, const Spec& spec);
  // Builds the words of a batch that has its pages. Afterwards the tables count as sent.
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
