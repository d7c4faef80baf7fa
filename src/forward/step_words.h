// What a forward sends to a device, in the form that kernels/cuda/step.h describes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/plan/spec.h"

namespace kvc {

struct BatchEntry;
struct PageCopy;

class StepWords {
 public:
  // `has_memory`: a device computes with the tokens, and has to know of windows, positions, trees and states; else page tables are
  // all that is told.
  explicit StepWords(bool has_memory) : has_memory_(has_memory) {}

  // Makes room, the only part that can fail. The tables have grown to `new_num_pages` by the time of build(). Throws std::bad_alloc.
  void reserve(const std::vector<BatchEntry>& entries, size_t num_table_words, size_t num_copies,
               size_t num_groups);
  // Of a batch that holds its pages. The tables count as sent then.
  void build(const std::vector<BatchEntry>& entries, int64_t num_rows, const std::vector<PageCopy>& copies,
             const Spec& spec) noexcept;

  const std::vector<int32_t>& words() const { return words_; }

 private:
  int32_t columns_of(const std::vector<BatchEntry>& entries, const Spec& spec) const noexcept;
  void add_columns(const std::vector<BatchEntry>& entries, int32_t columns, const Spec& spec) noexcept;
  void add_changes(const std::vector<BatchEntry>& entries, const std::vector<PageCopy>& copies,
                   size_t num_groups) noexcept;

  bool has_memory_;
  std::vector<int32_t> words_;
};

}  // namespace kvc
