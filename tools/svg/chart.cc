#include "tools/svg/chart.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <tuple>
#include <utility>

#include "tools/demo/terminal.h"
#include "tools/svg/svg.h"

namespace kvc::svg {
namespace {

using demo::format;

constexpr double kLeft = 64, kRight = 14, kTop = 44, kBottom = 42;  // around the plotting area
// Above the largest value, in ticks
constexpr double kHeadRoom = 0.2;
// About the width of one at size 12
constexpr double kLetter = 6.6;
// More than the mean width, so that names with wide letters end before the next colour
constexpr double kWideLetter = 7.2;
// Ticks of a logarithmic axis within a power of ten
constexpr double kFactors[] = {1, 2, 5};

// Places of one chart: values to coordinates.
struct Frame {
  double left, top, width, height;
  double x_low, x_high, y_low, y_high;  // logarithms of a logarithmic axis
  bool is_log_x, is_log_y;

  double place(double value) const {
    const double v = is_log_x ? std::log10(value) : value;
    return left + (v - x_low) / (x_high - x_low) * width;
  }
  double level(double value) const {
    const double v = is_log_y ? std::log10(value) : value;
    return top + height * (1 - std::clamp((v - y_low) / (y_high - y_low), 0.0, 1.0));
  }
  double bottom() const { return top + height; }
};

bool is_drawn(const Point& point, bool is_log_x, bool is_log_y) {
  return std::isfinite(point.x) && std::isfinite(point.y) && (!is_log_x || point.x > 0) &&
         (!is_log_y || point.y > 0);
}

// Logarithms of the last tick at or below `least`, and of the first one at or above `most`.
std::pair<double, double> log_range(double least, double most) {
  constexpr double kRounding = 1e-9;
  const double low = std::log10(least) + kRounding, high = std::log10(most) - kRounding;
  double begin = std::floor(low), end = std::floor(high) + 1;
  for (const double factor : kFactors) {
    const double part = std::log10(factor);
    if (std::floor(low) + part <= low) begin = std::floor(low) + part;
  }
  for (auto factor = std::rbegin(kFactors); factor != std::rend(kFactors); ++factor) {
    const double part = std::log10(*factor);
    if (std::floor(high) + part >= high) end = std::floor(high) + part;
  }
  return {begin, end};
}

Frame frame_of(const Chart& chart, double x, double y, double width, double height) {
  constexpr double kNone = std::numeric_limits<double>::infinity();
  double low = kNone, high = -kNone, least = kNone, top = 0;
  for (const Series& series : chart.series) {
    for (const Point& point : series.points) {
      if (!is_drawn(point, chart.is_log_x, chart.is_log_y)) continue;
      low = std::min(low, point.x);
      high = std::max(high, point.x);
      least = std::min(least, point.y);
      top = std::max(top, point.y);
    }
  }
  if (low > high) low = high = 1;
  if (chart.is_log_x) {
    low = std::log10(low);
    high = std::log10(high);
    const double room = std::max(0.05 * (high - low), 0.02);
    low -= room;
    high += room;
  } else {
    low = std::min(low, 0.0);
    if (high <= low) high = low + 1;
  }
  Frame frame{x + kLeft, y + kTop, width - kLeft - kRight, height - kTop - kBottom, low, high,
              0,         1,        chart.is_log_x,         chart.is_log_y};
  if (chart.is_log_y) {
    constexpr double kRoom = 1.1;  // for the marker of the largest value
    if (top <= 0) least = top = 1;
    std::tie(frame.y_low, frame.y_high) = log_range(least, kRoom * top);
    return frame;
  }
  if (top <= 0) top = chart.y_most > 0 ? chart.y_most : 1;
  // The axis ends at a tick, with room above the largest value.
  const double step = axis_step(top);
  double end = std::ceil(top / step) * step;
  if (top > end - kHeadRoom * step) end += step;
  frame.y_high = chart.y_most > 0 ? std::min(end, chart.y_most) : end;
  return frame;
}

std::string x_axis(const Chart& chart, const Frame& frame) {
  std::string out;
  const auto tick = [&](double value, bool has_text) {
    const double px = frame.place(value);
    out += line(px, frame.top, px, frame.bottom(), kGrid);
    if (has_text) out += text_at(px, frame.bottom() + 17, axis_text(value), 12, kSoftInk, "middle");
  };
  if (!chart.is_log_x) {
    const double step = axis_step(frame.x_high);
    for (int i = 0; i * step <= frame.x_high * 1.001; ++i) tick(i * step, true);
  } else {
    // 1, 2 and 5 of each power of ten, with words at all of them where they have room.
    constexpr double kWord = 62;
    const bool has_room = (frame.x_high - frame.x_low) * 3 * kWord < frame.width;
    for (auto power = static_cast<int>(std::floor(frame.x_low)); power <= frame.x_high; ++power) {
      for (const double factor : kFactors) {
        const double value = factor * std::pow(10.0, power);
        const double place = std::log10(value);
        if (place < frame.x_low || place > frame.x_high) continue;
        tick(value, factor == 1.0 || has_room);
      }
    }
  }
  return out + text_at(frame.left + frame.width / 2, frame.bottom() + 35, chart.x_label, 12,
                       kSoftInk, "middle");
}

std::string y_axis(const Chart& chart, const Frame& frame) {
  std::string out;
  const auto tick = [&](double value, bool has_text) {
    const double py = frame.level(value);
    out += line(frame.left, py, frame.left + frame.width, py, kGrid);
    if (!has_text) return;
    const std::string words = chart.y_text ? chart.y_text(value) : axis_text(value);
    out += text_at(frame.left - 6, py + 4, words, 12, kSoftInk, "end");
  };
  if (!chart.is_log_y) {
    const double step = axis_step(frame.y_high);
    for (int i = 0; i * step <= frame.y_high * 1.001; ++i) tick(i * step, true);
    return out;
  }
  constexpr double kLine = 15;
  const bool has_room = (frame.y_high - frame.y_low) * 3 * kLine < frame.height;
  for (auto power = static_cast<int>(std::floor(frame.y_low)); power <= frame.y_high; ++power) {
    for (const double factor : kFactors) {
      const double level = power + std::log10(factor);
      if (level < frame.y_low - 1e-9 || level > frame.y_high + 1e-9) continue;
      tick(factor * std::pow(10.0, power), factor == 1.0 || has_room);
    }
  }
  return out;
}

std::string path(const Series& series, const Frame& frame) {
  std::string course;
  double first = 0, last = 0;
  for (const Point& point : series.points) {
    if (!is_drawn(point, frame.is_log_x, frame.is_log_y)) continue;
    last = frame.place(point.x);
    if (course.empty()) first = last;
    course += format("%s%.1f %.1f", course.empty() ? "M" : "L", last, frame.level(point.y));
  }
  if (course.empty()) return "";
  std::string out;
  if (series.is_filled) {
    out += "<path d=\"" + course +
           format("L%.1f %.1fL%.1f %.1fZ\" fill=\"%s\" fill-opacity=\"0.35\"/>\n", last,
                  frame.bottom(), first, frame.bottom(), series.colour);
  }
  out += "<path d=\"" + course +
         format("\" fill=\"none\" stroke=\"%s\" stroke-width=\"1.6\" stroke-linejoin=\"round\"/>\n",
                series.colour);
  for (const Point& point : series.points) {
    if (point.note.empty() || !is_drawn(point, frame.is_log_x, frame.is_log_y)) continue;
    out += format("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" fill=\"%s\"><title>",
                  frame.place(point.x), frame.level(point.y), series.colour) +
           escaped(point.note) + "</title></circle>\n";
  }
  return out;
}

std::string chart_legend(const Chart& chart, double right_edge, double y) {
  std::string out;
  for (auto series = chart.series.rbegin(); series != chart.series.rend(); ++series) {
    if (series->name.empty()) continue;
    right_edge -= kWideLetter * static_cast<double>(series->name.size());
    out += text_at(right_edge, y, series->name, 12, kSoftInk, "start");
    out += rectangle(right_edge - 15, y - 9, 10, 10, series->colour);
    right_edge -= 29;
  }
  return out;
}

}  // namespace

std::string axis_text(double value) {
  if (value == std::floor(value)) return demo::grouped(std::llround(value));
  return format("%.3g", value);
}

std::string draw_chart(const Chart& chart, double x, double y, double width, double height) {
  const Frame frame = frame_of(chart, x, y, width, height);
  std::string out = text_at(x, y + 14, chart.title, 15, kInk, "start", true);
  out += chart_legend(chart, x + width - kRight, y + 14);
  out += x_axis(chart, frame) + y_axis(chart, frame);
  for (const auto& [value, word] : chart.x_marks) {
    const double px = frame.place(value);
    out += line(px, frame.top, px, frame.bottom(), kSoftInk);
    // Above the frame, where no curve passes, and not beyond its right edge.
    const double half = kLetter * static_cast<double>(word.size()) / 2;
    const double centre = std::min(px, frame.left + frame.width + kRight - half);
    out += text_at(centre, frame.top - 7, word, 12, kSoftInk, "middle");
  }
  for (const Series& series : chart.series) out += path(series, frame);
  return out;
}

}  // namespace kvc::svg
