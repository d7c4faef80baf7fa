#include "tools/demo/questions.h"

#include <algorithm>
#include <cstdint>
#include <stdexcept>

namespace kvc::demo {
namespace {

constexpr const char kHandbook[] =
#include "texts/handbook.inc"
    ;
constexpr const char kExamples[] =
#include "texts/examples.inc"
    ;
constexpr const char kQuestions[] =
#include "texts/questions.inc"
    ;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c; }
bool is_letter(char c) { return lower(c) >= 'a' && lower(c) <= 'z'; }
bool is_word(char c) { return is_digit(c) || is_letter(c); }
// What a number may have between two digits.
bool is_separator(char c) { return c == '.' || c == ','; }

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = lower(c);
  return result;
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

// The character `offset` places behind `at`; 0 outside of the text.
char near(std::string_view text, size_t at, int64_t offset) {
  const int64_t place = static_cast<int64_t>(at) + offset;
  return place < 0 || place >= static_cast<int64_t>(text.size()) ? '\0'
                                                                 : text[static_cast<size_t>(place)];
}

// Whether a word of the text begins at `at`, where `first` stands.
bool begins_word(std::string_view text, size_t at, char first) {
  const char before = near(text, at, -1);
  if (is_digit(first) && is_separator(before) && is_digit(near(text, at, -2))) return false;
  return !is_word(first) || !is_word(before);
}

// Whether a word of the text, whose last character is `last`, ends before `at`.
bool ends_word(std::string_view text, size_t at, char last) {
  const char after = near(text, at, 0);
  if (is_digit(last))
    return !is_digit(after) && !(is_separator(after) && is_digit(near(text, at, 1)));
  if (is_letter(last) && after == 's') return !is_word(near(text, at, 1));
  return !is_word(last) || !is_word(after);
}

}  // namespace

std::string_view handbook() { return kHandbook; }

std::vector<int32_t> handbook_prompt(const chat::ChatTemplate& chat_template) {
  std::vector<int32_t> prompt = chat_template.begin(handbook());
  for (const Question& example : parse_questions(kExamples)) {
    const std::vector<int32_t> turn = chat_template.whole_turn(example.text, example.expected);
    prompt.insert(prompt.end(), turn.begin(), turn.end());
  }
  return prompt;
}

std::vector<Question> questions() { return parse_questions(kQuestions); }

Question parse_question(std::string_view line) {
  const size_t bar = std::min(line.rfind('|'), line.size());
  return {std::string(trimmed(line.substr(0, bar))),
          std::string(trimmed(line.substr(std::min(bar + 1, line.size()))))};
}

std::vector<Question> parse_questions(std::string_view lines) {
  std::vector<Question> result;
  for (size_t begin = 0, number = 1; begin < lines.size(); ++number) {
    const size_t end = std::min(lines.find('\n', begin), lines.size());
    const std::string_view line = trimmed(lines.substr(begin, end - begin));
    begin = end + 1;
    if (line.empty()) continue;
    result.push_back(parse_question(line));
    if (result.back().text.empty() || result.back().expected.empty())
      throw std::invalid_argument("line " + std::to_string(number) +
                                  ": no `question | expected word`");
  }
  return result;
}

bool contains_word(std::string_view text, std::string_view word) {
  if (word.empty()) return false;
  const std::string in = lower(text), wanted = lower(word);
  for (size_t at = in.find(wanted); at != std::string::npos; at = in.find(wanted, at + 1)) {
    if (begins_word(in, at, wanted.front()) && ends_word(in, at + wanted.size(), wanted.back()))
      return true;
  }
  return false;
}

}  // namespace kvc::demo
