// BPE by score, as of SentencePiece (`tokenizer.ggml.model` = llama). Spaces become U+2581, and the
// characters of the whole text are merged: the pair whose token has the highest score first
// (`tokenizer.ggml.scores`). A character without a token is encoded as its bytes.
//
//  * Where `tokenizer.ggml.add_space_prefix` is true or missing, a space goes before the text and
//    after each control token. Decoding takes it away.
//  * User-defined tokens are found before anything is merged, the space before the text included.
//  * U+2581 in a text comes back as a space, as from the `sentencepiece` package.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tools/gguf/file.h"
#include "tools/tokeniser/encoder.h"
#include "tools/tokeniser/merge.h"
#include "tools/tokeniser/special_tokens.h"
#include "tools/tokeniser/text_map.h"
#include "tools/tokeniser/vocabulary.h"

namespace kvc::tokeniser {

class SentencePieceEncoder final : public Encoder {
 public:
  // The vocabulary outlives the encoder.
  SentencePieceEncoder(const gguf::File& file, const Vocabulary& vocabulary);

  void encode(std::string_view text, std::vector<int32_t>& ids) const override;
  std::string bytes(int32_t id) const override;
  bool adds_space() const override { return adds_space_; }

  // Appends the ids of a text in which U+2581 stands for spaces, without user-defined tokens.
  // Returns how many pairs were looked up: at most three for each character.
  size_t encode_marked(std::string_view text, std::vector<int32_t>& ids) const;

 private:
  class Output;
  void find_bytes(const gguf::File& file);
  void rank_tokens(const gguf::File& file);

  const Vocabulary& vocabulary_;
  // User-defined tokens, with U+2581 for spaces.
  SpecialTokens user_defined_;
  // Normal and unused tokens, the ones that characters are merged to.
  TextMap id_of_text_;
  size_t longest_ = 0;  // Bytes of the longest of them.
  // By id: 0 for tokens with the highest score. Tokens of equal scores have equal ranks.
  std::vector<uint32_t> ranks_;
  std::array<int32_t, 256> id_of_byte_;
  bool adds_space_ = true;
};

}  // namespace kvc::tokeniser
