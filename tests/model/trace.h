// The last operations of a random run, for people.
#pragma once

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <string>
#include <utility>

namespace kvc::test {

class Trace {
 public:
  void note(std::string line) {
    lines_.push_back(std::move(line));
    if (lines_.size() > 25) lines_.pop_front();
  }
  void note(int64_t step, const char* format, va_list args) {
    char text[200];
    std::vsnprintf(text, sizeof text, format, args);
    note(std::to_string(step) + ": " + text);
  }
  std::string describe() const {
    std::string text;
    for (const std::string& line : lines_) text += "  " + line + "\n";
    return text;
  }

 private:
  std::deque<std::string> lines_;
};

}  // namespace kvc::test
