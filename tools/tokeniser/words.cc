#define PCRE2_CODE_UNIT_WIDTH 8
#include "tools/tokeniser/words.h"

#include <pcre2.h>

#include <limits>
#include <new>
#include <stdexcept>
#include <string>

#include "tools/gguf/file.h"

namespace kvc::tokeniser {
namespace {

struct Pre {
  std::string_view name;
  std::string_view pattern;
  bool keeps_whole_words, normalises;
};

// `\s` stands for the members of kWhiteSpace and is always within brackets. Every character begins
// a match of each pattern.
constexpr Pre kPres[] = {
    // GPT-2's pattern, after every digit was made a word by itself: no word reaches across a digit,
    // and white space before one is at the end of its text.
    {"smollm",
     R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|[\s]+(?![^\s\p{N}])|[\s]+)",
     false, false},
    {"llama-bpe",
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
     R"( ?[^\s\p{L}\p{N}]+[\r\n]*|[\s]*[\r\n]+|[\s]+(?![^\s])|[\s]+)",
     true, false},
    {"qwen2",
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
     R"( ?[^\s\p{L}\p{N}]+[\r\n]*|[\s]*[\r\n]+|[\s]+(?![^\s])|[\s]+)",
     false, true},
};

// Unicode's property White_Space. PCRE2's own class also has U+180E.
constexpr std::string_view kWhiteSpace =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f})"
    R"(\x{3000})";

const Pre& pre_of(std::string_view name) {
  for (const Pre& pre : kPres) {
    if (pre.name == name) return pre;
  }
  throw std::invalid_argument("tokenizer.ggml.pre = " + gguf::quoted(name) +
                              ", expected smollm, llama-bpe or qwen2");
}

std::string with_white_space(std::string_view pattern) {
  std::string out;
  for (size_t at = 0; at < pattern.size(); ++at) {
    if (pattern.substr(at, 2) == R"(\s)") {
      out += kWhiteSpace;
      ++at;
    } else {
      out += pattern[at];
    }
  }
  return out;
}

std::string message_of(int error) {
  PCRE2_UCHAR message[256] = {};
  pcre2_get_error_message(error, message, sizeof message);
  return reinterpret_cast<const char*>(message);
}

}  // namespace

class WordPattern::Code {
 public:
  explicit Code(const std::string& pattern) : context_(owned(pcre2_match_context_create(nullptr))) {
    int error = 0;
    PCRE2_SIZE at = 0;
    code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                              PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED, &error, &at, nullptr));
    if (code_ == nullptr)
      throw std::runtime_error("PCRE2 refuses the words' pattern at " + std::to_string(at) + ": " +
                               message_of(error));
    // Where there is no JIT compiler, or none may run, matches are interpreted.
    pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE);
    // A match of a run of white space goes back over all of it once.
    pcre2_set_match_limit(context_.get(), std::numeric_limits<uint32_t>::max());
  }

  void split(std::string_view text, std::vector<std::string_view>& words) const {
    const auto data = owned(pcre2_match_data_create(1, nullptr));
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    for (size_t at = 0; at < text.size();) {
      const int found = pcre2_match(code_.get(), subject, text.size(), at, PCRE2_NO_UTF_CHECK,
                                    data.get(), context_.get());
      if (found < 0)
        throw std::runtime_error("PCRE2 cannot split a text at byte " + std::to_string(at) + ": " +
                                 message_of(found));
      const size_t end = pcre2_get_ovector_pointer(data.get())[1];
      words.push_back(text.substr(at, end - at));
      at = end;
    }
  }

 private:
  struct Free {
    void operator()(pcre2_code* code) const { pcre2_code_free(code); }
    void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
    void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
  };
  template <typename T>
  static std::unique_ptr<T, Free> owned(T* made) {
    if (made == nullptr) throw std::bad_alloc();
    return std::unique_ptr<T, Free>(made);
  }

  std::unique_ptr<pcre2_code, Free> code_;
  std::unique_ptr<pcre2_match_context, Free> context_;
};

WordPattern::WordPattern(std::string_view pre)
    : code_(std::make_unique<Code>(with_white_space(pre_of(pre).pattern))),
      keeps_whole_words_(pre_of(pre).keeps_whole_words),
      normalises_(pre_of(pre).normalises) {}

WordPattern::~WordPattern() = default;

void WordPattern::split(std::string_view text, std::vector<std::string_view>& words) const {
  code_->split(text, words);
}

}  // namespace kvc::tokeniser
