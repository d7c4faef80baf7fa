#include "tools/tokeniser/sentencepiece.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <unordered_map>
#include <utility>

#include "tools/tokeniser/utf8.h"

namespace kvc::tokeniser {
namespace {

constexpr std::string_view kSpaceMark = "\u2581";
constexpr std::string_view kHexDigits = "0123456789ABCDEF";

std::string with_marks(std::string_view text) {
  std::string marked;
  for (const char byte : text) {
    if (byte == ' ') {
      marked += kSpaceMark;
    } else {
      marked += byte;
    }
  }
  return marked;
}

std::string with_spaces(std::string_view text) {
  std::string plain;
  for (size_t at = 0; at < text.size();) {
    const size_t mark = text.find(kSpaceMark, at);
    plain += text.substr(at, mark - at);
    if (mark == std::string_view::npos) break;
    plain += ' ';
    at = mark + kSpaceMark.size();
  }
  return plain;
}

// "<0x0A>" for byte 10.
std::string name_of_byte(size_t byte) {
  return {'<', '0', 'x', kHexDigits[byte / 16], kHexDigits[byte % 16], '>'};
}

// Empty: the text is no name of a byte.
std::optional<unsigned char> byte_of_name(std::string_view name) {
  if (name.size() != 6) return {};
  const size_t high = kHexDigits.find(name[3]), low = kHexDigits.find(name[4]);
  if (high == std::string_view::npos || low == std::string_view::npos) return {};
  const size_t byte = high * 16 + low;
  if (name != name_of_byte(byte)) return {};
  return static_cast<unsigned char>(byte);
}

}  // namespace

SentencePieceEncoder::SentencePieceEncoder(const gguf::File& file, const Vocabulary& vocabulary)
    : vocabulary_(vocabulary) {
  adds_space_ = file.flag("tokenizer.ggml.add_space_prefix").value_or(true);
  if (file.flag("tokenizer.ggml.remove_extra_whitespaces").value_or(false))
    refuse(file, "tokenizer.ggml.remove_extra_whitespaces = true, expected false");
  std::vector<std::pair<std::string, int32_t>> user_defined;
  for (int32_t id = 0; id < vocabulary.size(); ++id) {
    const TokenType type = vocabulary.type(id);
    std::string text = with_marks(vocabulary.text(id));
    if (type == TokenType::kUserDefined) {
      user_defined.emplace_back(std::move(text), id);
    } else if (type == TokenType::kNormal || type == TokenType::kUnused) {
      longest_ = std::max(longest_, text.size());
      id_of_text_.emplace(std::move(text), id);
    }
  }
  user_defined_ = SpecialTokens(std::move(user_defined));
  if (id_of_text_.find(kSpaceMark) == id_of_text_.end())
    refuse(file, "tokenizer.ggml.tokens has no normal token \"" + std::string(kSpaceMark) +
                     "\", expected one for the space");
  find_bytes(file);
  rank_tokens(file);
}

void SentencePieceEncoder::find_bytes(const gguf::File& file) {
  id_of_byte_.fill(-1);
  for (int32_t id = 0; id < vocabulary_.size(); ++id) {
    if (vocabulary_.type(id) != TokenType::kByte) continue;
    const std::optional<unsigned char> byte = byte_of_name(vocabulary_.text(id));
    if (!byte)
      refuse(file, "tokenizer.ggml.tokens has " + gguf::quoted(vocabulary_.text(id)) +
                       " for a byte as element " + std::to_string(id) +
                       ", expected <0x00> to <0xFF>");
    id_of_byte_[*byte] = id;
  }
  for (size_t byte = 0; byte < 256; ++byte) {
    if (id_of_byte_[byte] < 0)
      refuse(file, "tokenizer.ggml.tokens has no byte token \"" + name_of_byte(byte) +
                       "\", expected one for each byte");
  }
}

void SentencePieceEncoder::rank_tokens(const gguf::File& file) {
  const std::optional<std::vector<float>> scores = file.numbers("tokenizer.ggml.scores");
  if (!scores) refuse(file, "has no tokenizer.ggml.scores");
  const auto size = static_cast<size_t>(vocabulary_.size());
  if (scores->size() != size)
    refuse(file, "tokenizer.ggml.scores has " + std::to_string(scores->size()) +
                     " elements, but tokenizer.ggml.tokens has " + std::to_string(size));
  for (size_t i = 0; i < size; ++i) {
    if (std::isnan((*scores)[i]))
      refuse(file,
             "tokenizer.ggml.scores of token " + std::to_string(i) + " is NaN, expected a number");
  }
  std::vector<size_t> order(size);
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return (*scores)[a] > (*scores)[b]; });
  ranks_.resize(size);
  uint32_t rank = 0;
  for (size_t i = 0; i < size; ++i) {
    if (i > 0 && (*scores)[order[i]] < (*scores)[order[i - 1]]) ++rank;
    ranks_[order[i]] = rank;
  }
}

