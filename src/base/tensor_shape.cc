#include "src/base/tensor_shape.h"

#include <algorithm>
#include <cstdarg>

#include "src/base/error.h"
#include "src/base/print.h"

namespace kvc {
namespace {

// Appends to a text of fixed size; what does not fit is left out.
class Writer {
 public:
  explicit Writer(ShapeText* out) : out_(out) { out_->text[0] = '\0'; }

  [[gnu::format(printf, 2, 3)]] void add(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const int wanted = vprint(out_->text + used_, sizeof(out_->text) - used_, format, arguments);
    va_end(arguments);
    if (wanted > 0) used_ = std::min(used_ + static_cast<size_t>(wanted), sizeof(out_->text) - 1);
  }

 private:
  ShapeText* out_;
  size_t used_ = 0;
};

// "[T = 3 or more, heads = 8, dim = 64]"
ShapeText expected_text(std::span<const Extent> expected) {
  ShapeText text;
  Writer writer(&text);
  for (size_t i = 0; i < expected.size(); ++i) {
    const Extent& extent = expected[i];
    writer.add("%s%s", i == 0 ? "[" : ", ", extent.symbol != nullptr ? extent.symbol : "");
    if (extent.rule == Extent::kAny) {
      if (extent.symbol == nullptr) writer.add("any");
      continue;
    }
    writer.add("%s%lld%s", extent.symbol != nullptr ? " = " : "", ll(extent.value),
               extent.rule == Extent::kAtLeast ? " or more" : "");
  }
  writer.add(expected.empty() ? "[]" : "]");
  return text;
}

}  // namespace

ShapeText shape_text(const DLTensor& tensor) {
  constexpr int kMostShown = 6;
  ShapeText text;
  Writer writer(&text);
  writer.add("[");
  for (int d = 0; tensor.shape != nullptr && d < std::min<int>(tensor.ndim, kMostShown); ++d)
    writer.add("%s%lld", d == 0 ? "" : ", ", ll(tensor.shape[d]));
  writer.add(tensor.ndim > kMostShown ? ", ...]" : "]");
  return text;
}

void check_rank(const DLTensor& tensor, const char* name, std::span<const Extent> expected) {
  if (tensor.ndim != static_cast<int>(expected.size())) {
    fail_with(KVC_E_SHAPE, tensor.ndim,
              "%s has %d dimensions, expected %zu: its shape is %s, expected %s", name, tensor.ndim,
              expected.size(), shape_text(tensor).text, expected_text(expected).text);
  }
  if (tensor.shape == nullptr) fail(KVC_E_INVALID_ARGUMENT, "%s.shape is NULL", name);
}

void check_extents(const DLTensor& tensor, const char* name, std::span<const Extent> expected) {
  for (size_t d = 0; d < expected.size(); ++d) {
    const int64_t extent = tensor.shape[d];
    const int64_t least = expected[d].rule == Extent::kAny ? 0 : expected[d].value;
    if (expected[d].rule == Extent::kEqual ? extent == least : extent >= least) continue;
    fail_with(KVC_E_SHAPE, extent, "%s has shape %s, expected %s", name, shape_text(tensor).text,
              expected_text(expected).text);
  }
}

}  // namespace kvc
