#include "tools/gguf/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <stdexcept>

namespace kvc::gguf {
namespace {

constexpr int64_t kMaxDims = 4;
constexpr uint64_t kDefaultAlignment = 32;

struct NamedType {
  TensorType type;
  TypeInfo info;
};
constexpr NamedType kTypes[] = {
    {TensorType::kF32, {"F32", 1, 4}},       {TensorType::kF16, {"F16", 1, 2}},
    {TensorType::kBF16, {"BF16", 1, 2}},     {TensorType::kQ4_0, {"Q4_0", 32, 18}},
    {TensorType::kQ4_1, {"Q4_1", 32, 20}},   {TensorType::kQ5_0, {"Q5_0", 32, 22}},
    {TensorType::kQ5_1, {"Q5_1", 32, 24}},   {TensorType::kQ8_0, {"Q8_0", 32, 34}},
    {TensorType::kQ4_K, {"Q4_K", 256, 144}}, {TensorType::kQ5_K, {"Q5_K", 256, 176}},
    {TensorType::kQ6_K, {"Q6_K", 256, 210}},
};

// Bytes of a value in the file; 0: it says its length itself.
size_t size_of(ValueType type) {
  switch (type) {
    case ValueType::kU8:
    case ValueType::kI8:
    case ValueType::kBool: return 1;
    case ValueType::kU16:
    case ValueType::kI16: return 2;
    case ValueType::kU32:
    case ValueType::kI32:
    case ValueType::kF32: return 4;
    case ValueType::kU64:
    case ValueType::kI64:
    case ValueType::kF64: return 8;
    case ValueType::kString:
    case ValueType::kArray: break;
  }
  return 0;
}

const char* name_of(ValueType type) {
  static constexpr const char* kNames[] = {"uint8",  "int8",    "uint16", "int16",  "uint32",
                                           "int32",  "float32", "bool",   "string", "array",
                                           "uint64", "int64",   "float64"};
  const auto number = static_cast<uint32_t>(type);
  return number < std::size(kNames) ? kNames[number] : "unknown";
}

// The file has the byte order of little-endian machines, and nothing in it is aligned.
template <typename T>
T load(const std::byte* data) {
  T value;
  std::memcpy(&value, data, sizeof value);
  return value;
}

std::string_view text_at(const std::byte* data) {
  return {reinterpret_cast<const char*>(data) + sizeof(uint64_t),
          static_cast<size_t>(load<uint64_t>(data))};
}

// Empty: no integer, or one that an int64 cannot hold.
std::optional<int64_t> integer_at(ValueType type, const std::byte* data) {
  switch (type) {
    case ValueType::kU8: return load<uint8_t>(data);
    case ValueType::kI8: return load<int8_t>(data);
    case ValueType::kU16: return load<uint16_t>(data);
    case ValueType::kI16: return load<int16_t>(data);
    case ValueType::kU32: return load<uint32_t>(data);
    case ValueType::kI32: return load<int32_t>(data);
    case ValueType::kI64: return load<int64_t>(data);
    case ValueType::kU64: {
      const auto value = load<uint64_t>(data);
      if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return {};
      return static_cast<int64_t>(value);
    }
    default: return {};
  }
}

std::optional<double> number_at(ValueType type, const std::byte* data) {
  if (type == ValueType::kF32) return static_cast<double>(load<float>(data));
  if (type == ValueType::kF64) return load<double>(data);
  if (const std::optional<int64_t> integer = integer_at(type, data))
    return static_cast<double>(*integer);
  return {};
}

}  // namespace

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char letter : text.substr(0, 60)) {
    const auto code = static_cast<unsigned char>(letter);
    out += code < 0x20 || code == 0x7f ? '?' : letter;
  }
  return out + (text.size() > 60 ? "...\"" : "\"");
}

const TypeInfo* type_info(TensorType type) {
  for (const NamedType& known : kTypes) {
    if (known.type == type) return &known.info;
  }
  return nullptr;
}

