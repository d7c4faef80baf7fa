#include "tools/replay/trace.h"

#include <cmath>

#include "tools/replay/trace_lines.h"

namespace kvc::replay {
namespace {

constexpr size_t kReasonsKept = 5;
constexpr int64_t kLinesPerProgress = 1000;

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t") == std::string_view::npos;
}

// Reads one file: what the first line is decides how the others are read.
class TraceReader {
 public:
  explicit TraceReader(const ReadOptions& options) : options_(options), lines_(options.path) {
    trace_.name = options.path == "-" ? "standard input" : options.path;
    trace_.name.erase(0, trace_.name.find_last_of('/') + 1);
    trace_.block_tokens = options.block_tokens;
  }

  Trace read() {
    std::string_view line;
    bool is_first = true;
    while (!is_full() && lines_.next(&line)) {
      if (options_.progress && lines_.number() % kLinesPerProgress == 0)
        options_.progress(lines_.fraction());
      if (is_blank(line)) continue;
      if (is_first) {
        is_first = false;
        if (begin_file(line)) continue;
      }
      try {
        add(line);
      } catch (const BadLine& bad) {
        skip(bad.what());
      }
    }
    if (trace_.requests.empty()) {
      throw TraceError(options_.path + ": no request in it" +
                       (trace_.skipped.empty() ? std::string() : "; " + trace_.skipped[0]));
    }
    return std::move(trace_);
  }

 private:
  bool is_full() const {
    return options_.limit > 0 && static_cast<int64_t>(trace_.requests.size()) >= options_.limit;
  }
  std::string place() const { return options_.path + ":" + std::to_string(lines_.number()) + ": "; }

  // True when the line is a header. A file that is no trace at all is refused whatever may be
  // skipped.
  bool begin_file(std::string_view line) {
    if (line[line.find_first_not_of(" \t")] == '{') return false;
    if (!is_csv_header(line)) {
      throw TraceError(place() +
                       "no known trace: neither a JSON object nor a CSV header with ContextTokens");
    }
    try {
      columns_ = csv_columns(line);
    } catch (const BadLine& bad) {
      throw TraceError(place() + bad.what());
    }
    trace_.kind = TraceKind::kLengths;
    is_csv_ = kind_is_known_ = true;
    return true;
  }

  void add(std::string_view line) {
    if (is_csv_) {
      add_csv_request(line, columns_, &trace_);
      return;
    }
    if (!kind_is_known_) {
      trace_.kind = kind_of_json(line);
      kind_is_known_ = true;
    }
    add_json_request(line, &trace_);
  }

  void skip(const char* reason) {
    if (!options_.skip_bad_lines) throw TraceError(place() + reason);
    ++trace_.skipped_lines;
    if (trace_.skipped.size() < kReasonsKept) trace_.skipped.push_back(place() + reason);
  }

  const ReadOptions& options_;
  LineReader lines_;
  Trace trace_;
  bool is_csv_ = false, kind_is_known_ = false;
  CsvColumns columns_;
};

}  // namespace

const char* kind_name(TraceKind kind) {
  switch (kind) {
    case TraceKind::kBlockIds: return "block ids";
    case TraceKind::kTokenIds: return "token ids";
    case TraceKind::kLengths: return "lengths only";
  }
  return "";
}

bool Trace::has_times() const {
  double last = -std::numeric_limits<double>::infinity();
  for (const TraceRequest& request : requests) {
    if (!(request.seconds >= last)) return false;  // also when unknown
    last = request.seconds;
  }
  return true;
}

int64_t Trace::prompt_tokens() const {
  int64_t sum = 0;
  for (const TraceRequest& request : requests) sum += request.prompt_tokens;
  return sum;
}

Trace read_trace(const ReadOptions& options) { return TraceReader(options).read(); }

}  // namespace kvc::replay
