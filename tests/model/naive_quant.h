// Quantised storage written once more, by arithmetic: elements of 8 bits with a scale per row, or
// one for all rows of a layer.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "kvcache.h"
#include "tests/model/host_tensor.h"

namespace kvc::test {

// kNone: each element by itself, as an Elem.
enum class Code { kNone, kInt8, kE4M3, kE5M2 };

struct NaiveStorage {
  Elem elem = Elem::kF32;
  Code code = Code::kNone;
  float shared = 0;  // The scale of all rows; 0: each row has one of its own.

  bool has_scales() const { return code != Code::kNone && shared == 0; }
};

inline DLDataType dl_type(const NaiveStorage& storage) {
  switch (storage.code) {
    case Code::kNone: return dl_type(storage.elem);
    case Code::kInt8: return {kDLInt, 8, 1};
    case Code::kE4M3: return {kDLFloat8_e4m3fn, 8, 1};
    default: return {kDLFloat8_e5m2, 8, 1};
  }
}

inline std::string name_of(const NaiveStorage& storage) {
  static const char* const names[] = {"", "int8", "e4m3", "e5m2"};
  if (storage.code == Code::kNone) return name_of(storage.elem);
  return names[static_cast<int>(storage.code)] +
         (storage.shared == 0 ? std::string() : "*" + std::to_string(storage.shared));
}

inline double largest_code(Code code) {
  return code == Code::kInt8 ? 127 : code == Code::kE4M3 ? 448 : 57344;
}

// The distance of the codes around `value`.
inline double code_step(Code code, double value) {
  if (code == Code::kInt8) return 1;
  int exponent = 0;
  std::frexp(value, &exponent);  // value < 2^exponent
  const int smallest = code == Code::kE4M3 ? -6 : -14, fraction = code == Code::kE4M3 ? 3 : 2;
  return std::ldexp(1.0, (value == 0 ? smallest : std::max(exponent - 1, smallest)) - fraction);
}

inline double round_code(Code code, double value) {
  const double largest = largest_code(code);
  const double least = code == Code::kInt8 ? -128 : -largest;
  const double step = code_step(code, value);
  return std::clamp(std::nearbyint(value / step) * step, least, largest);
}

inline double load_code(Code code, const std::byte* at) {
  const auto bits = static_cast<uint8_t>(*at);
  if (code == Code::kInt8) return static_cast<int8_t>(bits);
  const int fraction_bits = code == Code::kE4M3 ? 3 : 2, bias = code == Code::kE4M3 ? 7 : 15;
  const int exponent = (bits & 127) >> fraction_bits, fraction = bits & ((1 << fraction_bits) - 1);
  const double sign = bits >= 128 ? -1 : 1;
  const bool special = code == Code::kE4M3 ? (bits & 127) == 127 : exponent == 31;
  if (special)
    return code == Code::kE4M3 || fraction != 0 ? std::numeric_limits<double>::quiet_NaN()
                                                : sign * HUGE_VAL;
  const int whole = exponent == 0 ? fraction : fraction + (1 << fraction_bits);
  return sign * std::ldexp(whole, std::max(exponent, 1) - bias - fraction_bits);
}

// The scale of a row's `dim` values, in float32 as the library computes it.
inline float row_scale(const NaiveStorage& storage, const double* values, int64_t dim) {
  if (storage.shared != 0) return storage.shared;
  float largest = 0;
  for (int64_t d = 0; d < dim; ++d)
    largest = std::max(largest, std::fabs(static_cast<float>(values[d])));
  return std::max(largest / static_cast<float>(largest_code(storage.code)),
                  std::numeric_limits<float>::min());
}

// What the pool holds of a token's rows, [heads][dim].
inline std::vector<double> stored_row(const NaiveStorage& storage, std::vector<double> row,
                                      int64_t heads) {
  if (storage.code == Code::kNone) {
    for (double& value : row) value = round_to(storage.elem, value);
    return row;
  }
  const int64_t dim = static_cast<int64_t>(row.size()) / heads;
  for (int64_t head = 0; head < heads; ++head) {
    double* values = row.data() + head * dim;
    const float scale = row_scale(storage, values, dim);
    for (int64_t d = 0; d < dim; ++d) {
      const double code = round_code(storage.code, static_cast<float>(values[d]) / scale);
      values[d] = static_cast<float>(code * scale);
    }
  }
  return row;
}

// How many values lie outside of the type's range by more than `slack`. None do where the row has a
// scale of its own, and NaN lies nowhere.
inline uint64_t num_saturated(const NaiveStorage& storage, const std::vector<double>& row,
                              double slack = 0) {
  if (storage.shared == 0 || storage.code == Code::kNone) return 0;
  const double largest = largest_code(storage.code);
  const double least = storage.code == Code::kInt8 ? -128 : -largest;
  slack /= static_cast<double>(storage.shared);
  uint64_t count = 0;
  for (const double value : row) {
    const float element = static_cast<float>(value) / storage.shared;
    if (element > largest + slack || element < least - slack) ++count;
  }
  return count;
}

// By how much a stored element may differ where its row was computed with other roundings: to the
// next element, by a scale that is another one in its last place.
inline double storing_step(const NaiveStorage& storage, const std::vector<double>& stored,
                           size_t element, int64_t heads) {
  if (storage.code == Code::kNone)
    return storage.elem == Elem::kF32 ? 0 : ulp_of(storage.elem, stored[element]);
  const size_t dim = stored.size() / static_cast<size_t>(heads);
  const double* values = stored.data() + element / dim * dim;
  const double scale = row_scale(storage, values, static_cast<int64_t>(dim));
  return 1.001 * scale * code_step(storage.code, stored[element] / scale * 1.001) +
         1e-6 * std::fabs(stored[element]);
}

}  // namespace kvc::test
