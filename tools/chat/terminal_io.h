// Lines in and text out of a chat: a terminal or a pipe, with Ctrl-C as a request to stop.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace kvc::chat {

// While it lives, Ctrl-C does not end the program. One at a time.
class Interrupts {
 public:
  Interrupts();
  ~Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  // Whether Ctrl-C was pressed since the last call.
  static bool take();
  static bool is_pending();
};

class LineReader {
 public:
  // The next line of standard input without its end; empty: the input has ended. An interrupted
  // line is an empty one, and `interrupted` is set.
  std::optional<std::string> next(bool* interrupted);

 private:
  std::string buffer_;
  bool ended_ = false;
};

// Text that comes in any parts, as a terminal may show it: whole characters, and of control
// characters only line ends and tabs. Bytes that are no UTF-8 become U+FFFD.
class TextFilter {
 public:
  // What can be shown with these bytes.
  std::string add(std::string_view bytes);
  // What is left where a character was never finished.
  std::string finish();

 private:
  std::string take(bool all);

  std::string rest_;
};

// To standard output at once. Throws OutputClosed.
void put(std::string_view text);
struct OutputClosed {};

}  // namespace kvc::chat
