#include "bench/text_windows.h"

#include <algorithm>

namespace kvc::bench {

std::vector<TextWindow> text_windows(int64_t tokens, int64_t window, int64_t stride) {
  std::vector<TextWindow> windows;
  int64_t judged = 1;
  for (int64_t begin = 0; judged < tokens; begin += stride) {
    const int64_t end = std::min(begin + window, tokens);
    windows.push_back({begin, end, judged});
    judged = end;
  }
  return windows;
}

}  // namespace kvc::bench
