#include "tools/svg/svg.h"

#include <cmath>

#include "tools/demo/terminal.h"

namespace kvc::svg {

using demo::format;

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '"')
      out += "&quot;";
    else
      out += c;
  }
  return out;
}

std::string text_at(double x, double y, std::string_view text, int size, const char* colour,
                    const char* anchor, bool bold) {
  return format("<text x=\"%.1f\" y=\"%.1f\" font-size=\"%d\" fill=\"%s\" text-anchor=\"%s\"%s>", x,
                y, size, colour, anchor, bold ? " font-weight=\"600\"" : "") +
         escaped(text) + "</text>\n";
}

std::string rectangle(double x, double y, double width, double height, std::string_view fill) {
  return format("<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"", x, y, width,
                height) +
         std::string(fill) + "\"/>\n";
}

std::string line(double x1, double y1, double x2, double y2, const char* colour) {
  return format("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\"/>\n", x1, y1,
                x2, y2, colour);
}

// Where the reader prefers a dark page, these rules replace the colours of background, text and
// lines. Data keeps its colours.
std::string dark_rules() {
  const auto rule = [](const char* attribute, const char* light, const char* dark) {
    return format("[%s=\"%s\"] { %s: %s }\n", attribute, light, attribute, dark);
  };
  constexpr const char *kPaperAtNight = "#14181d", *kSoftInkAtNight = "#a3adb8";
  return "<style>@media (prefers-color-scheme: dark) {\n" + rule("fill", kPaper, kPaperAtNight) +
         rule("stroke", kPaper, kPaperAtNight) + rule("fill", kInk, "#e6eaee") +
         rule("fill", kSoftInk, kSoftInkAtNight) + rule("stroke", kSoftInk, kSoftInkAtNight) +
         rule("stroke", kGrid, "#39424d") + "}</style>\n";
}

double axis_step(double largest) {
  const double power = std::pow(10.0, std::floor(std::log10(largest)) - 1);
  for (const double factor : {1.0, 2.0, 5.0, 10.0, 20.0}) {
    if (largest / (power * factor) <= 5.0) return power * factor;
  }
  return power * 50.0;
}

std::string figure(double width, double height, std::string_view body) {
  return format(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" "
             "height=\"%.0f\" "
             "font-family=\"system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif\">\n",
             width, height, width, height) +
         dark_rules() + rectangle(0, 0, width, height, kPaper) + std::string(body) + "</svg>\n";
}

}  // namespace kvc::svg
