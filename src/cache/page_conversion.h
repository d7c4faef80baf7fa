// Pages and states of a file whose layout differs from a cache's in element types alone.
#pragma once

#include <cstddef>
#include <string>

#include "kernels/cpu/table.h"
#include "src/plan/layout.h"
#include "src/plan/plan.h"

namespace kvc {

class PageConversion {
 public:
  // `file_layout`: layout_text() of what is read, `name` for messages. Borrows the plan. Throws
  // UNSUPPORTED naming the first field that is no element type, or one of quantised storage.
  PageConversion(const Plan& plan, const std::string& file_layout, const char* name);

  // Of the file.
  const Layout& layout() const { return from_; }
  // One page or state, both on the host; what is no element becomes zero.
  void convert_page(size_t group, const std::byte* from, std::byte* to) const;
  void convert_state(const std::byte* from, std::byte* to) const;

 private:
  void convert(const std::byte* from, kernels::DType from_type, std::byte* to,
               kernels::DType to_type, int64_t count) const;

  const Plan* plan_;
  Spec spec_;  // The plan's, with the element types of the file.
  Layout from_;
  const kernels::cpu::KernelTable* kernels_;
};

}  // namespace kvc
