#include "tools/chat/default_system.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "tools/tokeniser/utf8.h"

namespace kvc::chat {
namespace {

constexpr std::string_view kBegin = "<|im_start|>system\n", kEnd = "<|im_end|>";
constexpr std::string_view kMessage = "<|im_start|>";
constexpr std::string_view kSpaces = " \t\r\n";

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

std::string_view without_spaces(std::string_view text) {
  const size_t begin = text.find_first_not_of(kSpaces);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpaces) + 1 - begin);
}

// Place behind the string literal that begins at `at`.
size_t literal_end(std::string_view text, size_t at) {
  const char quote = text[at];
  for (++at; at < text.size() && text[at] != quote; ++at) {
    if (text[at] == '\\') ++at;
  }
  return at + 1;
}

// Place of `close` outside of string literals; npos: there is none.
size_t find_close(std::string_view text, size_t at, std::string_view close) {
  while (at < text.size()) {
    if (text.substr(at, close.size()) == close) return at;
    at = text[at] == '\'' || text[at] == '"' ? literal_end(text, at) : at + 1;
  }
  return std::string_view::npos;
}

// Digits of an escape sequence for a character; 0: it is none.
size_t hex_digits(char letter) { return letter == 'x' ? 2 : letter == 'u' ? 4 : 0; }

// The character of `text`, hexadecimal digits. Empty: something else stands there.
std::optional<char32_t> hex_value(std::string_view text, size_t digits) {
  if (text.size() < digits) return {};
  char32_t value = 0;
  for (const char digit : text.substr(0, digits)) {
    const size_t place = std::string_view("0123456789abcdefABCDEF").find(digit);
    if (place == std::string_view::npos) return {};
    value = value * 16 + static_cast<char32_t>(place < 16 ? place : place - 6);
  }
  return value;
}

// Appends the value of a literal, given without its quotes.
void append_literal(std::string& value, std::string_view literal) {
  static constexpr std::string_view kLetters = "ntr\\'\"\n", kValues = "\n\t\r\\'\"";
  for (size_t at = 0; at < literal.size(); ++at) {
    if (literal[at] != '\\' || at + 1 == literal.size()) {
      value += literal[at];
      continue;
    }
    const char letter = literal[++at];
    const size_t place = kLetters.find(letter);
    if (place < kValues.size()) {
      value += kValues[place];
    } else if (place == std::string_view::npos) {
      const size_t digits = hex_digits(letter);
      const std::optional<char32_t> character =
          digits == 0 ? std::nullopt : hex_value(literal.substr(at + 1), digits);
      if (character) {
        tokeniser::append_character(value, *character);
        at += digits;
      } else {
        value += '\\';
        value += letter;
      }
    }
  }
}

// Value of an expression of literals joined by + or ~. Empty: it is another expression.
std::optional<std::string> constant(std::string_view expression) {
  std::string value;
  bool wants_literal = true;
  for (size_t at = 0; at < expression.size();) {
    const char first = expression[at];
    if (contains(kSpaces, std::string_view(&first, 1))) {
      ++at;
    } else if (wants_literal && (first == '\'' || first == '"')) {
      const size_t end = literal_end(expression, at);
      if (end > expression.size()) return {};
      append_literal(value, expression.substr(at + 1, end - at - 2));
      at = end;
      wants_literal = false;
    } else if (!wants_literal && (first == '+' || first == '~')) {
      ++at;
      wants_literal = true;
    } else {
      return {};
    }
  }
  if (wants_literal) return {};
  return value;
}

// Whether a chat without system message and without tools takes the branch with this condition.
bool is_taken(std::string_view condition) {
  if (contains(condition, "tools") && !contains(condition, "not tools")) return false;
  return condition.starts_with("not ") || contains(condition, "system") ||
         contains(condition, "messages") || contains(condition, "loop.");
}

// Goes through a template and joins the constants that nothing stands between.
class Scanner {
 public:
  explicit Scanner(std::string_view jinja) : jinja_(jinja) {}

  std::optional<std::string> run() {
    for (size_t at = 0; at < jinja_.size() && !found_;) {
      const size_t open = find_open(at);
      add_raw(jinja_.substr(at, open - at), open);
      if (open == std::string_view::npos) break;
      at = read_tag(open);
    }
    end_constant();
    return std::move(found_);
  }

 private:
  // Place of the next "{{", "{%" or "{#".
  size_t find_open(size_t at) const {
    while ((at = jinja_.find('{', at)) != std::string_view::npos) {
      const std::string_view next = jinja_.substr(at + 1, 1);
      if (next == "{" || next == "%" || next == "#") return at;
      ++at;
    }
    return at;
  }

  // Text outside of tags, without the spaces that tags with a minus take away.
  void add_raw(std::string_view text, size_t open) {
    if (trims_next_) text.remove_prefix(std::min(text.find_first_not_of(kSpaces), text.size()));
    if (open != std::string_view::npos && jinja_.substr(open + 2, 1) == "-")
      text = text.substr(0, text.find_last_not_of(kSpaces) + 1);
    constant_ += text;
  }

  // Returns the place behind the tag.
  size_t read_tag(size_t open) {
    const char kind = jinja_[open + 1];
    const char* close_text = kind == '{' ? "}}" : kind == '%' ? "%}" : "#}";
    const size_t close =
        kind == '#' ? jinja_.find(close_text, open + 2) : find_close(jinja_, open + 2, close_text);
    if (close == std::string_view::npos) return jinja_.size();
    std::string_view content = jinja_.substr(open + 2, close - open - 2);
    trims_next_ = content.ends_with('-');
    if (trims_next_) content.remove_suffix(1);
    if (content.starts_with('-') || content.starts_with('+')) content.remove_prefix(1);
    content = without_spaces(content);
    if (kind == '%') {
      end_constant();
      read_statement(content);
    } else if (kind == '{') {
      const std::optional<std::string> value = constant(content);
      if (value) {
        constant_ += *value;
      } else {
        end_constant();
      }
    }
    return close + 2;
  }

  void read_statement(std::string_view statement) {
    const size_t word_end = std::min(statement.find_first_of(kSpaces), statement.size());
    const std::string_view word = statement.substr(0, word_end);
    const std::string_view condition = without_spaces(statement.substr(word_end));
    if (word == "if") {
      branches_.push_back(is_taken(condition));
    } else if (word == "for") {
      branches_.push_back(true);
    } else if ((word == "endif" || word == "endfor") && !branches_.empty()) {
      branches_.pop_back();
    } else if (word == "elif" && !branches_.empty()) {
      branches_.back() = is_taken(condition);
    } else if (word == "else" && !branches_.empty()) {
      branches_.back() = true;
    }
  }

  // Looks for the message in the constant that ends here, if its branches are taken.
  void end_constant() {
    const std::string text = std::exchange(constant_, {});
    const size_t begin = text.find(kBegin);
    if (found_ || begin == std::string::npos) return;
    if (std::find(branches_.begin(), branches_.end(), false) != branches_.end()) return;
    const size_t end = text.find(kEnd, begin + kBegin.size());
    if (end == std::string::npos) return;
    std::string message = text.substr(begin + kBegin.size(), end - begin - kBegin.size());
    if (!message.empty() && !contains(message, kMessage)) found_ = std::move(message);
  }

  std::string_view jinja_;
  bool trims_next_ = false;
  std::string constant_;
  // For each open `if` and `for`, whether the current branch is taken.
  std::vector<bool> branches_;
  std::optional<std::string> found_;
};

}  // namespace

std::optional<std::string> default_system(std::string_view jinja) { return Scanner(jinja).run(); }

}  // namespace kvc::chat
