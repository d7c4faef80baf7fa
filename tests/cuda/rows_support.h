// Pools of any storage type for tests of kernels: codecs written down once more, as tables of all
// values, and rows read and written with them.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#include "kernels/cuda/work.h"
#include "kernels/reference/elements.h"
#include "tests/cuda/device_memory.h"
#include "tests/unit/kernels_support.h"

namespace kvc::cuda::row_test {

using kernels::DType;
using kernels::PagedRows;
using kernels::Rotation;
using kernels::TokenRows;
using kernels::test::Poisoned;
using kernels::test::PoolOwner;
using kernels::test::Random;
using kernels::test::RotationOwner;
using kernels::test::TensorOwner;
using testing::DeviceArray;

// How many random cases: `count`, times KVC_TEST_SCALE.
inline int scaled_count(int count) {
  const char* scale = std::getenv("KVC_TEST_SCALE");
  return scale == nullptr ? count : std::max(1, static_cast<int>(count * std::atof(scale)));
}

// The value of every code.
inline std::vector<double> code_values(Stored type) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  std::vector<double> values;
  const int codes = type == Stored::kInt4 || type == Stored::kE2M1 ? 16 : 256;
  for (int code = 0; code < codes; ++code) {
    const double sign = code >= codes / 2 ? -1 : 1;
    const int magnitude = code % (codes / 2);
    double value = 0;
    if (type == Stored::kE4M3) {
      const int exponent = magnitude / 8, fraction = magnitude % 8;
      value = exponent == 0 ? fraction / 512.0 : std::exp2(exponent - 7) * (1 + fraction / 8.0);
      if (magnitude == 127) value = nan;
    } else if (type == Stored::kE5M2) {
      const int exponent = magnitude / 4, fraction = magnitude % 4;
      value = exponent == 0 ? fraction / 65536.0 : std::exp2(exponent - 15) * (1 + fraction / 4.0);
      if (exponent == 31) value = fraction == 0 ? std::numeric_limits<double>::infinity() : nan;
    } else if (type == Stored::kE2M1) {
      value = std::vector<double>{0, 0.5, 1, 1.5, 2, 3, 4, 6}[static_cast<size_t>(magnitude)];
    } else {
      value = code >= codes / 2 ? codes - code : code;  // two's complement; the sign follows
    }
    values.push_back(sign * value);
  }
  return values;
}

// The finite code next to `value`, the even one of two.
inline int nearest_code(const std::vector<double>& values, double value) {
  int best = 0;
  double distance = std::numeric_limits<double>::infinity();
  for (int code = 0; code < static_cast<int>(values.size()); ++code) {
    if (!std::isfinite(values[static_cast<size_t>(code)])) continue;
    const double d = std::fabs(values[static_cast<size_t>(code)] - value);
    if (d < distance || (d == distance && code % 2 == 0 && best % 2 == 1))
      best = code, distance = d;
  }
  return best;
}

inline double largest_value(Stored type) {
  switch (type) {
    case Stored::kE4M3: return 448;
    case Stored::kE5M2: return 57344;
    case Stored::kInt8: return 127;
    case Stored::kInt4: return 7;
    default: return 6;
  }
}

// A storage at random: `dim` decides what is possible.
struct StorageKind {
  Quant quant = Quant::kNone;
  Stored type = Stored::kE4M3;
  DType dtype = DType::kBF16;  // without quant
};
inline StorageKind random_storage(Random& random, int64_t dim) {
  StorageKind kind;
  kind.dtype = random.dtype();
  kind.quant =
      random.pick({Quant::kNone, Quant::kPerTensor, Quant::kPerTokenHead, Quant::kBlock16});
  if (kind.quant == Quant::kBlock16 && dim % 16 != 0) kind.quant = Quant::kPerTensor;
  kind.type = random.pick({Stored::kE4M3, Stored::kE5M2, Stored::kInt8});
  if (kind.quant == Quant::kPerTokenHead && dim % 2 == 0 && random.chance(0.4))
    kind.type = Stored::kInt4;
  if (kind.quant == Quant::kBlock16) kind.type = Stored::kE2M1;
  return kind;
}