std::string type_name(TensorType type) {
  const TypeInfo* info = type_info(type);
  return info != nullptr ? info->name : std::to_string(static_cast<uint32_t>(type));
}

int64_t Tensor::elements() const {
  int64_t product = 1;
  for (const int64_t extent : shape) product *= extent;
  return product;
}

int64_t Tensor::bytes() const {
  const TypeInfo* info = type_info(type);
  return info == nullptr ? 0 : elements() / info->block_elements * info->block_bytes;
}

// Walks through the file from front to back.
class File::Reader {
 public:
  Reader(const File& file) : file_(file) {}

  size_t at() const { return at_; }
  size_t left() const { return file_.size_ - at_; }

  [[noreturn]] void fail(const std::string& what) const {
    throw std::runtime_error(file_.path_ + ": " + what + " (byte " + std::to_string(at_) + " of " +
                             std::to_string(file_.size_) + ")");
  }
  void need(uint64_t bytes, const std::string& what) const {
    if (bytes > left())
      fail("the file ends inside " + what + ": " + std::to_string(bytes) + " bytes are needed, " +
           std::to_string(left()) + " are left");
  }
  const std::byte* skip(uint64_t bytes, const std::string& what) {
    need(bytes, what);
    const std::byte* data = file_.data_ + at_;
    at_ += static_cast<size_t>(bytes);
    return data;
  }
  template <typename T>
  T take(const std::string& what) {
    return load<T>(skip(sizeof(T), what));
  }
  // A count of things that have at least `least` bytes each.
  uint64_t take_count(size_t least, const std::string& what) {
    const auto count = take<uint64_t>("the number of " + what);
    if (count > left() / least)
      fail("it says that it has " + std::to_string(count) + " " + what + ", but only " +
           std::to_string(left()) + " bytes are left");
    return count;
  }
  std::string_view take_text(const std::string& what) {
    const std::byte* begin = file_.data_ + at_;
    skip(take<uint64_t>("the length of " + what), what);
    return text_at(begin);
  }
  Value take_value(std::string_view key) {
    const std::string what = "the value of " + quoted(key);
    Value value{take_type(key), false, 1, nullptr};
    if (value.type == ValueType::kArray) {
      value.is_array = true;
      value.type = take_type(key);
      if (value.type == ValueType::kArray) fail(what + " is an array of arrays");
      const size_t least =
          value.type == ValueType::kString ? sizeof(uint64_t) : size_of(value.type);
      value.count = take_count(least, "elements of " + quoted(key));
    }
    value.data = file_.data_ + at_;
    if (value.type != ValueType::kString) {
      skip(value.count * size_of(value.type),
           what);  // take_count has seen that this is no overflow.
    } else {
      for (uint64_t i = 0; i < value.count; ++i) take_text(what);
    }
    return value;
  }

 private:
  ValueType take_type(std::string_view key) {
    const auto type = take<uint32_t>("the type of " + quoted(key));
    if (type > static_cast<uint32_t>(ValueType::kF64))
      fail("the value of " + quoted(key) + " has type " + std::to_string(type) +
           ", expected 0 to 12");
    return static_cast<ValueType>(type);
  }

  const File& file_;
  size_t at_ = 0;
};

File::File(const std::string& path) : path_(path) {
  map();
  try {
    read();
  } catch (...) {
    unmap();
    throw;
  }
}

File::~File() { unmap(); }

void File::map() {
  const auto fail = [&](const char* what) {
    throw std::runtime_error(path_ + ": " + what + ": " + std::strerror(errno));
  };
  const int descriptor = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) fail("cannot be opened");
  struct stat status {};
  if (fstat(descriptor, &status) != 0) {
    close(descriptor);
    fail("cannot be read");
  }
  void* data = MAP_FAILED;
  const bool is_file = S_ISREG(status.st_mode);
  if (is_file && status.st_size > 0)
    data =
        mmap(nullptr, static_cast<size_t>(status.st_size), PROT_READ, MAP_PRIVATE, descriptor, 0);
  const int error = errno;
  close(descriptor);
  if (!is_file) throw std::runtime_error(path_ + ": is no regular file");
  if (status.st_size == 0) throw std::runtime_error(path_ + ": is empty");
  errno = error;
  if (data == MAP_FAILED) fail("cannot be mapped");
  data_ = static_cast<const std::byte*>(data);
  size_ = static_cast<size_t>(status.st_size);
}

