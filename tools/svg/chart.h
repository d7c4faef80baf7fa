// Line charts as SVG.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace kvc::svg {

struct Point {
  double x = 0, y = 0;
  std::string note;  // shown when the mouse is over it; empty: no mark
};

struct Series {
  std::string name;  // empty: not in the legend
  const char* colour = "";
  std::vector<Point> points;  // ascending x
  bool is_filled = false;     // down to zero
};

struct Chart {
  std::string title, x_label;
  std::vector<Series> series;
  bool is_log_x = false;  // points with x <= 0 are left out
  bool is_log_y = false;  // points with y <= 0 are left out
  // Largest value there can be, where a linear axis ends at most; 0: none.
  double y_most = 0;
  std::function<std::string(double)>
      y_text;  // nullable: grouped whole numbers, or decimals where the axis needs them
  // Vertical lines with a word above the frame.
  std::vector<std::pair<double, std::string>> x_marks;
};

// A chart with its upper left corner, title included, at (x, y).
std::string draw_chart(const Chart& chart, double x, double y, double width, double height);

// A number as an axis shows it: 12,000, 0.25.
std::string axis_text(double value);

}  // namespace kvc::svg