// One half of a pool on the host, poisoned, as it is and as kernels get it: pointers into `memory`
// and `scales`, or into copies of them.
class StoredPool {
 public:
  StoredPool() = default;
  StoredPool(Random& random, const StorageKind& kind_in, int64_t pages_in, int64_t page_size_in,
             int64_t heads_in, int64_t dim_in)
      : kind(kind_in), pages(pages_in), page_size(page_size_in), heads(heads_in), dim(dim_in) {
    values = code_values(kind.type);
    const int64_t element_bits = kind.quant == Quant::kNone ? 8 * kernels::dtype_bytes(kind.dtype)
                                 : values.size() == 16      ? 4
                                                            : 8;
    row_bytes = (dim * element_bits + 7) / 8;
    const int64_t unit = kind.quant == Quant::kNone ? kernels::dtype_bytes(kind.dtype) : 1;
    const int64_t row = row_bytes + random.pick<int64_t>({0, 0, 0, 1, 16}) * unit;
    const bool token_major = random.chance(0.3);
    const int64_t page = heads * page_size * row + random.pick<int64_t>({0, 0, 3}) * unit;
    rows = {nullptr, page, token_major ? row : page_size * row, token_major ? heads * row : row,
            kind.dtype};
    memory.assign(static_cast<size_t>(pages * page), std::byte{0xff});
    storage.quant = kind.quant;
    storage.type = kind.type;
    storage.scale =
        kind.quant == Quant::kPerTensor
            ? static_cast<float>(8 / largest_value(kind.type) * random.pick({0.3, 1.0, 1.7}))
            : 0.0f;
    scale_bytes = kind.quant == Quant::kPerTokenHead ? 4
                  : kind.quant == Quant::kBlock16    ? dim / 16
                                                     : 0;
    storage.scale_token_stride = scale_bytes * (token_major ? heads : 1);
    storage.scale_head_stride = scale_bytes * (token_major ? 1 : page_size);
    storage.scale_page_stride = scale_bytes * heads * page_size;
    scales.assign(static_cast<size_t>(pages * storage.scale_page_stride), std::byte{0xff});
  }

  int64_t row_at(int64_t page, int64_t head, int64_t offset) const {
    return page * rows.page_stride + head * rows.head_stride + offset * rows.token_stride;
  }
  int64_t scale_at(int64_t page, int64_t head, int64_t offset) const {
    return page * storage.scale_page_stride + head * storage.scale_head_stride +
           offset * storage.scale_token_stride;
  }
  double factor(int64_t page, int64_t head, int64_t offset, int64_t d) const {
    if (kind.quant == Quant::kNone) return 1;
    if (kind.quant == Quant::kPerTensor) return storage.scale;
    const std::byte* at = scales.data() + scale_at(page, head, offset);
    if (kind.quant == Quant::kPerTokenHead) {
      float scale;
      std::memcpy(&scale, at, 4);
      return scale;
    }
    return code_values(Stored::kE4M3)[std::to_integer<size_t>(at[d / 16])];
  }
  // An element as float32 has it.
  double read(int64_t page, int64_t head, int64_t offset, int64_t d) const {
    const std::byte* row = memory.data() + row_at(page, head, offset);
    if (kind.quant == Quant::kNone) return kernels::reference::read_element(row, kind.dtype, d);
    const bool half_bytes = values.size() == 16;
    auto code = std::to_integer<size_t>(row[half_bytes ? d / 2 : d]);
    if (half_bytes) code = code >> (4 * (d % 2)) & 15;
    return static_cast<float>(values[code] * factor(page, head, offset, d));
  }
  void write(int64_t page, int64_t head, int64_t offset, const std::vector<double>& row_values) {
    std::byte* row = memory.data() + row_at(page, head, offset);
    std::byte* scale_row = scales.data() + scale_at(page, head, offset);
    double amax = 0;
    for (const double value : row_values) amax = std::max(amax, std::fabs(value));
    if (kind.quant == Quant::kPerTokenHead) {
      const float scale = static_cast<float>(amax / largest_value(kind.type));
      std::memcpy(scale_row, &scale, 4);
    }
    for (int64_t b = 0; kind.quant == Quant::kBlock16 && b < dim / 16; ++b) {
      double block = 0;
      for (int64_t d = 16 * b; d < 16 * b + 16; ++d)
        block = std::max(block, std::fabs(row_values[static_cast<size_t>(d)]));
      scale_row[b] = static_cast<std::byte>(nearest_code(code_values(Stored::kE4M3), block / 6));
    }
    for (int64_t d = 0; d < dim; ++d) {
      const double value = row_values[static_cast<size_t>(d)];
      if (kind.quant == Quant::kNone) {
        kernels::reference::write_element(row, kind.dtype, d, value);
        continue;
      }
      const double scale = factor(page, head, offset, d);
      const int code = scale == 0 ? 0 : nearest_code(values, value / scale);
      if (values.size() == 256) {
        row[d] = static_cast<std::byte>(code);
      } else if (d % 2 == 0) {
        row[d / 2] = static_cast<std::byte>(code);
      } else {
        row[d / 2] |= static_cast<std::byte>(code << 4);
      }
    }
  }
  void fill_row(Random& random, int64_t page, int64_t head, int64_t offset) {
    std::vector<double> row;
    for (int64_t d = 0; d < dim; ++d) row.push_back(random.normal());
    write(page, head, offset, row);
  }

