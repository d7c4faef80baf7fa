#include <charconv>
#include <chrono>
#include <cmath>
#include <string>
#include <vector>

#include "tools/demo/terminal.h"
#include "tools/replay/trace_lines.h"

namespace kvc::replay {
namespace {

constexpr const char* kTime = "TIMESTAMP";
constexpr const char* kPrompt = "ContextTokens";
constexpr const char* kOutput = "GeneratedTokens";

std::string quoted(std::string_view text) { return "'" + demo::printable(text, 40) + "'"; }

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  if (text.size() >= 2 && text.front() == '"' && text.back() == '"')
    text = text.substr(1, text.size() - 2);
  return text;
}

// None of the columns read here can hold a comma.
std::vector<std::string_view> cells_of(std::string_view line) {
  std::vector<std::string_view> cells;
  while (true) {
    const size_t comma = line.find(',');
    cells.push_back(trimmed(line.substr(0, comma)));
    if (comma == std::string_view::npos) return cells;
    line.remove_prefix(comma + 1);
  }
}

int64_t count_of(std::string_view text, const char* column, int64_t low) {
  int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc::invalid_argument || stop != end) {
    throw BadLine(std::string(column) + " is " + quoted(text) + ", not a whole number");
  }
  if (error != std::errc() || value < low || value > kMaxTokens) {
    throw BadLine(std::string(column) + " is " + quoted(text) + "; it must lie in " +
                  std::to_string(low) + ".." + std::to_string(kMaxTokens));
  }
  return value;
}

// Reads numbers and separators from the front of a text.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  bool number(size_t digits, int* value) {
    if (text_.size() < digits) return false;
    const auto [stop, error] = std::from_chars(text_.data(), text_.data() + digits, *value);
    if (error != std::errc() || stop != text_.data() + digits || text_[0] == '-') return false;
    text_.remove_prefix(digits);
    return true;
  }
  bool any_of(std::string_view characters) {
    if (text_.empty() || characters.find(text_[0]) == std::string_view::npos) return false;
    text_.remove_prefix(1);
    return true;
  }
  double fraction() {
    double value = 0, place = 0.1;
    for (; !text_.empty() && text_[0] >= '0' && text_[0] <= '9';
         text_.remove_prefix(1), place /= 10) {
      value += place * (text_[0] - '0');
    }
    return value;
  }
  bool is_next(char character) const { return !text_.empty() && text_[0] == character; }
  bool is_done() const { return text_.empty(); }

 private:
  std::string_view text_;
};

bool date_and_time(std::string_view text, double* seconds) {
  Scanner in(text);
  int year = 0, month = 0, day = 0, hour = 0, minute = 0, second = 0;
  if (!(in.number(4, &year) && in.any_of("-") && in.number(2, &month) && in.any_of("-") &&
        in.number(2, &day) && in.any_of(" T") && in.number(2, &hour) && in.any_of(":") &&
        in.number(2, &minute) && in.any_of(":") && in.number(2, &second))) {
    return false;
  }
  const std::chrono::year_month_day date{std::chrono::year(year),
                                         std::chrono::month(static_cast<unsigned>(month)),
                                         std::chrono::day(static_cast<unsigned>(day))};
  if (!date.ok() || hour > 23 || minute > 59 || second > 60) return false;
  const double days = static_cast<double>(std::chrono::sys_days(date).time_since_epoch().count());
  *seconds = days * 86400 + hour * 3600 + minute * 60 + second;
  if (in.any_of(".")) *seconds += in.fraction();
  if (in.any_of("Z") || in.is_done()) return in.is_done();
  const double sign = in.is_next('-') ? 1 : -1;  // the offset is how far that clock is ahead
  int offset_hours = 0, offset_minutes = 0;
  if (!(in.any_of("+-") && in.number(2, &offset_hours))) return false;
  if (in.any_of(":") && !in.number(2, &offset_minutes)) return false;
  *seconds += sign * (offset_hours * 3600 + offset_minutes * 60);
  return in.is_done();
}

}  // namespace

double seconds_of(std::string_view text) {
  double seconds = 0;
  if (date_and_time(text, &seconds)) return seconds;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, seconds);
  if (error != std::errc() || stop != end || !std::isfinite(seconds)) {
    throw BadLine(std::string(kTime) + " is " + quoted(text) +
                  ", neither a date with a time nor seconds");
  }
  return seconds;
}

bool is_csv_header(std::string_view line) { return line.find(kPrompt) != std::string_view::npos; }

CsvColumns csv_columns(std::string_view header) {
  CsvColumns columns;
  const std::vector<std::string_view> cells = cells_of(header);
  columns.count = cells.size();
  for (size_t i = 0; i < cells.size(); ++i) {
    if (cells[i] == kTime) columns.time = static_cast<int>(i);
    if (cells[i] == kPrompt) columns.prompt = static_cast<int>(i);
    if (cells[i] == kOutput) columns.output = static_cast<int>(i);
  }
  if (columns.prompt < 0) throw BadLine(std::string("no column ") + kPrompt);
  if (columns.output < 0) throw BadLine(std::string("no column ") + kOutput);
  return columns;
}

void add_csv_request(std::string_view line, const CsvColumns& columns, Trace* trace) {
  const std::vector<std::string_view> cells = cells_of(line);
  if (cells.size() != columns.count) {
    throw BadLine(std::to_string(cells.size()) + " cells, but the header has " +
                  std::to_string(columns.count));
  }
  TraceRequest request;
  if (columns.time >= 0) request.seconds = seconds_of(cells[static_cast<size_t>(columns.time)]);
  request.prompt_tokens = count_of(cells[static_cast<size_t>(columns.prompt)], kPrompt, 1);
  request.output_tokens = count_of(cells[static_cast<size_t>(columns.output)], kOutput, 0);
  trace->requests.push_back(request);
}

}  // namespace kvc::replay
