// A host program's own pools, page tables and indices, for the operators. Memory that no sequence
// holds is NaN.
#pragma once

#include <algorithm>
#include <memory>
#include <numeric>
#include <vector>

#include "tests/capi/fixture.h"

namespace kvc::test {

// Contiguous integers as a tensor.
template <typename T>
class Indices {
 public:
  Indices(std::vector<T> values, std::vector<int64_t> shape)
      : values_(std::move(values)), shape_(std::move(shape)) {
    tensor_ = {.data = values_.data(),
               .device = {kDLCPU, 0},
               .ndim = static_cast<int32_t>(shape_.size()),
               .dtype = {kDLInt, 8 * sizeof(T), 1},
               .shape = shape_.data(),
               .strides = nullptr,
               .byte_offset = 0};
  }
  explicit Indices(std::vector<T> values)
      : Indices(values, {static_cast<int64_t>(values.size())}) {}
  Indices(const Indices&) = delete;
  Indices& operator=(const Indices&) = delete;

  DLTensor* dl() { return &tensor_; }
  T& operator[](int64_t i) { return values_[static_cast<size_t>(i)]; }

 private:
  std::vector<T> values_;
  std::vector<int64_t> shape_;
  DLTensor tensor_{};
};

struct PoolShape {
  kvc_op_layout layout = KVC_OP_NHD;
  Elem elem = Elem::kF32;
  int64_t pages = 24, heads = 2, page_size = 4, k_dim = 8, v_dim = 8;
  bool v_is_k = false;
  int64_t gap = 0;  // elements between any two rows, pages and heads
};

// One layer's pool. Poisoned at first.
class Pool {
 public:
  explicit Pool(const PoolShape& shape) : shape_(shape), k_(half(shape.k_dim)) {
    if (shape.layout != KVC_OP_MLA && !shape.v_is_k) v_ = half(shape.v_dim);
    pool_.struct_size = sizeof pool_;
    pool_.k = k_->dl();
    pool_.v = v_ == nullptr ? nullptr : v_->dl();
    pool_.layout = shape.layout;
  }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  const kvc_op_pool* c() const { return &pool_; }
  kvc_op_pool& edit() { return pool_; }
  const PoolShape& shape() const { return shape_; }
  HostTensor& k() { return *k_; }
  HostTensor& v() { return v_ == nullptr ? *k_ : *v_; }

  double get(HostTensor& tensor, int64_t slot, int64_t head, int64_t d) {
    return load_element(tensor.elem(), address(tensor, slot, head, d));
  }
  void set(HostTensor& tensor, double value, int64_t slot, int64_t head, int64_t d) {
    store_element(tensor.elem(), address(tensor, slot, head, d), round_to(tensor.elem(), value));
  }
  void fill_slot(Random& random, int64_t slot) {
    for (int64_t head = 0; head < shape_.heads; ++head) {
      for (int64_t d = 0; d < shape_.k_dim; ++d) set(*k_, random.symmetric(), slot, head, d);
      for (int64_t d = 0; v_ != nullptr && d < shape_.v_dim; ++d)
        set(*v_, random.symmetric(), slot, head, d);
    }
  }

 private:
  std::unique_ptr<HostTensor> half(int64_t dim) const {
    const PoolShape& s = shape_;
    std::vector<int64_t> shape;
    if (s.layout == KVC_OP_MLA) {
      shape = {s.pages, s.page_size, dim + s.gap};
    } else if (s.layout == KVC_OP_HND) {
      shape = {s.pages, s.heads, s.page_size, dim + s.gap};
    } else {
      shape = {s.pages, s.page_size, s.heads, dim + s.gap};
    }
    auto tensor = std::make_unique<HostTensor>(
        s.elem, shape,
        Placement{
            .row_gap = 3 * s.gap, .inner_gap = s.gap, .byte_offset = s.gap * bytes_of(s.elem)});
    // The rest of the row stays poison
    if (s.gap != 0) tensor->dl()->shape[shape.size() - 1] = dim;
    return tensor;
  }
  std::byte* address(HostTensor& tensor, int64_t slot, int64_t head, int64_t d) const {
    const int64_t page = slot / shape_.page_size, offset = slot % shape_.page_size;
    if (shape_.layout == KVC_OP_MLA) return tensor.at(page, offset, d);
    return shape_.layout == KVC_OP_HND ? tensor.at(page, head, offset, d)
                                       : tensor.at(page, offset, head, d);
  }

