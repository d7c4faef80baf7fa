// Byte-level BPE, as of GPT-2 (`tokenizer.ggml.model` = gpt2). A pattern of the model
// (`tokenizer.ggml.pre`) divides a text into words, and the bytes of a word are merged by the list
// of the file (`tokenizer.ggml.merges`).
//
// A vocabulary may lack bytes that its training text did not have, such as control characters.
// These are left out of a text, as by the `tokenizers` package and llama.cpp. A file that lacks a
// byte of common text is refused.
//
// Text for qwen2 is brought into Unicode's form NFC, as by the `tokenizers` package. Special tokens
// are found before, and each stretch between two of them is normalised alone.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tools/gguf/file.h"
#include "tools/tokeniser/encoder.h"
#include "tools/tokeniser/merge.h"
#include "tools/tokeniser/special_tokens.h"
#include "tools/tokeniser/text_map.h"
#include "tools/tokeniser/vocabulary.h"
#include "tools/tokeniser/words.h"

namespace kvc::tokeniser {

class ByteLevelEncoder final : public Encoder {
 public:
  // The vocabulary and its user-defined tokens outlive the encoder.
  ByteLevelEncoder(const gguf::File& file, const Vocabulary& vocabulary,
                   const SpecialTokens& user_defined);

  void encode(std::string_view text, std::vector<int32_t>& ids) const override;
  std::string bytes(int32_t id) const override;
  bool adds_space() const override { return false; }

  // Appends the ids of one word, in memory that the next word may use again. Returns how many pairs
  // were looked up: at most three for each byte.
  size_t encode_word(std::string_view word, Merging& merging, std::vector<int32_t>& ids) const;

 private:
  using Ids = std::unordered_map<std::string_view, int32_t>;
  void find_bytes(const gguf::File& file, const Ids& id_of_text);
  void read_merges(const gguf::File& file, const Ids& id_of_text);
  void encode_plain(std::string_view text, std::vector<int32_t>& ids) const;

  const Vocabulary& vocabulary_;
  const SpecialTokens& user_defined_;
  WordPattern pattern_;
  // Token of each byte; -1: the vocabulary has none.
  std::array<int32_t, 256> id_of_byte_;
  // By the left token in the high half and the right one in the low half.
  std::unordered_map<uint64_t, Merged> merges_;
  // Normal tokens by their bytes, where the pattern keeps whole words.
  TextMap id_of_word_;
};

}  // namespace kvc::tokeniser
