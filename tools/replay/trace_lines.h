// One line of a trace: what it must hold.
#pragma once

#include <stdexcept>
#include <string_view>

#include "tools/replay/trace.h"

namespace kvc::replay {

// A line that cannot be replayed; the message says what is wrong, not where.
struct BadLine : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Tokens of a prompt or an output at most. A line of 20 bytes then costs no more memory and time
// than the longest context that a model has today: keys take 32 bytes per block.
constexpr int64_t kMaxTokens = int64_t{1} << 24;

// Whether the JSON objects of a file have block ids or token ids. Throws BadLine.
TraceKind kind_of_json(std::string_view line);
// Adds the request to `trace`, whose kind is set, or throws BadLine and leaves it as it was.
void add_json_request(std::string_view line, Trace* trace);

// Where the columns of a CSV file are.
struct CsvColumns {
  int time = -1, prompt = -1, output = -1;
  size_t count = 0;
};
bool is_csv_header(std::string_view line);
CsvColumns csv_columns(std::string_view header);  // throws BadLine
void add_csv_request(std::string_view line, const CsvColumns& columns, Trace* trace);

// "2023-11-16 18:15:46.6805900", also with T, Z and an offset like +00:00; or a number of seconds.
// Throws BadLine.
double seconds_of(std::string_view text);

}  // namespace kvc::replay
