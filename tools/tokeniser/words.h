// The words that byte-level BPE merges within. Unicode's classes are those of the installed PCRE2:
// 10.42 has Unicode 14.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

namespace kvc::tokeniser {

class WordPattern {
 public:
  // `pre` is the value of `tokenizer.ggml.pre`. Throws std::invalid_argument that says which are
  // served.
  explicit WordPattern(std::string_view pre);
  ~WordPattern();

  // Appends the words of valid UTF-8. Together they are the text.
  void split(std::string_view text, std::vector<std::string_view>& words) const;
  // Whether a word with a token of its own is that token, whatever the merges make of it.
  bool keeps_whole_words() const { return keeps_whole_words_; }
  // Whether text is brought into Unicode's form NFC before it is divided.
  bool normalises() const { return normalises_; }

 private:
  class Code;
  std::unique_ptr<const Code> code_;
  bool keeps_whole_words_ = false, normalises_ = false;
};

}  // namespace kvc::tokeniser