void File::unmap() noexcept {
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), size_);
  data_ = nullptr;
}

void File::read() {
  Reader reader(*this);
  if (size_ < 4 || std::memcmp(data_, "GGUF", 4) != 0)
    reader.fail("is no GGUF file: it does not begin with \"GGUF\"");
  reader.skip(4, "the magic number");
  version_ = reader.take<uint32_t>("the version");
  if (version_ == 0 || version_ >= uint32_t{1} << 16)
    reader.fail("the file has the byte order of big-endian machines, which is not read here");
  if (version_ < 2 || version_ > 3)
    reader.fail("version " + std::to_string(version_) + " is not read here, versions 2 and 3 are");
  // A tensor has at least a name's length, the number of its dimensions, type and offset; a value a
  // key's length, its type and a byte.
  const uint64_t num_tensors = reader.take_count(8 + 4 + 4 + 8, "tensors");
  const uint64_t num_values = reader.take_count(8 + 4 + 1, "metadata values");
  for (uint64_t i = 0; i < num_values; ++i) {
    const std::string_view key = reader.take_text("key " + std::to_string(i));
    const Value value = reader.take_value(key);
    if (!values_.emplace(key, value).second) reader.fail("the key " + quoted(key) + " comes twice");
  }
  const int64_t alignment = integer("general.alignment").value_or(kDefaultAlignment);
  if (alignment < 1 || alignment > 1 << 20 || (alignment & (alignment - 1)) != 0)
    reader.fail("general.alignment = " + std::to_string(alignment) +
                ", expected a power of two up to 1,048,576");

  std::vector<uint64_t> offsets;
  for (uint64_t i = 0; i < num_tensors; ++i) {
    Tensor tensor{};
    tensor.name = reader.take_text("the name of tensor " + std::to_string(i));
    const std::string what = "tensor " + quoted(tensor.name);
    const auto num_dims = reader.take<uint32_t>(what);
    if (num_dims < 1 || num_dims > kMaxDims)
      reader.fail(what + " has " + std::to_string(num_dims) + " dimensions, expected 1 to 4");
    // So many that no tensor that is read here has them, and that products do not overflow.
    constexpr int64_t kMostElements = int64_t{1} << 48;
    int64_t elements = 1;
    for (uint32_t d = 0; d < num_dims; ++d) {
      const auto extent = reader.take<uint64_t>(what);
      if (extent < 1 || extent > static_cast<uint64_t>(kMostElements / elements))
        reader.fail("dimension " + std::to_string(d) + " of " + what + " is " +
                    std::to_string(extent));
      tensor.shape.push_back(static_cast<int64_t>(extent));
      elements *= static_cast<int64_t>(extent);
    }
    tensor.type = static_cast<TensorType>(reader.take<uint32_t>(what));
    const TypeInfo* info = type_info(tensor.type);
    if (info == nullptr) {
      reader.fail(what + " is of type " + type_name(tensor.type) +
                  ", which is not read here: F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, "
                  "Q5_K and Q6_K are");
    }
    if (tensor.shape[0] % info->block_elements != 0)
      reader.fail(what + " has rows of " + std::to_string(tensor.shape[0]) + " elements, and " +
                  info->name + " has blocks of " + std::to_string(info->block_elements));
    offsets.push_back(reader.take<uint64_t>(what));
    if (offsets.back() % static_cast<uint64_t>(alignment) != 0)
      reader.fail(what + " begins at " + std::to_string(offsets.back()) + ", no multiple of " +
                  std::to_string(alignment));
    if (!tensor_of_name_.emplace(tensor.name, tensors_.size()).second)
      reader.fail(what + " comes twice");
    tensors_.push_back(std::move(tensor));
  }
  const auto step = static_cast<size_t>(alignment);
  const size_t begin = (reader.at() + step - 1) / step * step;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const auto bytes = static_cast<uint64_t>(tensors_[i].bytes());
    const uint64_t room = begin > size_ ? 0 : size_ - begin;
    if (offsets[i] > room || bytes > room - offsets[i])
      reader.fail("tensor " + quoted(tensors_[i].name) + " of " + std::to_string(bytes) +
                  " bytes at " + std::to_string(offsets[i]) +
                  " of the data reaches beyond the end of the file");
    tensors_[i].data = data_ + begin + offsets[i];
  }
}

