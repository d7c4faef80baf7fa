#include "src/base/overlap.h"

#include <algorithm>
#include <cstdlib>

#include "src/base/error.h"
#include "src/base/tensor.h"

namespace kvc {
namespace {

// Runs of bytes at regular distances: `bytes` from begin + sum of n[i] * steps[i].stride on, for
// all 0 <= n[i] < steps[i].count. The widest stride comes first. Addresses are numbers here: user
// addresses fit, and differences of pointers into different objects are undefined.
struct Lattice {
  struct Steps {
    int64_t stride, count;
  };
  static constexpr int kMostSteps = 8;

  bool is_empty = false;
  int64_t begin = 0;
  int64_t bytes = 0;  // Length of a run without gaps.
  int num_steps = 0;
  Steps steps[kMostSteps];
  // [i]: from the first to the last byte of what steps i and later make
  int64_t inner_span[kMostSteps + 1];
};

Lattice lattice_of(const TensorUse& use) {
  const DLTensor& tensor = *use.tensor;
  Lattice lattice;
  const int64_t element = element_bytes(tensor);
  lattice.begin = static_cast<int64_t>(reinterpret_cast<uintptr_t>(data_of(tensor)));
  lattice.bytes = element;
  for (int d = 0; d < tensor.ndim; ++d) {
    int64_t count = tensor.shape[d];
    if (d == use.row_dimension && use.rows >= 0) count = std::min(count, use.rows);
    if (count == 0) lattice.is_empty = true;
    if (lattice.is_empty) return lattice;
    int64_t stride = stride_of(tensor, d) * element;
    if (stride < 0) {
      lattice.begin += stride * (count - 1);
      stride = -stride;
    }
    if (count > 1 && stride > 0 && lattice.num_steps < Lattice::kMostSteps)
      lattice.steps[lattice.num_steps++] = {stride, count};
  }
  std::sort(lattice.steps, lattice.steps + lattice.num_steps,
            [](const Lattice::Steps& a, const Lattice::Steps& b) { return a.stride > b.stride; });
  while (lattice.num_steps > 0 && lattice.steps[lattice.num_steps - 1].stride <= lattice.bytes) {
    const Lattice::Steps& inner = lattice.steps[--lattice.num_steps];
    lattice.bytes += inner.stride * (inner.count - 1);
  }
  lattice.inner_span[lattice.num_steps] = lattice.bytes;
  for (int i = lattice.num_steps; i-- > 0;) {
    const Lattice::Steps& steps = lattice.steps[i];
    lattice.inner_span[i] = lattice.inner_span[i + 1] + steps.stride * (steps.count - 1);
  }
  return lattice;
}

// Whether what steps from `i` on of `a`, begun at `a_begin`, and steps from `j` on of `b` make have
// a byte in common. Each turn takes the wider steps apart and follows only those that come near the
// other side. Where both go on at the same stride, as slices of one buffer do, only the distance
// counts.
bool meet(const Lattice& a, int i, int64_t a_begin, const Lattice& b, int j, int64_t b_begin) {
  if (a_begin + a.inner_span[i] <= b_begin || b_begin + b.inner_span[j] <= a_begin) return false;
  if (i == a.num_steps && j == b.num_steps) return true;
  const bool takes_a =
      j == b.num_steps || (i < a.num_steps && a.steps[i].stride >= b.steps[j].stride);
  if (!takes_a) return meet(b, j, b_begin, a, i, a_begin);
  const Lattice::Steps& steps = a.steps[i];
  const bool is_alike = j < b.num_steps && b.steps[j].stride == steps.stride;
  const int64_t other_span = b.inner_span[is_alike ? j + 1 : j];
  // Step n of `a` against `b`; alike: step n of `a` ahead of the one of `b`.
  const int64_t first = is_alike ? 1 - b.steps[j].count : 0, last = steps.count - 1;
  const int64_t lowest = b_begin - a_begin - a.inner_span[i + 1] + 1,
                highest = b_begin - a_begin + other_span - 1;
  const auto floor_div = [](int64_t value, int64_t by) {
    return value / by - (value % by < 0 ? 1 : 0);
  };
  const int64_t begin = std::max(first, -floor_div(-lowest, steps.stride));
  const int64_t end = std::min(last, floor_div(highest, steps.stride));
  for (int64_t n = begin; n <= end; ++n) {
    if (meet(a, i + 1, a_begin + n * steps.stride, b, is_alike ? j + 1 : j, b_begin)) return true;
  }
  return false;
}

// From the first byte of a use to behind the last. Most tensors lie apart, and this is all that is
// asked of them.
struct Range {
  int64_t begin = 0, end = 0;
};

Range range_of(const TensorUse& use) {
  const DLTensor& tensor = *use.tensor;
  for (int d = 0; d < tensor.ndim; ++d) {
    if (tensor.shape[d] == 0) return {};  // the other extents need not be bounded
  }
  if (use.rows == 0) return {};
  int64_t compact = element_bytes(tensor), before = 0, behind = compact;
  const int64_t element = compact;
  for (int d = tensor.ndim - 1; d >= 0; --d) {
    const int64_t size = tensor.shape[d];
    const int64_t count = d == use.row_dimension && use.rows > 0 ? std::min(size, use.rows) : size;
    if (count > 1) {
      const int64_t reach =
          (tensor.strides != nullptr ? tensor.strides[d] * element : compact) * (count - 1);
      (reach < 0 ? before : behind) += reach;
    }
    compact *= size;
  }
  const auto first = static_cast<int64_t>(reinterpret_cast<uintptr_t>(data_of(tensor)));
  return {first + before, first + behind};
}

bool overlap(const TensorUse& a, const Range& a_range, const TensorUse& b, const Range& b_range) {
  if (a_range.end <= b_range.begin || b_range.end <= a_range.begin) return false;
  const Lattice left = lattice_of(a), right = lattice_of(b);
  return !left.is_empty && !right.is_empty && meet(left, 0, left.begin, right, 0, right.begin);
}

void refuse(const TensorUse& output, const Range& range, const TensorUse& other) {
  if (other.tensor == nullptr) return;
  const Range other_range = range_of(other);
  if (!overlap(output, range, other, other_range)) return;
  const auto number = [](int64_t address) { return static_cast<unsigned long long>(address); };
  fail(KVC_E_INVALID_ARGUMENT,
       "%s overlaps %s: %s lies in bytes [%#llx, %#llx), %s in [%#llx, %#llx), and an output must "
       "have memory "
       "of its own",
       output.name, other.name, output.name, number(range.begin), number(range.end), other.name,
       number(other_range.begin), number(other_range.end));
}

}  // namespace

bool overlap(const TensorUse& a, const TensorUse& b) {
  return a.tensor != nullptr && b.tensor != nullptr && overlap(a, range_of(a), b, range_of(b));
}

void refuse_overlaps(std::span<const TensorUse> outputs, std::span<const TensorUse> inputs) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].tensor == nullptr) continue;
    const Range range = range_of(outputs[i]);
    for (const TensorUse& input : inputs) refuse(outputs[i], range, input);
    for (const TensorUse& other : outputs.subspan(i + 1)) refuse(outputs[i], range, other);
  }
}

void refuse_overlap(const TensorUse& output, const TensorUse& other) {
  refuse_overlaps({&output, 1}, {&other, 1});
}

}  // namespace kvc
