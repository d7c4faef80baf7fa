#include "tools/tokeniser/tokeniser.h"

#include <stdexcept>

#include "tools/tokeniser/byte_level.h"
#include "tools/tokeniser/sentencepiece.h"

namespace kvc::tokeniser {
namespace {

// Symbols have 32-bit places, and an encoder writes up to three bytes for one.
constexpr size_t kMaxBytes = size_t{1} << 29;

SpecialTokens tokens_of_type(const Vocabulary& vocabulary, TokenType type) {
  std::vector<std::pair<std::string, int32_t>> tokens;
  for (int32_t id = 0; id < vocabulary.size(); ++id) {
    if (vocabulary.type(id) == type) tokens.emplace_back(vocabulary.text(id), id);
  }
  return SpecialTokens(std::move(tokens));
}

}  // namespace

Tokeniser::Tokeniser(const gguf::File& file)
    : vocabulary_(file),
      control_(tokens_of_type(vocabulary_, TokenType::kControl)),
      user_defined_(tokens_of_type(vocabulary_, TokenType::kUserDefined)) {
  if (vocabulary_.model() == "llama") {
    encoder_ = std::make_unique<SentencePieceEncoder>(file, vocabulary_);
  } else {
    encoder_ = std::make_unique<ByteLevelEncoder>(file, vocabulary_, user_defined_);
  }
  begins_.reserve(static_cast<size_t>(size()) + 1);
  begins_.push_back(0);
  for (int32_t id = 0; id < size(); ++id) {
    bytes_ += encoder_->bytes(id);
    begins_.push_back(bytes_.size());
  }
}

std::vector<int32_t> Tokeniser::encode(std::string_view text, bool parse_special) const {
  if (text.size() > kMaxBytes)
    throw std::invalid_argument("the text has " + std::to_string(text.size()) +
                                " bytes, expected at most " + std::to_string(kMaxBytes));
  std::vector<int32_t> ids;
  const auto plain = [&](std::string_view stretch) { encoder_->encode(stretch, ids); };
  const auto control = [&](int32_t id) { ids.push_back(id); };
  if (parse_special) {
    control_.split(text, plain, control);
  } else if (!text.empty()) {
    plain(text);
  }
  return ids;
}

std::string Tokeniser::decode(const std::vector<int32_t>& ids) const {
  std::string text;
  bool begins = true;  // A text of encode() begins here.
  for (const int32_t id : ids) {
    std::string_view token = bytes(id);
    if (begins && encoder_->adds_space() && token.starts_with(' ')) token.remove_prefix(1);
    text += token;
    begins = is_control(id);
  }
  return text;
}

std::string_view Tokeniser::bytes(int32_t id) const {
  if (id < 0 || id >= size())
    throw std::out_of_range("token " + std::to_string(id) + ", expected 0 to " +
                            std::to_string(size() - 1));
  const size_t begin = begins_[static_cast<size_t>(id)];
  return std::string_view(bytes_).substr(begin, begins_[static_cast<size_t>(id) + 1] - begin);
}

std::optional<int32_t> Tokeniser::special(std::string_view text) const {
  const std::optional<int32_t> control = control_.id(text);
  return control ? control : user_defined_.id(text);
}

}  // namespace kvc::tokeniser