  PoolShape shape_;
  std::unique_ptr<HostTensor> k_, v_;
  kvc_op_pool pool_{};
};

// Page tables of sequences with these lengths over shuffled pages; rows of q per sequence.
class Tables {
 public:
  Tables(Random& random, const PoolShape& shape, const std::vector<int32_t>& lengths,
         const std::vector<int32_t>& rows)
      : page_size_(shape.page_size), lengths_(lengths), rows_(rows) {
    std::vector<int32_t> free(static_cast<size_t>(shape.pages));
    std::iota(free.begin(), free.end(), 0);
    random.shuffle(free);
    std::vector<int32_t> starts{0}, row_starts{0}, flat;
    size_t widest = 0;
    for (size_t i = 0; i < lengths.size(); ++i) {
      pages_.emplace_back();
      for (int64_t token = 0; token < lengths[i]; token += page_size_) {
        EXPECT_FALSE(free.empty()) << "the pool of this test is too small";
        pages_.back().push_back(free.back());
        free.pop_back();
      }
      flat.insert(flat.end(), pages_.back().begin(), pages_.back().end());
      starts.push_back(static_cast<int32_t>(flat.size()));
      row_starts.push_back(row_starts.back() + rows[i]);
      widest = std::max(widest, pages_.back().size());
    }
    const auto width = static_cast<int64_t>(widest) + 1;
    std::vector<int32_t> padded;
    for (const std::vector<int32_t>& pages : pages_) {
      padded.insert(padded.end(), pages.begin(), pages.end());
      padded.resize(padded.size() + static_cast<size_t>(width) - pages.size(), -77);
    }
    const auto count = static_cast<int64_t>(lengths.size());
    seq_lens = std::make_unique<Indices<int32_t>>(lengths);
    qo_indptr = std::make_unique<Indices<int32_t>>(row_starts);
    page_indptr = std::make_unique<Indices<int32_t>>(starts);
    page_indices = std::make_unique<Indices<int32_t>>(flat);
    block_table = std::make_unique<Indices<int32_t>>(padded, std::vector<int64_t>{count, width});
  }

  kvc_op_table c(bool padded, bool with_rows = true) {
    kvc_op_table table{};
    table.struct_size = sizeof table;
    table.seq_lens = seq_lens->dl();
    if (with_rows) table.qo_indptr = qo_indptr->dl();
    if (padded) {
      table.block_table = block_table->dl();
    } else {
      table.page_indptr = page_indptr->dl();
      table.page_indices = page_indices->dl();
    }
    return table;
  }
  int64_t count() const { return static_cast<int64_t>(lengths_.size()); }
  int64_t length(int64_t i) const { return lengths_[static_cast<size_t>(i)]; }
  int64_t rows(int64_t i) const { return rows_[static_cast<size_t>(i)]; }
  int64_t num_rows() const { return std::accumulate(rows_.begin(), rows_.end(), int64_t{0}); }
  int64_t num_keys() const { return std::accumulate(lengths_.begin(), lengths_.end(), int64_t{0}); }
  int64_t slot(int64_t i, int64_t key) const {
    return pages_[static_cast<size_t>(i)][static_cast<size_t>(key / page_size_)] * page_size_ +
           key % page_size_;
  }
  void fill(Random& random, Pool& pool) const {
    for (int64_t i = 0; i < count(); ++i) {
      for (int64_t key = 0; key < length(i); ++key) pool.fill_slot(random, slot(i, key));
    }
  }

  std::unique_ptr<Indices<int32_t>> seq_lens, qo_indptr, page_indptr, page_indices, block_table;

 private:
  int64_t page_size_;
  std::vector<int32_t> lengths_, rows_;
  std::vector<std::vector<int32_t>> pages_;
};

// What this machine and build have.
inline std::vector<kvc_cpu_isa> isas() {
  kvc_device_caps caps{};
  caps.struct_size = sizeof caps;
  EXPECT_EQ(kvc_device_query({kDLCPU, 0}, &caps, nullptr), KVC_OK);
  std::vector<kvc_cpu_isa> result;
  for (kvc_cpu_isa isa = KVC_CPU_ISA_REFERENCE; isa <= KVC_CPU_ISA_AVX512_BF16; ++isa) {
    if ((caps.isas >> isa & 1) != 0) result.push_back(isa);
  }
  return result;
}

inline kvc_op_opt op_options() {
  kvc_op_opt opt{};
  opt.struct_size = sizeof opt;
  return opt;
}
inline kvc_attn_opt attn_options() {
  kvc_attn_opt opt{};
  opt.struct_size = sizeof opt;
  return opt;
}
inline kvc_rope rope_on_append(kvc_rope_style style, int32_t rotary_dim) {
  kvc_rope rope{};
  rope.struct_size = sizeof rope;
  rope.mode = KVC_ROPE_ON_APPEND;
  rope.style = style;
  rope.rotary_dim = rotary_dim;
  return rope;
}

// Element d of a row of `x` turned at `position` as kvc_rope says, in double.
template <typename Read>
double turned(const kvc_rope& rope, int64_t begin, int64_t position, int64_t d, Read&& x) {
  const int64_t half = rope.rotary_dim / 2, inside = d - begin;
  if (inside < 0 || inside >= rope.rotary_dim) return x(d);
  const bool interleaved = rope.style == KVC_ROPE_INTERLEAVED;
  const int64_t pair = interleaved ? inside / 2 : inside % half;
  const int64_t first = begin + (interleaved ? 2 * pair : pair),
                second = first + (interleaved ? 1 : half);
  const double theta = rope.theta == 0 ? 10000.0 : rope.theta;
  const double angle =
      static_cast<double>(position) *
      std::pow(theta, -2.0 * static_cast<double>(pair) / static_cast<double>(rope.rotary_dim));
  return d == first ? x(first) * std::cos(angle) - x(second) * std::sin(angle)
                    : x(first) * std::sin(angle) + x(second) * std::cos(angle);
}

}  // namespace kvc::test
