#include "tools/svg/chart.h"

#include <algorithm>
#include <cmath>
#include <limits>

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

// Places of one chart: values to coordinates.
struct Frame {
  double left, top, width, height;
  double x_low, x_high, y_high;
  bool is_log;

  double place(double value) const {
    const double v = is_log ? std::log10(value) : value;
    return left + (v - x_low) / (x_high - x_low) * width;
  }
  double level(double value) const {
    return top + height * (1 - std::clamp(value / y_high, 0.0, 1.0));
  }
  double bottom() const { return top + height; }
};

bool is_drawn(const Point& point, bool is_log) {
  return std::isfinite(point.x) && std::isfinite(point.y) && (!is_log || point.x > 0);
}

Frame frame_of(const Chart& chart, double x, double y, double width, double height) {
  double low = std::numeric_limits<double>::infinity(), high = -low, top = 0;
  for (const Series& series : chart.series) {
    for (const Point& point : series.points) {
      if (!is_drawn(point, chart.is_log_x)) continue;
      low = std::min(low, point.x);
      high = std::max(high, point.x);
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
  if (top <= 0) top = chart.y_most > 0 ? chart.y_most : 1;
  // The axis ends at a tick, with room above the largest value.
  const double step = axis_step(top);
  double end = std::ceil(top / step) * step;
  if (top > end - kHeadRoom * step) end += step;
  top = chart.y_most > 0 ? std::min(end, chart.y_most) : end;
  return {x + kLeft, y + kTop, width - kLeft - kRight, height - kTop - kBottom, low,
          high,      top,      chart.is_log_x};
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
      for (const double factor : {1.0, 2.0, 5.0}) {
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
  const double step = axis_step(frame.y_high);
  for (int i = 0; i * step <= frame.y_high * 1.001; ++i) {
    const double py = frame.level(i * step);
    out += line(frame.left, py, frame.left + frame.width, py, kGrid);
    const std::string words = chart.y_text ? chart.y_text(i * step) : axis_text(i * step);
    out += text_at(frame.left - 6, py + 4, words, 12, kSoftInk, "end");
  }
  return out;
}

std::string path(const Series& series, const Frame& frame) {
  std::string course;
  double first = 0, last = 0;
  for (const Point& point : series.points) {
    if (!is_drawn(point, frame.is_log)) continue;
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
    if (point.note.empty() || !is_drawn(point, frame.is_log)) continue;
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
    out += text_at(right_edge, y, series->name, 12, kSoftInk, "end");
    // About the width of the words
    right_edge -= kLetter * static_cast<double>(series->name.size()) + 14;
    out += rectangle(right_edge, y - 9, 10, 10, series->colour);
    right_edge -= 16;
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
