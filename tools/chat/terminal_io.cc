#include "tools/chat/terminal_io.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "tools/tokeniser/utf8.h"

namespace kvc::chat {
namespace {

volatile sig_atomic_t interrupted = 0;
struct sigaction previous_action;

// Without SA_RESTART, so that reading a line ends.
void note(int) { interrupted = 1; }

}  // namespace

Interrupts::Interrupts() {
  struct sigaction action {};
  action.sa_handler = note;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, &previous_action);
}

Interrupts::~Interrupts() { sigaction(SIGINT, &previous_action, nullptr); }

bool Interrupts::take() {
  const bool was = interrupted != 0;
  interrupted = 0;
  return was;
}

bool Interrupts::is_pending() { return interrupted != 0; }

std::optional<std::string> LineReader::next(bool* was_interrupted) {
  *was_interrupted = false;
  for (;;) {
    if (const size_t end = buffer_.find('\n'); end != std::string::npos) {
      std::string line = buffer_.substr(0, end);
      buffer_.erase(0, end + 1);
      if (!line.empty() && line.back() == '\r') line.pop_back();
      return line;
    }
    if (ended_) {
      if (buffer_.empty()) return {};
      return std::exchange(buffer_, {});
    }
    // Also one that came before the read, which would not end it.
    if (Interrupts::take()) {
      *was_interrupted = true;
      buffer_.clear();
      return std::string();
    }
    char bytes[4096];
    const ssize_t count = read(STDIN_FILENO, bytes, sizeof bytes);
    if (count > 0) {
      buffer_.append(bytes, static_cast<size_t>(count));
    } else if (count == 0 || errno != EINTR) {
      ended_ = true;
    }
  }
}

std::string TextFilter::add(std::string_view bytes) {
  rest_ += bytes;
  return take(false);
}

std::string TextFilter::finish() { return take(true); }

std::string TextFilter::take(bool all) {
  constexpr size_t kLongestCharacter = 4;
  std::string out;
  size_t at = 0;
  while (at < rest_.size()) {
    const size_t count = tokeniser::character_bytes(rest_, at);
    if (count == 0) {
      // A beginning of a character waits for its end.
      if (!all && rest_.size() - at < kLongestCharacter &&
          static_cast<unsigned char>(rest_[at]) >= 0xc2)
        break;
      out += "\xef\xbf\xbd";
      ++at;
      continue;
    }
    const auto first = static_cast<unsigned char>(rest_[at]);
    const bool is_control =
        (count == 1 && (first < 0x20 || first == 0x7f)) ||
        (count == 2 && first == 0xc2 && static_cast<unsigned char>(rest_[at + 1]) < 0xa0);
    if (!is_control || first == '\n' || first == '\t') out.append(rest_, at, count);
    at += count;
  }
  rest_.erase(0, at);
  return out;
}

void put(std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(STDOUT_FILENO, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) throw OutputClosed();
    text.remove_prefix(static_cast<size_t>(count));
  }
}

}  // namespace kvc::chat
