// Parts of an SVG figure in the style that all figures of the command share.
#pragma once

#include <string>
#include <string_view>

namespace kvc::svg {

constexpr const char* kPaper = "#ffffff";
constexpr const char* kInk = "#1f2933";
constexpr const char* kSoftInk = "#5f6c7b";
constexpr const char* kGrid = "#dde3ea";
constexpr const char* kDark = "#2f6db3";
constexpr const char* kLight = "#b9d3ee";
constexpr const char* kWarm = "#c8553d";

// Text as XML and HTML take it, inside an element or a quoted attribute.
std::string escaped(std::string_view text);

std::string text_at(double x, double y, std::string_view text, int size, const char* colour,
                    const char* anchor = "start", bool bold = false);
std::string rectangle(double x, double y, double width, double height, std::string_view fill);
std::string line(double x1, double y1, double x2, double y2, const char* colour);

// 1, 2 or 5 times a power of ten, so that an axis up to `largest` has at most five parts.
double axis_step(double largest);

// The whole figure around its body. The background is white, or dark where the reader prefers
// dark pages.
std::string figure(double width, double height, std::string_view body);

}  // namespace kvc::svg