const Tensor* File::tensor(std::string_view name) const {
  const auto found = tensor_of_name_.find(name);
  return found == tensor_of_name_.end() ? nullptr : &tensors_[found->second];
}

const Value* File::find(std::string_view key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

void File::fail_type(std::string_view key, const Value& value, const char* expected) const {
  throw std::runtime_error(path_ + ": " + quoted(key) + " is " +
                           (value.is_array ? "an array of " : "of type ") + name_of(value.type) +
                           ", expected " + expected);
}

std::optional<int64_t> File::integer(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) return {};
  const std::optional<int64_t> integer =
      value->is_array ? std::nullopt : integer_at(value->type, value->data);
  if (!integer) fail_type(key, *value, "an integer");
  return integer;
}

std::optional<double> File::number(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) return {};
  const std::optional<double> number =
      value->is_array ? std::nullopt : number_at(value->type, value->data);
  if (!number) fail_type(key, *value, "a number");
  return number;
}

std::optional<bool> File::flag(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) return {};
  if (value->is_array || value->type != ValueType::kBool) fail_type(key, *value, "a bool");
  return load<uint8_t>(value->data) != 0;
}

std::optional<std::string_view> File::text(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) return {};
  if (value->is_array || value->type != ValueType::kString) fail_type(key, *value, "a string");
  return text_at(value->data);
}

std::optional<std::vector<std::string_view>> File::texts(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) return {};
  if (!value->is_array || value->type != ValueType::kString)
    fail_type(key, *value, "an array of strings");
  std::vector<std::string_view> texts;
  texts.reserve(static_cast<size_t>(value->count));
  const std::byte* at = value->data;
  for (uint64_t i = 0; i < value->count; ++i) {
    texts.push_back(text_at(at));
    at += sizeof(uint64_t) + texts.back().size();
  }
  return texts;
}

std::optional<std::vector<int64_t>> File::integers(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) return {};
  std::vector<int64_t> integers;
  if (!value->is_array) fail_type(key, *value, "an array of integers");
  integers.reserve(static_cast<size_t>(value->count));
  for (uint64_t i = 0; i < value->count; ++i) {
    const std::optional<int64_t> one =
        integer_at(value->type, value->data + i * size_of(value->type));
    if (!one) fail_type(key, *value, "an array of integers");
    integers.push_back(*one);
  }
  return integers;
}

std::optional<std::vector<float>> File::numbers(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) return {};
  std::vector<float> numbers;
  if (!value->is_array) fail_type(key, *value, "an array of numbers");
  numbers.reserve(static_cast<size_t>(value->count));
  for (uint64_t i = 0; i < value->count; ++i) {
    const std::optional<double> one =
        number_at(value->type, value->data + i * size_of(value->type));
    if (!one) fail_type(key, *value, "an array of numbers");
    numbers.push_back(static_cast<float>(*one));
  }
  return numbers;
}

std::optional<int64_t> File::length(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) return {};
  if (!value->is_array) fail_type(key, *value, "an array");
  return static_cast<int64_t>(value->count);
}

}  // namespace kvc::gguf
