#include "tools/tokeniser/byte_level.h"

#include <optional>
#include <stdexcept>

#include "tools/tokeniser/normal_form.h"
#include "tools/tokeniser/utf8.h"

namespace kvc::tokeniser {
namespace {

// Texts of tokens have a visible character for each byte: the byte's own in Latin-1 where that is
// visible, and those from U+0100 on for the others, in the order of the bytes.
struct Alphabet {
  Alphabet() {
    char32_t next = 0x100;
    for (size_t byte = 0; byte < 256; ++byte) {
      const bool is_visible =
          (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte < 0x100 && byte != 0xad);
      append_character(characters[byte], is_visible ? static_cast<char32_t>(byte) : next++);
      bytes.emplace(characters[byte], static_cast<char>(byte));
    }
  }
  std::array<std::string, 256> characters;
  std::unordered_map<std::string_view, char> bytes;  // Its keys lie in `characters`.
};

const Alphabet& alphabet() {
  static const Alphabet made;
  return made;
}

// Empty: it has a character that stands for no byte.
std::optional<std::string> bytes_of_text(std::string_view text) {
  std::string bytes;
  for (size_t at = 0; at < text.size();) {
    const size_t length = character_bytes(text, at);
    const auto found = alphabet().bytes.find(text.substr(at, length));
    if (found == alphabet().bytes.end()) return {};
    bytes += found->second;
    at += length;
  }
  return bytes;
}

// Bytes of UTF-8 that nearly every text may have: visible ASCII, white space, and every character
// of Unicode that has a meaning. Its planes 4 to 13 are empty.
bool is_common(size_t byte) {
  return (byte >= 0x20 && byte < 0x7f) || byte == '\t' || byte == '\n' || byte == '\r' ||
         (byte >= 0x80 && byte < 0xc0) ||
         (byte >= 0xc2 && byte <= 0xf4 && byte != 0xf1 && byte != 0xf2);
}

std::string_view pre_of(const gguf::File& file) {
  const std::optional<std::string_view> pre = file.text("tokenizer.ggml.pre");
  if (!pre) refuse(file, "has no tokenizer.ggml.pre: expected smollm, llama-bpe or qwen2");
  return *pre;
}

WordPattern pattern_of(const gguf::File& file) try {
  return WordPattern(pre_of(file));
} catch (const std::invalid_argument& error) {
  refuse(file, error.what());
}

uint64_t pair_of(int32_t left, int32_t right) {
  return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
}

}  // namespace

ByteLevelEncoder::ByteLevelEncoder(const gguf::File& file, const Vocabulary& vocabulary,
                                   const SpecialTokens& user_defined)
    : vocabulary_(vocabulary), user_defined_(user_defined), pattern_(pattern_of(file)) {
  Ids id_of_text;
  for (int32_t id = 0; id < vocabulary.size(); ++id) {
    // No text becomes a control token by merges.
    const TokenType type = vocabulary.type(id);
    if (type == TokenType::kNormal || type == TokenType::kUserDefined)
      id_of_text.emplace(vocabulary.text(id), id);
  }
  find_bytes(file, id_of_text);
  read_merges(file, id_of_text);
  if (!pattern_.keeps_whole_words()) return;
  for (int32_t id = 0; id < vocabulary.size(); ++id) {
    if (vocabulary.type(id) != TokenType::kNormal) continue;
    if (std::optional<std::string> word = bytes_of_text(vocabulary.text(id)))
      id_of_word_.emplace(std::move(*word), id);
  }
}

void ByteLevelEncoder::find_bytes(const gguf::File& file, const Ids& id_of_text) {
  for (size_t byte = 0; byte < 256; ++byte) {
    const std::string& character = alphabet().characters[byte];
    const auto found = id_of_text.find(character);
    id_of_byte_[byte] = found == id_of_text.end() ? -1 : found->second;
    if (id_of_byte_[byte] < 0 && is_common(byte))
      refuse(file, "tokenizer.ggml.tokens has no normal token \"" + character + "\" for byte " +
                       std::to_string(byte) + ", expected one for each byte of common text");
  }
}

void ByteLevelEncoder::read_merges(const gguf::File& file, const Ids& id_of_text) {
  const std::optional<std::vector<std::string_view>> merges = file.texts("tokenizer.ggml.merges");
  if (!merges) refuse(file, "has no tokenizer.ggml.merges");
  merges_.reserve(merges->size());
  std::string text;
  for (size_t rank = 0; rank < merges->size(); ++rank) {
    const std::string_view merge = (*merges)[rank];
    const auto id = [&](std::string_view token) {
      const auto found = id_of_text.find(token);
      if (found == id_of_text.end())
        refuse(file, "tokenizer.ggml.merges has " + gguf::quoted(merge) + " as element " +
                         std::to_string(rank) + ", but tokenizer.ggml.tokens has no normal token " +
                         gguf::quoted(token));
      return found->second;
    };
    const size_t space = merge.find(' ');
    if (space == std::string_view::npos)
      refuse(file, "tokenizer.ggml.merges has " + gguf::quoted(merge) + " as element " +
                       std::to_string(rank) + ", expected two tokens with a space between them");
    const std::string_view left = merge.substr(0, space), right = merge.substr(space + 1);
    text.assign(left).append(right);
    merges_.emplace(pair_of(id(left), id(right)), Merged{static_cast<uint32_t>(rank), id(text)});
  }
}

void ByteLevelEncoder::encode(std::string_view text, std::vector<int32_t>& ids) const {
  user_defined_.split(
      text, [&](std::string_view plain) { encode_plain(plain, ids); },
      [&](int32_t id) { ids.push_back(id); });
}

void ByteLevelEncoder::encode_plain(std::string_view text, std::vector<int32_t>& ids) const {
  std::vector<std::string_view> words;
  std::string normalised;
  Merging merging;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t bytes = character_bytes(text, at);
    at += bytes;
    if (bytes > 0 && at < text.size()) continue;
    const std::string_view stretch = text.substr(begin, at - begin);
    words.clear();
    pattern_.split(pattern_.normalises() ? to_nfc(stretch, normalised) : stretch, words);
    if (bytes == 0) words.push_back(text.substr(at++, 1));
    begin = at;
    for (const std::string_view word : words) encode_word(word, merging, ids);
  }
}

size_t ByteLevelEncoder::encode_word(std::string_view word, Merging& merging,
                                     std::vector<int32_t>& ids) const {
  if (pattern_.keeps_whole_words()) {
    const auto found = id_of_word_.find(word);
    if (found != id_of_word_.end()) {
      ids.push_back(found->second);
      return 0;
    }
  }
  merging.clear();
  for (size_t at = 0; at < word.size(); ++at) {
    const int32_t id = id_of_byte_[static_cast<unsigned char>(word[at])];
    if (id >= 0) merging.append(id, at, 1);
  }
  const size_t asked = merging.run([&](const Symbol& left, const Symbol& right) {
    const auto found = merges_.find(pair_of(left.id, right.id));
    return found == merges_.end() ? std::optional<Merged>() : found->second;
  });
  for (const Symbol& symbol : merging.symbols()) {
    if (symbol.bytes > 0) ids.push_back(symbol.id);
  }
  return asked;
}

std::string ByteLevelEncoder::bytes(int32_t id) const {
  const std::string_view text = vocabulary_.text(id);
  if (vocabulary_.type(id) != TokenType::kNormal) return std::string(text);
  std::optional<std::string> bytes = bytes_of_text(text);
  return bytes ? std::move(*bytes) : std::string(text);
}

}  // namespace kvc::tokeniser
