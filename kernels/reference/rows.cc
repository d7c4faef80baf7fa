// Append, gather, merge and copy, element by element.
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/reference/elements.h"
#include "kernels/reference/reference.h"

namespace kvc::kernels::reference {
namespace {

// Both elements of a pair are read before either is written: a row may be rotated in place.
void write_rotated(std::byte* to, DType to_type, const std::byte* from, DType from_type,
                   const Rotation& rotation, int64_t rotation_row, int64_t dim) {
  const int64_t half = rotation.rotary_dim / 2, begin = rotation.begin, end = begin + 2 * half;
  for (int64_t i = 0; i < half; ++i) {
    const int64_t first = begin + (rotation.interleaved != 0 ? 2 * i : i);
    const int64_t second = first + (rotation.interleaved != 0 ? 1 : half);
    const double x = rotated_element(from, from_type, rotation, rotation_row, first);
    const double y = rotated_element(from, from_type, rotation, rotation_row, second);
    write_element(to, to_type, first, x);
    write_element(to, to_type, second, y);
  }
  for (int64_t d = 0; d < dim; ++d) {
    if (half == 0 || d < begin || d >= end)
      write_element(to, to_type, d, read_element(from, from_type, d));
  }
}

// The row of an append, quantised. Returns how many elements saturated.
uint64_t append_quantised(const PagedRows& to, int64_t page, int64_t head, int64_t offset,
                          const std::byte* from, DType from_type, const Rotation& rotation,
                          int64_t rotation_row, int64_t dim) {
  std::byte* scale_at = to.scales.base == nullptr ? nullptr : scale_address(to, page, head, offset);
  return write_quantised(
      row_address(to, page, head, offset), scale_at, to.scales.shared, to.dtype, dim,
      [&](int64_t d) { return rotated_element(from, from_type, rotation, rotation_row, d); });
}

}  // namespace

uint64_t append(const AppendParams& params, int64_t row_begin, int64_t row_end) {
  uint64_t saturated = 0;
  for (int64_t row = row_begin; row < row_end; ++row) {
    const int64_t slot = params.slots[row];
    if (slot < 0) continue;
    const int64_t page = slot / params.page_size, offset = slot % params.page_size;
    for (int64_t head = 0; head < params.num_kv_heads; ++head) {
      if (params.k.base != nullptr) {
        const std::byte* from =
            params.k.base + row * params.k.token_stride + head * params.k.head_stride;
        if (is_quantised(params.k_pages.dtype)) {
          saturated += append_quantised(params.k_pages, page, head, offset, from, params.k.dtype,
                                        params.k_rotation, row, params.k_dim);
        } else {
          write_rotated(row_address(params.k_pages, page, head, offset), params.k_pages.dtype, from,
                        params.k.dtype, params.k_rotation, row, params.k_dim);
        }
      }
      if (params.v.base != nullptr) {
        const std::byte* from =
            params.v.base + row * params.v.token_stride + head * params.v.head_stride;
        if (is_quantised(params.v_pages.dtype)) {
          saturated += append_quantised(params.v_pages, page, head, offset, from, params.v.dtype,
                                        {}, row, params.v_dim);
          continue;
        }
        std::byte* to = row_address(params.v_pages, page, head, offset);
        for (int64_t d = 0; d < params.v_dim; ++d) {
          write_element(to, params.v_pages.dtype, d, read_element(from, params.v.dtype, d));
        }
      }
    }
  }
  return saturated;
}

void gather(const GatherParams& params, int64_t key_begin, int64_t key_end) {
  for (int64_t key = key_begin; key < key_end; ++key) {
    const int64_t page = page_at(params.pages, params.gap, key / params.page_size);
    const int64_t offset = key % params.page_size;
    for (int64_t head = 0; head < params.num_heads; ++head) {
      const std::byte* from = row_address(params.rows, page, head, offset);
      const double scale = row_scale(params.rows, page, head, offset);
      std::byte* to = params.out.base + (key - key_begin) * params.out.token_stride +
                      head * params.out.head_stride;
      const bool rotates = params.rotation.rotary_dim != 0 && key >= params.rotate_from;
      const Rotation rotation = rotates ? params.rotation : Rotation{};
      for (int64_t d = 0; d < params.dim; ++d) {
        write_element(to, params.out.dtype, d,
                      scale * rotated_element(from, params.rows.dtype, rotation, 0, d));
      }
    }
  }
}

void merge(const MergeParams& params, int64_t row_begin, int64_t row_end) {
  constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();
  for (int64_t row = row_begin; row < row_end; ++row) {
    for (int64_t head = 0; head < params.num_heads; ++head) {
      float& lse = params.lse[row * params.lse_token_stride + head];
      const double a = lse, b = params.other_lse[row * params.other_lse_token_stride + head];
      const double top = std::fmax(a, b);
      const bool empty = top == kMinusInfinity;
      const double weight = a == kMinusInfinity ? 0 : std::exp(a - top);
      const double other_weight = b == kMinusInfinity ? 0 : std::exp(b - top);
      std::byte* out =
          params.out.base + row * params.out.token_stride + head * params.out.head_stride;
      const std::byte* other = params.other_out.base + row * params.other_out.token_stride +
                               head * params.other_out.head_stride;
      for (int64_t d = 0; d < params.dim; ++d) {
        double sum = 0;
        if (weight != 0) sum += weight * read_element(out, params.out.dtype, d);
        if (other_weight != 0) sum += other_weight * read_element(other, params.other_out.dtype, d);
        write_element(out, params.out.dtype, d, empty ? 0.0 : sum / (weight + other_weight));
      }
      lse = static_cast<float>(empty ? kMinusInfinity : top + std::log(weight + other_weight));
    }
  }
}

void copy(std::byte* to, const std::byte* from, size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

}  // namespace kvc::kernels::reference
