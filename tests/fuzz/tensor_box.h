// A DLTensor as a hostile but honest caller describes it: shape, strides, offset, type, device and
// rank may be anything, but where the description can be meant, the memory is there, exactly as
// much as it says, with guards around it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <vector>

#include "kvcache.h"
#include "tests/fuzz/error_box.h"
#include "tests/fuzz/guarded_memory.h"

namespace kvc::fuzz {

// Sums of products of hostile numbers.
__extension__ using Wide = __int128;

constexpr int kMaxRank = 6;

// What a call expects; the box gives it, or something near it.
struct Wanted {
  DLDataType dtype;
  std::vector<int64_t> shape;
};

class TensorBox {
 public:
  // One box per argument of a call; `block` is its memory.
  TensorBox(Input& input, GuardedBlock& block, const Wanted& wanted) {
    tensor_.device = {kDLCPU, 0};
    tensor_.dtype = wanted.dtype;
    tensor_.ndim = static_cast<int32_t>(wanted.shape.size());
    std::copy(wanted.shape.begin(), wanted.shape.end(), shape_.begin());
    set_compact_strides();
    has_strides_ = !input.one_in(3);
    for (int i = 0; i < 3 && input.one_in(4); ++i) change(input);
    place(input, block);
    tensor_.shape = shape_.data();
    tensor_.strides = has_strides_ ? strides_.data() : nullptr;
  }
  TensorBox(const TensorBox&) = delete;
  TensorBox& operator=(const TensorBox&) = delete;

  DLTensor* get() { return &tensor_; }
  // False: some library could believe a description whose memory is not there. Such a call is not
  // made.
  bool is_honest() const { return is_honest_; }
  bool is_changed() const { return is_changed_; }
  unsigned char* bytes() { return begin_; }
  size_t size() const { return size_; }

  // Writes elements in order of their addresses, as far as there are bytes.
  void fill(const void* from, size_t bytes) { std::memcpy(begin_, from, std::min(bytes, size_)); }
  void remember() { before_.assign(begin_, begin_ + size_); }
  bool is_as_before() const { return std::equal(before_.begin(), before_.end(), begin_); }
  // Bytes between the elements belong to somebody else.
  bool gaps_are_as_before() const {
    if (size_ == 0 || !is_described_) return is_as_before();
    std::vector<bool> is_element(size_);
    mark(0, origin_, is_element);
    for (size_t i = 0; i < size_; ++i) {
      if (!is_element[i] && before_[i] != begin_[i]) return false;
    }
    return true;
  }

 private:
  // Arithmetic on hostile numbers.
  template <typename Operation>
  static int64_t wrapped(int64_t a, int64_t b, Operation operation) {
    return static_cast<int64_t>(operation(static_cast<uint64_t>(a), static_cast<uint64_t>(b)));
  }

  void set_compact_strides() {
    int64_t stride = 1;
    for (int i = std::min<int>(tensor_.ndim, kMaxRank) - 1; i >= 0; --i) {
      strides_[static_cast<size_t>(i)] = stride;
      stride = wrapped(stride, shape_[static_cast<size_t>(i)], std::multiplies<uint64_t>());
    }
  }

  void change(Input& input) {
    static constexpr int64_t kNumbers[] = {
        0,  1,  2,   3,   4,    5,         7,         8,         16,
        17, 64, -1,  -2,  -8,   -16,       INT32_MAX, INT64_MAX, INT64_MIN,
        33, 12, 100, 255, 1024, 1LL << 32, 1LL << 40, 1LL << 61, -(1LL << 61)};
    const auto number = [&] { return kNumbers[input.choose(std::size(kNumbers))]; };
    const size_t axis = input.choose(static_cast<size_t>(std::clamp(tensor_.ndim, 1, kMaxRank)));
    is_changed_ = true;
    switch (input.choose(12)) {
      case 0: tensor_.ndim = static_cast<int32_t>(input.choose(kMaxRank + 1)); break;
      case 1: tensor_.ndim = static_cast<int32_t>(number()); break;
      case 2: shape_[axis] = number(); break;
      case 3:
        shape_[axis] =
            wrapped(shape_[axis], 1 + static_cast<int64_t>(input.choose(4)), std::plus<uint64_t>());
        set_compact_strides();
        break;
      case 4: strides_[axis] = number(); break;
      case 5:
        strides_[axis] = wrapped(strides_[axis], static_cast<int64_t>(input.choose(9)) - 4,
                                 std::plus<uint64_t>());
        break;
      case 6: strides_[axis] = wrapped(0, strides_[axis], std::minus<uint64_t>()); break;
      case 7:
        byte_offset_ =
            input.one_in(2) ? static_cast<uint64_t>(number()) : 4 * (1 + input.choose(8));
        break;
      case 8: tensor_.dtype.code = static_cast<uint8_t>(input.choose(20)); break;
      case 9: tensor_.dtype.bits = static_cast<uint8_t>(number()); break;
      case 10: tensor_.dtype.lanes = static_cast<uint16_t>(number()); break;
      default:
        if (input.one_in(2)) {
          tensor_.device = {static_cast<DLDeviceType>(input.choose(16)),
                            static_cast<int32_t>(number())};
        } else {
          is_null_ = true;
        }
    }
  }