  // Fails unless every element of a row is as near to `wanted` as its type allows with the scales
  // that were written, which must be right too; `slack` is what float32 arithmetic may have moved
  // it, relative to the largest of the row.
  void expect_row(int64_t page, int64_t head, int64_t offset, const std::vector<double>& wanted,
                  double slack) const {
    double amax = 0;
    for (const double value : wanted) amax = std::max(amax, std::fabs(value));
    if (kind.quant == Quant::kPerTokenHead) {
      const double scale = factor(page, head, offset, 0), exact = amax / largest_value(kind.type);
      ASSERT_NEAR(scale, exact, 1e-6 * exact + slack * exact + 1e-37);
    }
    for (int64_t d = 0; d < dim; ++d) {
      const double value = wanted[static_cast<size_t>(d)], found = read(page, head, offset, d);
      const double scale = factor(page, head, offset, d);
      double best = 0;
      if (kind.quant == Quant::kNone) {
        std::byte element[4] = {};
        kernels::reference::write_element(element, kind.dtype, 0, value);
        best = kernels::reference::read_element(element, kind.dtype, 0);
      } else {
        best = scale *
               values[static_cast<size_t>(scale == 0 ? 0 : nearest_code(values, value / scale))];
      }
      // Rounding is monotonic: a value moved by the slack is at most twice the slack worse off than
      // the nearest.
      ASSERT_LE(std::fabs(found - value),
                std::fabs(best - value) + 2 * slack * amax + 1e-6 * std::fabs(best))
          << "element " << d << " is " << found << ", wanted " << value << ", nearest " << best;
      if (kind.quant == Quant::kBlock16 && d % 16 == 0) {
        double block = 0;
        for (int64_t i = d; i < d + 16; ++i)
          block = std::max(block, std::fabs(wanted[static_cast<size_t>(i)]));
        const std::vector<double> e4m3 = code_values(Stored::kE4M3);
        const double nearest = e4m3[static_cast<size_t>(nearest_code(e4m3, block / 6))];
        ASSERT_LE(std::fabs(scale - block / 6),
                  std::fabs(nearest - block / 6) + (slack + 1e-6) * block);
      }
    }
  }

  std::string describe() const {
    return "quant " + std::to_string(static_cast<int>(kind.quant)) + " type " +
           std::to_string(static_cast<int>(kind.type)) + " dtype " +
           std::to_string(static_cast<int>(kind.dtype)) + " heads " + std::to_string(heads) +
           " dim " + std::to_string(dim) + " page " + std::to_string(page_size);
  }

  StorageKind kind;
  int64_t pages = 0, page_size = 0, heads = 0, dim = 0, row_bytes = 0, scale_bytes = 0;
  PagedRows rows{};      // base null: see on_device
  RowStorage storage{};  // scales null
  std::vector<std::byte> memory, scales;
  std::vector<double> values;  // of the codes
};

// A pool on the device. `read_back` brings what kernels wrote.
struct DevicePool {
  explicit DevicePool(const StoredPool& pool)
      : memory(pool.memory), scales(pool.scales), rows(pool.rows), storage(pool.storage) {
    rows.base = memory.data();
    storage.scales = scales.data();
  }
  void read_back(StoredPool& pool) const {
    pool.memory = memory.read(), pool.scales = scales.read();
  }

  DeviceArray<std::byte> memory, scales;
  PagedRows rows;
  RowStorage storage;
};

// Packed rows on the device.
struct DeviceTensor {
  explicit DeviceTensor(TensorOwner& tensor)
      : memory(std::vector<std::byte>(tensor.memory.data(),
                                      tensor.memory.data() + tensor.memory.size())),
        rows(tensor.rows) {
    rows.base = memory.data();
  }
  void read_back(TensorOwner& tensor) const {
    const std::vector<std::byte> bytes = memory.read();
    std::copy(bytes.begin(), bytes.end(), tensor.memory.data());
  }

  DeviceArray<std::byte> memory;
  TokenRows rows;
};

// A tensor with memory of its own.
inline TensorOwner clone(TensorOwner& from) {
  TensorOwner copy;
  copy.memory = Poisoned(from.memory.size());
  std::copy(from.memory.data(), from.memory.data() + from.memory.size(), copy.memory.data());
  copy.rows = from.rows;
  copy.rows.base = copy.memory.data();
  copy.tokens = from.tokens, copy.heads = from.heads, copy.dim = from.dim;
  return copy;
}

struct DeviceRotation {
  DeviceRotation(const Rotation& from, int64_t angles_rows)
      : cos(copied(from.cos, from, angles_rows)),
        sin(copied(from.sin, from, angles_rows)),
        rotation(from) {
    rotation.cos = cos.data(), rotation.sin = sin.data();
  }
  static std::vector<float> copied(const float* from, const Rotation& rotation,
                                   int64_t angle_rows) {
    if (rotation.rotary_dim == 0) return {};
    return {from, from + angle_rows * (rotation.rotary_dim / 2)};
  }

  DeviceArray<float> cos, sin;
  Rotation rotation;
};

}  // namespace kvc::cuda::row_test
