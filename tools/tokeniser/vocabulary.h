// The tokens of a GGUF file (keys `tokenizer.ggml.*`): texts, types, and which ids begin and end a
// text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/gguf/file.h"

namespace kvc::tokeniser {

// Types of tokens, by their numbers in a file.
enum class TokenType : uint8_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

class Vocabulary {
 public:
  // Copies what it needs of the file. Throws std::runtime_error.
  explicit Vocabulary(const gguf::File& file);

  int32_t size() const { return static_cast<int32_t>(types_.size()); }
  // The text as the file has it. What it means depends on the type of the token and on the model.
  std::string_view text(int32_t id) const;
  TokenType type(int32_t id) const { return types_[static_cast<size_t>(id)]; }
  // Value of `tokenizer.ggml.model`: "gpt2" or "llama".
  const std::string& model() const { return model_; }
  std::optional<int32_t> bos() const { return bos_; }
  std::optional<int32_t> eos() const { return eos_; }
  bool add_bos() const { return add_bos_; }

 private:
  std::string model_;
  std::string texts_;
  // Text of token i: [begins_[i], begins_[i + 1]).
  std::vector<size_t> begins_;
  std::vector<TokenType> types_;
  std::optional<int32_t> bos_, eos_;
  bool add_bos_ = false;
};

// Throws std::runtime_error that begins with the path of the file.
[[noreturn]] void refuse(const gguf::File& file, const std::string& what);

}  // namespace kvc::tokeniser
