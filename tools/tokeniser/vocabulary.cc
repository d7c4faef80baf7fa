#include "tools/tokeniser/vocabulary.h"

#include <limits>
#include <stdexcept>

namespace kvc::tokeniser {
namespace {

std::optional<int32_t> token_id(const gguf::File& file, const char* key, int32_t size) {
  const std::optional<int64_t> id = file.integer(key);
  if (!id) return {};
  if (*id < 0 || *id >= size)
    refuse(file, std::string(key) + " = " + std::to_string(*id) + ", expected 0 to " +
                     std::to_string(size - 1));
  return static_cast<int32_t>(*id);
}

}  // namespace

void refuse(const gguf::File& file, const std::string& what) {
  throw std::runtime_error(file.path() + ": " + what);
}

Vocabulary::Vocabulary(const gguf::File& file) {
  const std::optional<std::string_view> model = file.text("tokenizer.ggml.model");
  if (!model) refuse(file, "has no tokenizer.ggml.model");
  if (*model != "gpt2" && *model != "llama")
    refuse(file, "tokenizer.ggml.model = " + gguf::quoted(*model) + ", expected gpt2 or llama");
  model_ = *model;

  const std::optional<std::vector<std::string_view>> texts = file.texts("tokenizer.ggml.tokens");
  if (!texts) refuse(file, "has no tokenizer.ggml.tokens");
  const size_t size = texts->size();
  if (size == 0 || size > static_cast<size_t>(std::numeric_limits<int32_t>::max()))
    refuse(file, "tokenizer.ggml.tokens has " + std::to_string(size) +
                     " elements, expected 1 to 2,147,483,647");
  size_t bytes = 0;
  for (const std::string_view text : *texts) bytes += text.size();
  texts_.reserve(bytes);
  begins_.reserve(size + 1);
  begins_.push_back(0);
  for (const std::string_view text : *texts) {
    texts_ += text;
    begins_.push_back(texts_.size());
  }

  const std::optional<std::vector<int64_t>> types = file.integers("tokenizer.ggml.token_type");
  if (!types) refuse(file, "has no tokenizer.ggml.token_type");
  if (types->size() != size)
    refuse(file, "tokenizer.ggml.token_type has " + std::to_string(types->size()) +
                     " elements, but tokenizer.ggml.tokens has " + std::to_string(size));
  types_.reserve(size);
  for (size_t i = 0; i < size; ++i) {
    const int64_t type = (*types)[i];
    if (type < 1 || type > 6)
      refuse(file, "tokenizer.ggml.token_type of token " + std::to_string(i) + " is " +
                       std::to_string(type) + ", expected 1 to 6");
    types_.push_back(static_cast<TokenType>(type));
  }

  bos_ = token_id(file, "tokenizer.ggml.bos_token_id", this->size());
  eos_ = token_id(file, "tokenizer.ggml.eos_token_id", this->size());
  const std::optional<bool> add_bos = file.flag("tokenizer.ggml.add_bos_token");
  if (add_bos.value_or(false) && !bos_)
    refuse(file,
           "tokenizer.ggml.add_bos_token is true, but there is no tokenizer.ggml.bos_token_id");
  // Files of Llama models often leave the flag out.
  const bool is_llama = model_ == "llama" || file.text("tokenizer.ggml.pre") == "llama-bpe";
  add_bos_ = add_bos.value_or(is_llama && bos_.has_value());
}

std::string_view Vocabulary::text(int32_t id) const {
  const size_t begin = begins_[static_cast<size_t>(id)];
  return std::string_view(texts_).substr(begin, begins_[static_cast<size_t>(id) + 1] - begin);
}

}  // namespace kvc::tokeniser
