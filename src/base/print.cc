#include "src/base/print.h"

#include <locale.h>
#ifdef __APPLE__
#include <xlocale.h>
#endif

#include <charconv>
#include <cstdio>
#include <cstring>

#include "src/base/process_mutex.h"

namespace kvc {
namespace {

locale_t c_locale() noexcept {
  static constinit ProcessOnce<locale_t> locale;
  return locale.get([] { return newlocale(LC_ALL_MASK, "C", nullptr); });
}

bool continues(unsigned char byte) { return (byte & 0xc0) == 0x80; }

// Bytes of the UTF-8 character that begins at `text`, as Unicode's table 3-7 lists them. 0: there
// is none, or it is a control character. Negative: the text ends inside of one.
int character_length(const unsigned char* text) {
  const unsigned char first = text[0];
  if (first < 0x80) return first >= 0x20 && first != 0x7f ? 1 : 0;
  if (first < 0xc2 || first > 0xf4) return 0;
  const int length = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  if (text[1] == 0) return -1;
  const unsigned char low = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
  const unsigned char high = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
  if (text[1] < low || text[1] > high) return 0;
  if (first == 0xc2 && text[1] < 0xa0) return 0;  // C1 controls.
  for (int at = 2; at < length; ++at) {
    if (text[at] == 0) return -1;
    if (!continues(text[at])) return 0;
  }
  return length;
}

}  // namespace

CLocale::CLocale() noexcept
    : before_(c_locale() == nullptr ? nullptr : static_cast<void*>(uselocale(c_locale()))) {}

CLocale::~CLocale() {
  if (before_ != nullptr) uselocale(static_cast<locale_t>(before_));
}

int vprint(char* text, size_t size, const char* format, va_list args) noexcept {
  const CLocale in_c;
  return std::vsnprintf(text, size, format, args);
}

int print(char* text, size_t size, const char* format, ...) noexcept {
  va_list args;
  va_start(args, format);
  const int length = vprint(text, size, format, args);
  va_end(args);
  return length;
}

void write_message(char* out, size_t size, const char* text) noexcept {
  const auto* at = reinterpret_cast<const unsigned char*>(text);
  size_t used = 0;
  while (*at != 0) {
    const int length = character_length(at);
    constexpr size_t kEscaped = 4;
    const size_t needed = length == 0 ? kEscaped : static_cast<size_t>(length);
    if (length < 0 || used + needed >= size) break;
    if (length == 0) {
      constexpr char kDigits[] = "0123456789abcdef";
      const char escaped[kEscaped] = {'\\', 'x', kDigits[*at >> 4], kDigits[*at & 15]};
      std::memcpy(out + used, escaped, kEscaped);
      at += 1;
    } else {
      std::memcpy(out + used, at, needed);
      at += length;
    }
    used += needed;
  }
  out[used] = '\0';
}

void append_format(std::string& text, const char* format, ...) {
  char line[512];
  va_list args;
  va_start(args, format);
  const auto length = static_cast<size_t>(vprint(line, sizeof line, format, args));
  va_end(args);
  if (length < sizeof line) {
    text.append(line, length);
    return;
  }
  std::string longer(length + 1, '\0');
  va_start(args, format);
  vprint(longer.data(), longer.size(), format, args);
  va_end(args);
  text.append(longer, 0, length);
}

void append_real(std::string& text, double value, int digits) {
  char number[64];
  const auto end =
      std::to_chars(number, number + sizeof number, value, std::chars_format::general, digits).ptr;
  text.append(number, end);
}

}  // namespace kvc
