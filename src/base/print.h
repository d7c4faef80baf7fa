// printf in the C locale: what the library writes, hashes and compares has the same bytes whatever
// locale the host program has set.
#pragma once

#include <cstdarg>
#include <cstddef>
#include <string>

namespace kvc {

// As vsnprintf and snprintf.
[[gnu::format(printf, 3, 0)]] int vprint(char* text, size_t size, const char* format,
                                         va_list args) noexcept;
[[gnu::format(printf, 3, 4)]] int print(char* text, size_t size, const char* format, ...) noexcept;

[[gnu::format(printf, 2, 3)]] void append_format(std::string& text, const char* format, ...);

// As %.<digits>g.
void append_real(std::string& text, double value, int digits);

// Copies a message for people into `out`, with a NUL, at most `size` > 0 bytes. Bytes that are no
// UTF-8 and control characters, such as those of a path, become "\xff". A character that does not
// fit, or that the end of `text` cuts, is left out.
void write_message(char* out, size_t size, const char* text) noexcept;

// Parsers of other libraries, which ask the thread's locale for its decimal point, see the C locale
// while one lives.
class CLocale {
 public:
  CLocale() noexcept;
  ~CLocale();
  CLocale(const CLocale&) = delete;
  CLocale& operator=(const CLocale&) = delete;

 private:
  void* before_;
};

}  // namespace kvc
