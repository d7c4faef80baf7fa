#include "src/base/print.h"

#include <locale.h>
#ifdef __APPLE__
#include <xlocale.h>
#endif

#include <charconv>
#include <cstdio>

#include "src/base/process_mutex.h"

namespace kvc {
namespace {

locale_t c_locale() noexcept {
  static constinit ProcessOnce<locale_t> locale;
  return locale.get([] { return newlocale(LC_ALL_MASK, "C", nullptr); });
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
