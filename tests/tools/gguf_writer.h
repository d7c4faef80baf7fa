// Files in GGUF that tests write.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tools/gguf/file.h"

namespace kvc::gguf {

using Bytes = std::vector<uint8_t>;

template <typename T>
void put(Bytes& bytes, T value) {
  const auto* begin = reinterpret_cast<const uint8_t*>(&value);
  bytes.insert(bytes.end(), begin, begin + sizeof value);
}

inline void put_text(Bytes& bytes, const std::string& text) {
  put<uint64_t>(bytes, text.size());
  bytes.insert(bytes.end(), text.begin(), text.end());
}

// A file with what is added, in this order.
class Writer {
 public:
  template <typename T>
  void value(const std::string& key, ValueType type, T value) {
    put_text(values_, key);
    put(values_, type);
    put(values_, value);
    ++num_values_;
  }
  void text(const std::string& key, const std::string& text) {
    put_text(values_, key);
    put(values_, ValueType::kString);
    put_text(values_, text);
    ++num_values_;
  }
  template <typename T>
  void array(const std::string& key, ValueType type, const std::vector<T>& elements) {
    begin_array(key, type, elements.size());
    for (const T& element : elements) put(values_, element);
  }
  void texts(const std::string& key, const std::vector<std::string>& elements) {
    begin_array(key, ValueType::kString, elements.size());
    for (const std::string& element : elements) put_text(values_, element);
  }
  void tensor(const std::string& name, TensorType type, const std::vector<uint64_t>& shape,
              const Bytes& data) {
    put_text(tensors_, name);
    put<uint32_t>(tensors_, static_cast<uint32_t>(shape.size()));
    for (const uint64_t extent : shape) put(tensors_, extent);
    put(tensors_, type);
    put<uint64_t>(tensors_, data_.size());
    data_.insert(data_.end(), data.begin(), data.end());
    data_.resize((data_.size() + 31) / 32 * 32);
    ++num_tensors_;
  }
  Bytes bytes() const {
    Bytes all = {'G', 'G', 'U', 'F'};
    put<uint32_t>(all, 3);
    put(all, num_tensors_);
    put(all, num_values_);
    all.insert(all.end(), values_.begin(), values_.end());
    all.insert(all.end(), tensors_.begin(), tensors_.end());
    all.resize((all.size() + 31) / 32 * 32);
    all.insert(all.end(), data_.begin(), data_.end());
    return all;
  }

 private:
  void begin_array(const std::string& key, ValueType type, size_t count) {
    put_text(values_, key);
    put(values_, ValueType::kArray);
    put(values_, type);
    put<uint64_t>(values_, count);
    ++num_values_;
  }

  Bytes values_, tensors_, data_;
  uint64_t num_values_ = 0, num_tensors_ = 0;
};

}  // namespace kvc::gguf
