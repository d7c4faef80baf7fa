// A case as its file has it: JSON whose keys are noted as they are read, and the tensors in it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "kvcache.h"
#include "tests/support/test_device.h"

namespace kvc::conformance {

using Json = nlohmann::json;
using Vector = std::vector<double>;

// A JSON object. A key that nobody reads is one that this runner does not know: refuse_unread()
// throws.
class Fields {
 public:
  explicit Fields(const Json& object) : object_(&object) {}

  bool has(const char* key) const { return find(key) != nullptr; }
  const Json& at(const char* key) const;  // throws where the key is missing
  template <class T>
  T get(const char* key) const {
    return at(key).get<T>();
  }
  template <class T>
  T get(const char* key, const T& absent) const {
    const Json* found = find(key);
    return found == nullptr ? absent : found->get<T>();
  }
  int64_t number(const char* key) const { return get<int64_t>(key); }
  Fields object(const char* key) const { return Fields(at(key)); }
  // All members of the object under a key, or none. All of them count as read.
  std::vector<std::pair<std::string, Json>> members(const char* key) const;

  void refuse_unread(const std::string& where) const;

 private:
  const Json* find(const char* key) const;

  const Json* object_;
};

// A tensor on the device of the test. New ones hold NaN, and -1 in integers.
class HostTensor {
 public:
  HostTensor() = default;
  HostTensor(std::vector<int64_t> shape, DLDataType dtype);
  // The tensor that a case describes; elements that it does not give stay NaN.
  explicit HostTensor(const Fields& spec);

  DLTensor* view(DLDevice device = test::device());
  // For arguments that lie on the host whatever the device.
  DLTensor* host_view() { return view({kDLCPU, 0}); }
  int64_t size() const { return size_; }
  const std::vector<int64_t>& shape() const { return shape_; }

  void set(int64_t index, double x);
  // float32, integers and the bits of float8 only, since outputs have these types; after
  // test::finish().
  double get(int64_t index) const;

 private:
  template <class T>
  void put(int64_t index, T x) {
    std::memcpy(bytes_.data() + static_cast<size_t>(index) * sizeof x, &x, sizeof x);
  }
  template <class T>
  T take(int64_t index) const {
    T x;
    std::memcpy(&x, bytes_.data() + static_cast<size_t>(index) * sizeof x, sizeof x);
    return x;
  }

  std::vector<int64_t> shape_;
  DLDataType dtype_{};
  int64_t size_ = 0;
  std::vector<uint8_t, test::TensorAllocator<uint8_t>> bytes_;
  DLTensor view_{};
};

// Before a file is played: no key of it is read.
void forget_reads();

DLDataType dtype_of(const std::string& name);

// The elements that a tensor of a case gives, in their order.
Vector elements_of(const Fields& spec);

// The generator of README.md: a multiple of 1/64 in [-1, 1); kind 0 is zero.
double value(int64_t kind, int64_t layer, int64_t id, int64_t head, int64_t element);

}  // namespace kvc::conformance