void SentencePieceEncoder::encode(std::string_view text, std::vector<int32_t>& ids) const {
  std::string marked(adds_space_ ? kSpaceMark : std::string_view());
  marked += with_marks(text);
  user_defined_.split(
      marked, [&](std::string_view plain) { encode_marked(plain, ids); },
      [&](int32_t id) { ids.push_back(id); });
}

// Writes what was merged. An unused token is written as the two tokens that it was merged from.
class SentencePieceEncoder::Output {
 public:
  Output(const SentencePieceEncoder& encoder, std::vector<int32_t>& ids)
      : encoder_(encoder), ids_(ids) {}

  bool is_unused(int32_t id) const { return encoder_.vocabulary_.type(id) == TokenType::kUnused; }
  // Remembers the bytes of the first of two symbols that become an unused token.
  void remember(int32_t id, int32_t first_bytes) { first_bytes_[id] = first_bytes; }

  void put(std::string_view text) {
    const auto found = encoder_.id_of_text_.find(text);
    if (found == encoder_.id_of_text_.end()) {
      for (const char byte : text)
        ids_.push_back(encoder_.id_of_byte_[static_cast<unsigned char>(byte)]);
      return;
    }
    const int32_t id = found->second;
    const auto first = is_unused(id) ? first_bytes_.find(id) : first_bytes_.end();
    if (first == first_bytes_.end()) {
      ids_.push_back(id);
      return;
    }
    const auto bytes = static_cast<size_t>(first->second);
    put(text.substr(0, bytes));
    put(text.substr(bytes));
  }

 private:
  const SentencePieceEncoder& encoder_;
  std::vector<int32_t>& ids_;
  std::unordered_map<int32_t, int32_t> first_bytes_;
};

size_t SentencePieceEncoder::encode_marked(std::string_view text, std::vector<int32_t>& ids) const {
  Merging merging;
  Output output(*this, ids);
  for (size_t at = 0; at < text.size();) {
    const size_t bytes = std::max<size_t>(character_bytes(text, at), 1);
    merging.append(-1, at, bytes);
    at += bytes;
  }
  const auto text_at = [&](int32_t begin, int32_t bytes) {
    return text.substr(static_cast<size_t>(begin), static_cast<size_t>(bytes));
  };
  const size_t asked = merging.run([&](const Symbol& left, const Symbol& right) {
    const int32_t bytes = left.bytes + right.bytes;
    if (static_cast<size_t>(bytes) > longest_) return std::optional<Merged>();
    const auto found = id_of_text_.find(text_at(left.begin, bytes));
    if (found == id_of_text_.end()) return std::optional<Merged>();
    const int32_t id = found->second;
    if (output.is_unused(id)) output.remember(id, left.bytes);
    return std::optional<Merged>({ranks_[static_cast<size_t>(id)], id});
  });
  for (const Symbol& symbol : merging.symbols()) {
    if (symbol.bytes > 0) output.put(text_at(symbol.begin, symbol.bytes));
  }
  return asked;
}

std::string SentencePieceEncoder::bytes(int32_t id) const {
  const std::string_view text = vocabulary_.text(id);
  switch (vocabulary_.type(id)) {
    case TokenType::kByte: return {static_cast<char>(*byte_of_name(text))};
    case TokenType::kUnknown:
    case TokenType::kControl: return std::string(text);
    default: return with_spaces(text);
  }
}

}  // namespace kvc::tokeniser
