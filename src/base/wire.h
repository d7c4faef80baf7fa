// Records of tagged fields, little endian: what state files and messages between machines are made
// of.
//
// A field is a tag (uint32), a length (uint64) and so many bytes, which may be a record again. A
// reader skips a tag that it does not know, unless the tag has kMandatoryTag: then a newer writer
// says that its record means nothing without it.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace kvc {

static_assert(std::endian::native == std::endian::little, "arrays are copied as they are");

constexpr uint32_t kMandatoryTag = uint32_t{1} << 31;

// Throws std::bad_alloc.
class WireWriter {
 public:
  void bytes(uint32_t tag, const void* data, size_t size) {
    append(&tag, sizeof tag);
    const uint64_t length = size;
    append(&length, sizeof length);
    append(data, size);
  }
  void integer(uint32_t tag, int64_t value) { bytes(tag, &value, sizeof value); }
  void text(uint32_t tag, std::string_view value) { bytes(tag, value.data(), value.size()); }
  template <typename T>
  void array(uint32_t tag, const std::vector<T>& values) {
    static_assert(std::is_trivially_copyable_v<T>);
    bytes(tag, values.data(), values.size() * sizeof(T));
  }
  void record(uint32_t tag, const WireWriter& fields) {
    bytes(tag, fields.data_.data(), fields.data_.size());
  }

  const std::vector<std::byte>& data() const { return data_; }

 private:
  void append(const void* data, size_t size) {
    const auto* begin = static_cast<const std::byte*>(data);
    data_.insert(data_.end(), begin, begin + size);
  }

  std::vector<std::byte> data_;
};

// Reads one record. Everything that does not fit throws CORRUPT, an unknown mandatory tag VERSION;
// `what` names the record in messages. Nothing is allocated beyond the size of the record.
//
//   while (reader.next()) switch (reader.tag()) { case kLength: length = reader.integer(); … }
class WireReader {
 public:
  // Borrows both.
  WireReader(std::span<const std::byte> record, const char* what) : rest_(record), what_(what) {}

  bool next();  // False: the end of the record.
  uint32_t tag() const { return tag_; }
  std::span<const std::byte> field() const { return field_; }
  WireReader record(const char* what) const { return {field_, what}; }
  // In [least, most].
  int64_t integer(int64_t least, int64_t most) const;
  std::string text() const { return {reinterpret_cast<const char*>(field_.data()), field_.size()}; }
  template <typename T>
  std::vector<T> array() const {
    static_assert(std::is_trivially_copyable_v<T>);
    check_multiple(sizeof(T));
    std::vector<T> values(field_.size() / sizeof(T));
    if (!values.empty()) std::memcpy(values.data(), field_.data(), field_.size());
    return values;
  }
  template <typename T>
  T value() const {
    static_assert(std::is_trivially_copyable_v<T>);
    check_size(sizeof(T));
    T value;
    std::memcpy(&value, field_.data(), sizeof value);
    return value;
  }
  // For tags that the reader has no case for.
  void skip() const;

 private:
  void check_size(size_t expected) const;
  void check_multiple(size_t element) const;

  std::span<const std::byte> rest_;
  std::span<const std::byte> field_;
  const char* what_;
  uint32_t tag_ = 0;
};

}  // namespace kvc
