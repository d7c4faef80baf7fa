// What the terminal can show, and text in columns.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kvc::demo {

// Decides once, from the stream: colours only on a terminal without NO_COLOR (no-color.org).
bool colours_on_stdout();
bool stderr_is_terminal();

enum class Paint { kBold, kDim, kGreen, kRed };
std::string painted(std::string_view text, Paint paint, bool colours);
// 256-colour palette
std::string with_background(std::string_view text, int palette_colour, bool colours);

std::string format(const char* pattern, ...) __attribute__((format(printf, 1, 2)));
std::string left(std::string_view text, size_t width);
std::string right(std::string_view text, size_t width);
std::string grouped(int64_t value);     // 32,528
std::string mebibytes(uint64_t bytes);  // 251.2 MiB
std::string printable(std::string_view text,
                      size_t width);  // control and non-ASCII bytes as a dot, cut at width

}  // namespace kvc::demo