  // Offsets of the first and the last byte that the description reaches, from its origin.
  bool reach(Wide* low, Wide* high) const {
    *low = 0;
    const Wide bits = static_cast<Wide>(tensor_.dtype.bits) * tensor_.dtype.lanes;
    const Wide element = (bits + 7) / 8;
    *high = element;
    Wide compact = 1;
    for (int i = tensor_.ndim - 1; i >= 0; --i) {
      const int64_t count = shape_[static_cast<size_t>(i)];
      if (count <= 0) return false;  // no elements, or nonsense
      const Wide stride =
          has_strides_ ? static_cast<Wide>(strides_[static_cast<size_t>(i)]) : compact;
      // Beyond this nothing is told apart any more, and a Wide would overflow.
      constexpr Wide kHuge = static_cast<Wide>(1) << 100;
      const long double rough = static_cast<long double>(stride) *
                                static_cast<long double>(count - 1) *
                                static_cast<long double>(element);
      const bool is_huge = std::abs(rough) > static_cast<long double>(kHuge);
      const Wide span = !is_huge ? stride * (count - 1) * element : rough < 0 ? -kHuge : kHuge;
      (span < 0 ? *low : *high) += span;
      if (compact < (static_cast<Wide>(1) << 60)) compact *= count;
    }
    return true;
  }

  void place(Input& input, GuardedBlock& block) {
    const bool at_end = !input.one_in(2);
    const bool has_rank = tensor_.ndim >= 0 && tensor_.ndim <= kMaxRank;
    Wide low = 0, high = 0;
    const bool has_elements = has_rank && reach(&low, &high);
    const Wide bytes = high - low;
    if (has_elements && bytes <= static_cast<Wide>(GuardedBlock::kBytes)) {
      size_ = static_cast<size_t>(bytes);
      is_described_ = true;
      origin_ = static_cast<int64_t>(-low);
    } else {
      // Beyond any address space it has to be refused; between the two it might be meant.
      is_honest_ = !has_elements || bytes > (static_cast<Wide>(1) << 64);
    }
    begin_ = block.take(size_, at_end, 0);
    tensor_.byte_offset = byte_offset_;
    // The origin lies byte_offset behind `data`, wherever that wraps to.
    tensor_.data = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(begin_) +
                                           static_cast<uintptr_t>(origin_) -
                                           static_cast<uintptr_t>(byte_offset_));
    if (is_null_) {
      tensor_.data = nullptr;
      tensor_.byte_offset = 0;
      is_described_ = false;
    }
  }

  void mark(int axis, int64_t offset, std::vector<bool>& is_element) const {
    const int64_t element = (tensor_.dtype.bits * tensor_.dtype.lanes + 7) / 8;
    if (axis == tensor_.ndim) {
      for (int64_t i = 0; i < element; ++i) is_element[static_cast<size_t>(offset + i)] = true;
      return;
    }
    int64_t stride = 1;
    if (has_strides_) {
      stride = strides_[static_cast<size_t>(axis)];
    } else {
      for (int i = axis + 1; i < tensor_.ndim; ++i) stride *= shape_[static_cast<size_t>(i)];
    }
    // Elements that lie on one another are marked once: enough to tell them from gaps.
    const int64_t count = stride == 0 ? 1 : shape_[static_cast<size_t>(axis)];
    for (int64_t i = 0; i < count; ++i) mark(axis + 1, offset + i * stride * element, is_element);
  }

  DLTensor tensor_{};
  std::array<int64_t, kMaxRank> shape_{}, strides_{};
  uint64_t byte_offset_ = 0;
  bool has_strides_ = true, is_null_ = false;
  bool is_honest_ = true, is_changed_ = false, is_described_ = false;
  int64_t origin_ = 0;
  unsigned char* begin_ = nullptr;
  size_t size_ = 0;
  std::vector<unsigned char> before_;
};

// The tensors of one call: made one after another, then looked at together.
class TensorSet {
 public:
  explicit TensorSet(Input& input) : input_(input) {}

  // nullptr now and then, where a call may be made without it or has to refuse that.
  DLTensor* add(const Wanted& wanted) {
    if (input_.one_in(12)) return has_null_ = true, nullptr;
    static std::array<GuardedBlock, 16> blocks;  // lives as long as the process: mapping is dear
    KVC_FUZZ_CHECK(boxes_.size() < blocks.size());
    boxes_.push_back(std::make_unique<TensorBox>(input_, blocks[boxes_.size()], wanted));
    return boxes_.back()->get();
  }
  TensorBox& last() { return *boxes_.back(); }
  bool are_honest() const {
    return std::all_of(boxes_.begin(), boxes_.end(),
                       [](const auto& box) { return box->is_honest(); });
  }
  bool are_as_wanted() const {
    return !has_null_ && std::none_of(boxes_.begin(), boxes_.end(),
                                      [](const auto& box) { return box->is_changed(); });
  }

  // Makes the call, unless some description cannot be backed by memory. A refused one has written
  // nothing; none writes between elements.
  template <typename Call>
  kvc_status run(ErrorBox& err, Call call) {
    if (!are_honest()) return KVC_E_INTERNAL;
    for (auto& box : boxes_) box->remember();
    const kvc_status status = call(err.get());
    err.check(status);
    for (auto& box : boxes_)
      KVC_FUZZ_CHECK(status == KVC_OK ? box->gaps_are_as_before() : box->is_as_before());
    return status;
  }

 private:
  Input& input_;
  std::vector<std::unique_ptr<TensorBox>> boxes_;
  bool has_null_ = false;
};

}  // namespace kvc::fuzz
