// Moving rows between tensors and pages: append (with rotation), gather, the LSE merge of two
// outputs, page copies.
//
// Included by the isa_<name>.cc files after a vec_<isa>.h. transform_row is also how attention
// kernels load Q:
//   transform_row<From, To>(to, from, dim, rotation, rotation_row, scale)
//   load_query_row(params, rotation, packed_row, q_head, out)   Q rotated and scaled to k_dim
// floats.
#pragma once

namespace kvc::kernels::cpu {
namespace {

template <DType kFrom, DType kTo>
KVC_VEC_INLINE void convert_run(std::byte* to, const std::byte* from, int count, Vec scale) {
  constexpr int64_t kFromBytes = dtype_bytes(kFrom), kToBytes = dtype_bytes(kTo);
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    store_as<kTo>(to + i * kToBytes, mul(load_as<kFrom>(from + i * kFromBytes), scale));
  }
  if (i < count) {
    store_as_tail<kTo>(to + i * kToBytes,
                       mul(load_as_tail<kFrom>(from + i * kFromBytes, count - i), scale),
                       count - i);
  }
}

// x' = x*cos - y*sin, y' = x*sin + y*cos, then scaled; in fp32 whatever the storage types are.
template <DType kFrom, DType kTo>
KVC_VEC_INLINE void rotate_halves(std::byte* to, const std::byte* from, int half, const float* cos,
                                  const float* sin, Vec scale) {
  constexpr int64_t kFromBytes = dtype_bytes(kFrom), kToBytes = dtype_bytes(kTo);
  for (int i = 0; i < half; i += kLanes) {
    const int n = half - i;
    if (n >= kLanes) {
      const Vec x = load_as<kFrom>(from + i * kFromBytes),
                y = load_as<kFrom>(from + (half + i) * kFromBytes);
      const Vec c = mul(load(cos + i), scale), s = mul(load(sin + i), scale);
      store_as<kTo>(to + i * kToBytes, fnma(y, s, mul(x, c)));
      store_as<kTo>(to + (half + i) * kToBytes, fma(x, s, mul(y, c)));
    } else {
      const Vec x = load_as_tail<kFrom>(from + i * kFromBytes, n);
      const Vec y = load_as_tail<kFrom>(from + (half + i) * kFromBytes, n);
      const Vec c = mul(load_tail(cos + i, n), scale), s = mul(load_tail(sin + i, n), scale);
      store_as_tail<kTo>(to + i * kToBytes, fnma(y, s, mul(x, c)), n);
      store_as_tail<kTo>(to + (half + i) * kToBytes, fma(x, s, mul(y, c)), n);
    }
  }
}

template <DType kFrom, DType kTo>
KVC_VEC_INLINE void rotate_pairs(std::byte* to, const std::byte* from, int half, const float* cos,
                                 const float* sin, Vec scale) {
  constexpr int64_t kFromBytes = dtype_bytes(kFrom), kToBytes = dtype_bytes(kTo);
  for (int i = 0; i < half; i += kLanes) {
    const int n = half - i < kLanes ? half - i : kLanes;
    const int first_count = 2 * n < kLanes ? 2 * n : kLanes, second_count = 2 * n - first_count;
    const std::byte* source = from + 2 * i * kFromBytes;
    std::byte* target = to + 2 * i * kToBytes;
    Vec first, second, x, y;
    if (n == kLanes) {
      first = load_as<kFrom>(source), second = load_as<kFrom>(source + kLanes * kFromBytes);
    } else {
      first = load_as_tail<kFrom>(source, first_count);
      second = second_count > 0 ? load_as_tail<kFrom>(source + kLanes * kFromBytes, second_count)
                                : zero();
    }
    deinterleave(first, second, x, y);
    const Vec c = mul(n == kLanes ? load(cos + i) : load_tail(cos + i, n), scale);
    const Vec s = mul(n == kLanes ? load(sin + i) : load_tail(sin + i, n), scale);
    interleave(fnma(y, s, mul(x, c)), fma(x, s, mul(y, c)), first, second);
    if (n == kLanes) {
      store_as<kTo>(target, first), store_as<kTo>(target + kLanes * kToBytes, second);
    } else {
      store_as_tail<kTo>(target, first, first_count);
      if (second_count > 0) store_as_tail<kTo>(target + kLanes * kToBytes, second, second_count);
    }
  }
}

template <DType kFrom, DType kTo>
inline void transform_row(std::byte* to, const std::byte* from, int dim, const Rotation& rotation,
                          int64_t rotation_row, float scale) {
  constexpr int64_t kFromBytes = dtype_bytes(kFrom), kToBytes = dtype_bytes(kTo);
  int done = 0;
  if (rotation.rotary_dim > 0) {
    const int half = rotation.rotary_dim / 2;
    const float* cos = rotation.cos + rotation_row * half;
    const float* sin = rotation.sin + rotation_row * half;
    convert_run<kFrom, kTo>(to, from, rotation.begin, set1(scale));
    std::byte* target = to + rotation.begin * kToBytes;
    const std::byte* source = from + rotation.begin * kFromBytes;
    if (rotation.interleaved != 0) {
      rotate_pairs<kFrom, kTo>(target, source, half, cos, sin, set1(scale));
    } else {
      rotate_halves<kFrom, kTo>(target, source, half, cos, sin, set1(scale));
    }
    done = rotation.begin + rotation.rotary_dim;
  }
  convert_run<kFrom, kTo>(to + done * kToBytes, from + done * kFromBytes, dim - done, set1(scale));
}

inline void load_query_row(const AttnParams& params, const Rotation& rotation, int64_t packed_row,
                           int64_t q_head, float* out) {
  const std::byte* from =
      params.q.base + packed_row * params.q.token_stride + q_head * params.q.head_stride;
  with_dtype(params.q.dtype, [&](auto from_type) {
    transform_row<decltype(from_type)::value, DType::kF32>(reinterpret_cast<std::byte*>(out), from,
                                                           params.k_dim, rotation, packed_row,
                                                           params.q_scale);
  });
}

// Bits unchanged; rows are a few hundred bytes, for which a call of memcpy shows.
inline void copy_row(std::byte* to, const std::byte* from, int64_t bytes) {
  constexpr int64_t kBytes = static_cast<int64_t>(sizeof(Vec));
  int64_t i = 0;
  for (; i + kBytes <= bytes; i += kBytes) __builtin_memcpy(to + i, from + i, kBytes);
  if (i < bytes) __builtin_memcpy(to + i, from + i, static_cast<size_t>(bytes - i));
}

// Rows of one run: small enough that their inputs, cos and sin stay in the L1 cache while all heads
// are processed.
constexpr int64_t kAppendRun = 16;

// Tokens whose slots follow each other in one page.
struct AppendRun {
  int64_t first_row, count;
  int64_t page, offset;
  bool more;  // Tokens follow in the input.
};

// One tensor of a run, head by head: a head's rows lie together in the page, and while they are
// written the next head's lines are fetched for writing. The input is read with a stride then, so
// the next run's part is fetched as well. Same type and no rotation: the bits are copied, NaN
// payloads included.
template <DType kFrom, DType kTo>
uint64_t append_run(const AppendRun& run, const TokenRows& from, const PagedRows& to,
                    const Rotation& rotation, int num_heads, int dim) {
  const int64_t row_bytes = dim * dtype_bytes(kTo);
  const int64_t ahead_bytes = run.more ? dim * dtype_bytes(kFrom) : 0;
  const int64_t ahead = run.count * from.token_stride;
  for (int64_t head = 0; head < num_heads; ++head) {
    const std::byte* source =
        from.base + run.first_row * from.token_stride + head * from.head_stride;
    std::byte* target = row_address(to, run.page, head, run.offset);
    const int64_t next_head = head + 1 < num_heads ? to.head_stride : 0;
    for (int64_t i = 0; i < run.count;
         ++i, source += from.token_stride, target += to.token_stride) {
      for (int64_t byte = 0; byte < row_bytes; byte += kCacheLine)
        prefetch_to_write(target + next_head + byte);
      for (int64_t byte = 0; byte < ahead_bytes; byte += kCacheLine)
        prefetch_far(source + ahead + byte);
      if (kFrom == kTo && rotation.rotary_dim == 0) {
        copy_row(target, source, row_bytes);
        continue;
      }
      transform_row<kFrom, kTo>(target, source, dim, rotation, run.first_row + i, 1.0f);
    }
  }
  return 0;
}

// How many of the lanes saturate as elements.
template <DType kTo>
KVC_VEC_INLINE uint64_t count_saturated(Vec elements) {
  const uint32_t above = mask_bits(less(set1(largest_element(kTo)), elements));
  const uint32_t below = mask_bits(less(elements, set1(smallest_element(kTo))));
  return static_cast<uint64_t>(__builtin_popcount(above | below));
}

// Stores `dim` floats as a quantised row, see AppendParams. `scale_at` null: the scale is `shared`.
// Returns how many saturated: elements of a row with a scale of its own never do.
template <DType kTo>
uint64_t quantise_row(std::byte* to, const float* values, int dim, std::byte* scale_at,
                      float shared) {
  const auto values_at = [&](int d) {
    return dim - d < kLanes ? load_tail(values + d, dim - d) : load(values + d);
  };
  float scale = shared;
  if (scale_at != nullptr) {
    Vec largest = zero(), poison = zero();  // x - x is 0 but for Inf and NaN.
    for (int d = 0; d < dim; d += kLanes) {
      const Vec value = values_at(d);
      largest = max(abs(value), largest);
      poison = add(poison, sub(value, value));
    }
    const bool finite = mask_bits(mask_not(equal(poison, zero()))) == 0;
    scale = horizontal_max(largest) / largest_element(kTo);
    if (!(scale > kSmallestScale)) scale = kSmallestScale;
    if (!finite) scale = __builtin_nanf("");
    __builtin_memcpy(scale_at, &scale, sizeof scale);
    if (!finite) {
      __builtin_memset(to, 0, static_cast<size_t>(dim));
      return 0;
    }
  }
  const Vec divisor = set1(scale);
  uint64_t saturated = 0;
  int d = 0;
  for (; d + kLanes <= dim; d += kLanes) {
    const Vec elements = div(load(values + d), divisor);
    if (scale_at == nullptr) saturated += count_saturated<kTo>(elements);
    store_as<kTo>(to + d, elements);
  }
  if (d < dim) {
    const Vec elements = div(values_at(d), divisor);
    if (scale_at == nullptr) saturated += count_saturated<kTo>(elements);
    store_as_tail<kTo>(to + d, elements, dim - d);
  }
  return saturated;
}

// append_run for quantised rows. A head has few bytes in a page, so none are fetched ahead.
template <DType kFrom, DType kTo>
uint64_t quantise_run(const AppendRun& run, const TokenRows& from, const PagedRows& to,
                      const Rotation& rotation, int num_heads, int dim) {
  constexpr int kMaxDim = 1024;
  alignas(64) float values[kMaxDim];
  uint64_t saturated = 0;
  for (int64_t head = 0; head < num_heads; ++head) {
    for (int64_t i = 0; i < run.count; ++i) {
      transform_row<kFrom, DType::kF32>(
          reinterpret_cast<std::byte*>(values),
          from.base + (run.first_row + i) * from.token_stride + head * from.head_stride, dim,
          rotation, run.first_row + i, 1.0f);
      std::byte* scale_at =
          to.scales.base == nullptr ? nullptr : scale_address(to, run.page, head, run.offset + i);
      saturated += quantise_row<kTo>(row_address(to, run.page, head, run.offset + i), values, dim,
                                     scale_at, to.scales.shared);
    }
  }
  return saturated;
}

// Returns how many elements saturated.
using AppendRunFunction = uint64_t (*)(const AppendRun&, const TokenRows&, const PagedRows&,
                                       const Rotation&, int, int);

inline AppendRunFunction choose_append_run(DType from, DType to) {
  AppendRunFunction chosen = nullptr;
  with_dtype(from, [&](auto from_type) {
    with_stored_dtype(to, [&](auto to_type) {
      constexpr DType kFrom = decltype(from_type)::value, kTo = decltype(to_type)::value;
      if constexpr (is_quantised(kTo)) {
        chosen = quantise_run<kFrom, kTo>;
      } else {
        chosen = append_run<kFrom, kTo>;
      }
    });
  });
  return chosen;
}

inline uint64_t append(const AppendParams& params, int64_t row_begin, int64_t row_end) {
  const Rotation no_rotation{};
  const AppendRunFunction append_k = choose_append_run(params.k.dtype, params.k_pages.dtype);
  const AppendRunFunction append_v = choose_append_run(params.v.dtype, params.v_pages.dtype);
  uint64_t saturated = 0;
  for (int64_t row = row_begin; row < row_end;) {
    const int64_t slot = params.slots[row];
    if (slot < 0) {
      ++row;
      continue;
    }
    AppendRun run{row, 1, slot / params.page_size, slot % params.page_size, false};
    const int64_t longest =
        kAppendRun < params.page_size - run.offset ? kAppendRun : params.page_size - run.offset;
    while (run.count < longest && row + run.count < row_end &&
           params.slots[row + run.count] == slot + run.count) {
      ++run.count;
    }
    run.more = row + 2 * run.count <= row_end;
    if (params.k.base != nullptr) {
      saturated += append_k(run, params.k, params.k_pages, params.k_rotation, params.num_kv_heads,
                            params.k_dim);
    }
    if (params.v.base != nullptr) {
      saturated +=
          append_v(run, params.v, params.v_pages, no_rotation, params.num_kv_heads, params.v_dim);
    }
    row += run.count;
  }
  return saturated;
}

// Rows that lie together on both sides. A head's rows in a page are few enough that the processor
// fetches little of them by itself; 2 KiB ahead is the next head, or the next page's target.
inline void copy_rows(std::byte* to, const std::byte* from, int64_t bytes) {
  constexpr int64_t kLine = 64, kAhead = 2048;
  int64_t i = 0;
  for (; i + kLine <= bytes; i += kLine) {
    __builtin_prefetch(from + i + kAhead, 0, 3);
    __builtin_prefetch(to + i + kAhead, 1, 3);
    __builtin_memcpy(to + i, from + i, kLine);
  }
  __builtin_memcpy(to + i, from + i, static_cast<size_t>(bytes - i));
}

// Page by page and head by head: the rows of a head follow each other in a page (HND).
template <DType kFrom, DType kTo>
void gather_rows(const GatherParams& params, int64_t key_begin, int64_t key_end) {
  const int64_t page_size = params.page_size;
  const int64_t rotate_from = params.rotation.rotary_dim != 0 ? params.rotate_from : key_end;
  const int64_t source_stride = params.rows.token_stride, target_stride = params.out.token_stride;
  const int32_t dim = params.dim;
  const int64_t row_bytes = dim * dtype_bytes(kTo);
  const bool together = kFrom == kTo && source_stride == row_bytes && target_stride == row_bytes;
  int64_t run_end;
  for (int64_t run = key_begin; run < key_end; run = run_end) {
    const int64_t place = run / page_size, offset = run - place * page_size;
    run_end = key_end - run < page_size - offset ? key_end : run + page_size - offset;
    const int64_t page = page_at(params.pages, params.gap, place);
    for (int64_t head = 0; head < params.num_heads; ++head) {
      const std::byte* source = row_address(params.rows, page, head, offset);
      std::byte* target =
          params.out.base + (run - key_begin) * target_stride + head * params.out.head_stride;
      if (together && run_end <= rotate_from) {
        copy_rows(target, source, (run_end - run) * row_bytes);
        continue;
      }
      for (int64_t key = run; key < run_end; ++key) {
        const float scale =
            is_quantised(kFrom) ? row_scale(params.rows, page, head, offset + key - run) : 1.0f;
        if (key >= rotate_from) {
          transform_row<kFrom, kTo>(target, source, dim, params.rotation, 0, scale);
        } else if (kFrom == kTo) {
          copy_row(target, source, row_bytes);
        } else {
          convert_run<kFrom, kTo>(target, source, dim, set1(scale));
        }
        source += source_stride;
        target += target_stride;
      }
    }
  }
}

inline void gather(const GatherParams& params, int64_t key_begin, int64_t key_end) {
  with_stored_dtype(params.rows.dtype, [&](auto from_type) {
    with_dtype(params.out.dtype, [&](auto to_type) {
      gather_rows<decltype(from_type)::value, decltype(to_type)::value>(params, key_begin, key_end);
    });
  });
}

template <DType kType, DType kOtherType>
void merge_row(std::byte* out, const std::byte* other, int dim, float weight, float other_weight) {
  const Vec w = set1(weight), other_w = set1(other_weight);
  for (int d = 0; d < dim; d += kLanes) {
    const int n = dim - d < kLanes ? dim - d : kLanes;
    std::byte* to = out + d * dtype_bytes(kType);
    const std::byte* from = other + d * dtype_bytes(kOtherType);
    if (n == kLanes) {
      store_as<kType>(to, fma(w, load_as<kType>(to), mul(other_w, load_as<kOtherType>(from))));
    } else {
      const Vec sum =
          fma(w, load_as_tail<kType>(to, n), mul(other_w, load_as_tail<kOtherType>(from, n)));
      store_as_tail<kType>(to, sum, n);
    }
  }
}

inline void merge(const MergeParams& params, int64_t row_begin, int64_t row_end) {
  for (int64_t row = row_begin; row < row_end; ++row) {
    for (int64_t head = 0; head < params.num_heads; ++head) {
      float& lse = params.lse[row * params.lse_token_stride + head];
      const float other_lse = params.other_lse[row * params.other_lse_token_stride + head];
      std::byte* out =
          params.out.base + row * params.out.token_stride + head * params.out.head_stride;
      const std::byte* other = params.other_out.base + row * params.other_out.token_stride +
                               head * params.other_out.head_stride;
      // A part that saw nothing may hold anything: its rows are not read.
      if (lse == kMinusInfinity && other_lse == kMinusInfinity) {
        for (int d = 0; d < params.dim; d += kLanes) {
          const int n = params.dim - d < kLanes ? params.dim - d : kLanes;
          store_any(out + d * dtype_bytes(params.out.dtype), params.out.dtype, zero(), n);
        }
        continue;
      }
      if (other_lse == kMinusInfinity) continue;
      if (lse == kMinusInfinity) {
        with_dtype(params.other_out.dtype, [&](auto from_type) {
          with_dtype(params.out.dtype, [&](auto to_type) {
            convert_run<decltype(from_type)::value, decltype(to_type)::value>(
                out, other, params.dim, set1(1.0f));
          });
        });
        lse = other_lse;
        continue;
      }
      const double top = lse > other_lse ? lse : other_lse;
      const double weight = __builtin_exp(lse - top), other_weight = __builtin_exp(other_lse - top);
      const double sum = weight + other_weight;
      with_dtype(params.out.dtype, [&](auto type) {
        with_dtype(params.other_out.dtype, [&](auto other_type) {
          merge_row<decltype(type)::value, decltype(other_type)::value>(
              out, other, params.dim, static_cast<float>(weight / sum),
              static_cast<float>(other_weight / sum));
        });
      });
      lse = static_cast<float>(top + __builtin_log(sum));
    }
  }
}

// From 32 KiB on, non-temporal stores spare the read of the target lines and leave the caches to
// the working set.
inline void copy(std::byte* to, const std::byte* from, size_t bytes) {
  constexpr size_t kStreamFrom = 32 * 1024, kLine = 64;
  if (bytes == 0) return;  // The pointers may be null.
  if (bytes < kStreamFrom) {
    __builtin_memcpy(to, from, bytes);
    return;
  }
  const size_t head = (kLine - reinterpret_cast<uintptr_t>(to) % kLine) % kLine;
  __builtin_memcpy(to, from, head);
  const size_t lines_end = head + (bytes - head) / kLine * kLine;
  for (size_t i = head; i < lines_end; i += kLine) stream_64_bytes(to + i, from + i);
  stream_fence();
  __builtin_memcpy(to + lines_end, from + lines_end, bytes - lines_end);
}

}  // namespace
}  // namespace kvc::kernels::cpu
