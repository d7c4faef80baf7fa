#include "tests/conformance/case.h"

#include <limits>
#include <set>
#include <stdexcept>

namespace kvc::conformance {
namespace {

// Values of the keys that were read, by address: files stay in memory while they are played.
std::set<const Json*>& read_values() {
  static std::set<const Json*> values;
  return values;
}

void refuse_unread_in(const Json& node, const std::string& where) {
  if (node.is_array())
    for (const Json& element : node) refuse_unread_in(element, where);
  if (!node.is_object()) return;
  for (const auto& [key, child] : node.items()) {
    if (read_values().count(&child) == 0)
      throw std::runtime_error(where + ": unknown key '" + key + "'");
    refuse_unread_in(child, where + "." + key);
  }
}

void note_all(const Json& node) {
  if (!node.is_object()) return;
  for (const Json& child : node) {
    read_values().insert(&child);
    note_all(child);
  }
}

}  // namespace

void forget_reads() { read_values().clear(); }

const Json* Fields::find(const char* key) const {
  const auto found = object_->find(key);
  if (found == object_->end()) return nullptr;
  read_values().insert(&*found);
  return &*found;
}

const Json& Fields::at(const char* key) const {
  const Json* found = find(key);
  if (found == nullptr) throw std::runtime_error(std::string("'") + key + "' is missing");
  return *found;
}

std::vector<std::pair<std::string, Json>> Fields::members(const char* key) const {
  std::vector<std::pair<std::string, Json>> all;
  const Json* found = find(key);
  if (found == nullptr) return all;
  note_all(*found);
  for (const auto& [name, child] : found->items()) all.emplace_back(name, child);
  return all;
}

void Fields::refuse_unread(const std::string& where) const { refuse_unread_in(*object_, where); }

DLDataType dtype_of(const std::string& name) {
  if (name == "f32") return {kDLFloat, 32, 1};
  if (name == "f16") return {kDLFloat, 16, 1};
  if (name == "bf16") return {kDLBfloat, 16, 1};
  if (name == "i32") return {kDLInt, 32, 1};
  if (name == "i64") return {kDLInt, 64, 1};
  if (name == "i8") return {kDLInt, 8, 1};
  if (name == "e4m3") return {kDLFloat8_e4m3fn, 8, 1};
  if (name == "e5m2") return {kDLFloat8_e5m2, 8, 1};
  throw std::runtime_error("'" + name + "' is no element type");
}

double value(int64_t kind, int64_t layer, int64_t id, int64_t head, int64_t element) {
  if (kind == 0) return 0;
  uint32_t x =
      static_cast<uint32_t>(id) * 0x9E3779B1u + static_cast<uint32_t>(layer) * 0x85EBCA77u +
      static_cast<uint32_t>(head) * 0xC2B2AE3Du + static_cast<uint32_t>(element) * 0x27D4EB2Fu +
      static_cast<uint32_t>(kind) * 0x165667B1u;
  x ^= x >> 15;
  x *= 0x2C1B3C6Du;
  x ^= x >> 12;
  x *= 0x297A2D39u;
  x ^= x >> 15;
  return (static_cast<double>(x & 127u) - 64) / 64;
}

Vector elements_of(const Fields& spec) {
  Vector elements;
  if (spec.has("values")) {
    for (const Json& x : spec.at("values"))
      elements.push_back(x.is_null() ? -std::numeric_limits<double>::infinity() : x.get<double>());
  } else if (spec.has("kind")) {
    const int64_t kind = spec.number("kind"), layer = spec.number("layer");
    const auto shape = spec.get<std::vector<int64_t>>("shape");
    const int64_t heads = shape.size() > 2 ? shape[1] : 1;
    for (const Json& run : spec.at("ids"))
      for (int64_t id = run.at(0); id < run.at(0).get<int64_t>() + run.at(1).get<int64_t>(); ++id)
        for (int64_t h = 0; h < heads; ++h)
          for (int64_t d = 0; d < shape.back(); ++d)
            elements.push_back(value(kind, layer, id, h, d));
  }
  return elements;
}

HostTensor::HostTensor(std::vector<int64_t> shape, DLDataType dtype)
    : shape_(std::move(shape)), dtype_(dtype), size_(1) {
  for (const int64_t extent : shape_) size_ *= extent;
  bytes_.assign(static_cast<size_t>(size_) * dtype_.bits / 8, 0xFF);
}

HostTensor::HostTensor(const Fields& spec)
    : HostTensor(spec.get<std::vector<int64_t>>("shape"),
                 dtype_of(spec.get<std::string>("dtype", "f32"))) {
  const Vector elements = elements_of(spec);
  if (static_cast<int64_t>(elements.size()) > size_)
    throw std::runtime_error("a tensor has too many values");
  for (size_t i = 0; i < elements.size(); ++i) set(static_cast<int64_t>(i), elements[i]);
}

DLTensor* HostTensor::view(DLDevice device) {
  view_ = {bytes_.data(), device, static_cast<int32_t>(shape_.size()), dtype_, shape_.data(),
           nullptr,       0};
  return &view_;
}

void HostTensor::set(int64_t index, double x) {
  // float8 by its bits.
  if (dtype_.bits == 8) return put<uint8_t>(index, static_cast<uint8_t>(static_cast<int32_t>(x)));
  if (dtype_.code == kDLInt && dtype_.bits == 32)
    return put<int32_t>(index, static_cast<int32_t>(x));
  if (dtype_.code == kDLInt) return put<int64_t>(index, static_cast<int64_t>(x));
  if (dtype_.bits == 32) return put<float>(index, static_cast<float>(x));
  // Cases give 16-bit types only values that they hold exactly.
  const float narrow = static_cast<float>(x);
  uint32_t bits;
  std::memcpy(&bits, &narrow, sizeof bits);
  if (dtype_.code == kDLBfloat) return put<uint16_t>(index, static_cast<uint16_t>(bits >> 16));
  const uint32_t exponent = bits >> 23 & 0xFF;
  const uint32_t half = exponent == 0 ? 0 : (exponent - 112) << 10 | (bits >> 13 & 0x3FF);
  put<uint16_t>(index, static_cast<uint16_t>(half | bits >> 31 << 15));
}

double HostTensor::get(int64_t index) const {
  if (dtype_.code == kDLInt && dtype_.bits == 8) return take<int8_t>(index);
  if (dtype_.bits == 8) return take<uint8_t>(index);
  if (dtype_.code == kDLInt && dtype_.bits == 32) return take<int32_t>(index);
  if (dtype_.code == kDLInt) return static_cast<double>(take<int64_t>(index));
  return static_cast<double>(take<float>(index));
}

}  // namespace kvc::conformance
