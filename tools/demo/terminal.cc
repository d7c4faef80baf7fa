#include "tools/demo/terminal.h"

#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

namespace kvc::demo {

bool colours_on_stdout() {
  const char* no_colour = std::getenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  return isatty(STDOUT_FILENO) != 0 && !(no_colour && *no_colour) &&
         !(term && std::string_view(term) == "dumb");
}

bool stderr_is_terminal() { return isatty(STDERR_FILENO) != 0; }

std::string painted(std::string_view text, Paint paint, bool colours) {
  if (!colours) return std::string(text);
  const char* code = "1";
  if (paint == Paint::kDim) code = "2";
  if (paint == Paint::kGreen) code = "32";
  if (paint == Paint::kRed) code = "1;31";
  std::string result = format("\x1b[%sm", code);
  result += text;
  return result += "\x1b[0m";
}

std::string with_background(std::string_view text, int palette_colour, bool colours) {
  if (!colours) return std::string(text);
  return format("\x1b[30;48;5;%dm", palette_colour) + std::string(text) + "\x1b[0m";
}

std::string format(const char* pattern, ...) {
  char buffer[512];
  va_list arguments;
  va_start(arguments, pattern);
  const int length = std::vsnprintf(buffer, sizeof(buffer), pattern, arguments);
  va_end(arguments);
  return length > 0 ? std::string(buffer) : std::string();
}

std::string left(std::string_view text, size_t width) {
  std::string result(text);
  if (result.size() < width) result.append(width - result.size(), ' ');
  return result;
}

std::string right(std::string_view text, size_t width) {
  std::string result(text);
  if (result.size() < width) result.insert(0, width - result.size(), ' ');
  return result;
}

std::string grouped(int64_t value) {
  const std::string digits = std::to_string(value);
  std::string result;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0 && digits[i - 1] != '-') result += ',';
    result += digits[i];
  }
  return result;
}

std::string mebibytes(uint64_t bytes) {
  return format("%.1f MiB", static_cast<double>(bytes) / (1 << 20));
}

std::string printable(std::string_view text, size_t width) {
  std::string result;
  for (const char c : text) {
    if (result.size() == width) break;
    const auto byte = static_cast<unsigned char>(c);
    result += byte == '\n' || byte == '\t' ? ' ' : byte < 0x20 || byte > 0x7E ? '.' : c;
  }
  return result;
}

}  // namespace kvc::demo
