// A GGUF file (the format of llama.cpp, github.com/ggml-org/ggml/blob/master/docs/gguf.md): what it
// says of a model, and where the model's tensors lie. The file is mapped. Every count and offset is
// checked against its size before it is used, so that no damaged file is read beyond its end, and
// none makes the reader take more memory than the file has bytes times eight.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace kvc::gguf {

// Types of tensors, by their numbers in a file.
enum class TensorType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kBF16 = 30,
};

// Elements come in blocks, which share scales.
struct TypeInfo {
  const char* name;
  int64_t block_elements;
  int64_t block_bytes;
};
// Null: no type that is read here.
const TypeInfo* type_info(TensorType type);
// "Q4_1"; a number where the type has no name here.
std::string type_name(TensorType type);

struct Tensor {
  std::string_view name;
  // Dimension 0 is contiguous: a matrix [rows][columns] has shape {columns, rows}.
  std::vector<int64_t> shape;
  TensorType type = TensorType::kF32;
  const std::byte* data = nullptr;

  int64_t elements() const;
  int64_t bytes() const;
};

// Types of metadata values, by their numbers in a file.
enum class ValueType : uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};

// One value, or an array of them, where it lies in the file.
struct Value {
  ValueType type;  // An array has it for each element.
  bool is_array;
  uint64_t count;  // 1 for what is no array.
  const std::byte* data;
};

// A text of a file for a message: short, and without bytes that a terminal would obey.
std::string quoted(std::string_view text);

class File {
 public:
  // Throws std::runtime_error that says what is wrong with the file, and where.
  explicit File(const std::string& path);
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  const std::string& path() const { return path_; }
  uint32_t version() const { return version_; }
  int64_t bytes() const { return static_cast<int64_t>(size_); }
  // In the order of the file.
  const std::vector<Tensor>& tensors() const { return tensors_; }
  // Null: there is no such tensor.
  const Tensor* tensor(std::string_view name) const;
  size_t num_values() const { return values_.size(); }

  // Empty: the file does not have the key. Each throws std::runtime_error naming a key whose value
  // is of another type.
  std::optional<int64_t> integer(std::string_view key) const;
  std::optional<double> number(std::string_view key) const;
  std::optional<bool> flag(std::string_view key) const;
  std::optional<std::string_view> text(std::string_view key) const;
  std::optional<std::vector<std::string_view>> texts(std::string_view key) const;
  std::optional<std::vector<int64_t>> integers(std::string_view key) const;
  std::optional<std::vector<float>> numbers(std::string_view key) const;
  // Elements of an array, without reading them.
  std::optional<int64_t> length(std::string_view key) const;

 private:
  class Reader;
  void map();
  void unmap() noexcept;
  void read();
  const Value* find(std::string_view key) const;
  [[noreturn]] void fail_type(std::string_view key, const Value& value, const char* expected) const;

  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  uint32_t version_ = 0;
  std::unordered_map<std::string_view, Value> values_;
  std::vector<Tensor> tensors_;
  std::unordered_map<std::string_view, size_t> tensor_of_name_;
};

}  // namespace kvc::gguf
