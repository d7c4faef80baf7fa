// The tokeniser of a model in a GGUF file: text to token ids and back, from the file's own
// vocabulary. Each kind of vocabulary has an Encoder (encoder.h).
//
//  * A text comes back byte for byte: decode(encode(text)) is the text. Exceptions: bytes that the
//    vocabulary has no token for (byte_level.h), U+2581 (sentencepiece.h), and text for Qwen2,
//    which comes back in Unicode's form NFC (byte_level.h).
//  * A text need not be UTF-8. Each byte that is no part of a character is encoded alone, as that
//    byte.
//
// Functions are const and may be called by several threads at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/gguf/file.h"
#include "tools/tokeniser/encoder.h"
#include "tools/tokeniser/special_tokens.h"
#include "tools/tokeniser/vocabulary.h"

namespace kvc::tokeniser {

class Tokeniser {
 public:
  // The file may be closed afterwards. Throws std::runtime_error that names the key of the file
  // whose value is missing, damaged or of a kind that is not served.
  explicit Tokeniser(const gguf::File& file);
  Tokeniser(const Tokeniser&) = delete;
  Tokeniser& operator=(const Tokeniser&) = delete;

  // Ids of a text, without a token for the beginning or the end. `parse_special`: texts of control
  // tokens, such as "<|im_end|>", become these tokens, the longest first. Without it they are plain
  // text, so a text of a user cannot contain a control token. User-defined tokens are found in
  // both ways. Throws std::invalid_argument for a text of more than 512 MiB.
  std::vector<int32_t> encode(std::string_view text, bool parse_special) const;

  // Bytes of all tokens. A control token has its text. Throws std::out_of_range for an id that the
  // vocabulary does not have.
  std::string decode(const std::vector<int32_t>& ids) const;

  // Bytes of one token, which may be a part of a character. Text that is generated token by token
  // is the concatenation of these. Throws as decode() does.
  std::string_view bytes(int32_t id) const;

  int32_t size() const { return vocabulary_.size(); }
  bool is_control(int32_t id) const { return vocabulary_.type(id) == TokenType::kControl; }
  // Id of a control or user-defined token by its text. Empty: there is none.
  std::optional<int32_t> special(std::string_view text) const;
  // Tokens for the beginning and the end of a text. Empty: the file names none.
  std::optional<int32_t> bos() const { return vocabulary_.bos(); }
  std::optional<int32_t> eos() const { return vocabulary_.eos(); }
  // Whether a prompt begins with bos(). The caller puts it there.
  bool add_bos() const { return vocabulary_.add_bos(); }

 private:
  Vocabulary vocabulary_;
  SpecialTokens control_, user_defined_;
  std::unique_ptr<const Encoder> encoder_;
  // Bytes of token i: [begins_[i], begins_[i + 1]).
  std::string bytes_;
  std::vector<size_t> begins_;
};

}  // namespace kvc::tokeniser
