#include <algorithm>
#include <cmath>
#include <limits>

#include "tools/demo/demo_run.h"

namespace kvc::demo {

Comparison compare(const ServeResult& expected, const ServeResult& got) {
  Comparison result;
  for (size_t c = 0; c < expected.answers.size(); ++c) {
    const Answer& a = expected.answers[c];
    const Answer& b = got.answers[c];
    const size_t places = std::min(a.tokens.size(), b.tokens.size());
    const size_t kept = a.tokens.empty() ? 0 : a.logits.size() / a.tokens.size();
    bool differs = a.tokens.size() != b.tokens.size();
    size_t place = 0;
    for (; place < places; ++place) {
      for (size_t i = place * kept; i < (place + 1) * kept; ++i) {
        const double difference =
            std::fabs(static_cast<double>(a.logits[i]) - static_cast<double>(b.logits[i]));
        // A NaN must not look like agreement.
        result.max_logit_difference =
            difference <= result.max_logit_difference ? result.max_logit_difference
            : std::isnan(difference)                  ? std::numeric_limits<double>::infinity()
                                                      : difference;
      }
      ++result.tokens_compared;
      if (a.tokens[place] != b.tokens[place]) {
        differs = true;
        break;
      }
    }
    if (differs && result.identical) {
      result.identical = false;
      result.conversation = static_cast<int>(c);
      result.place = static_cast<int64_t>(place);
      result.expected = place < a.tokens.size() ? a.tokens[place] : Token{0};
      result.got = place < b.tokens.size() ? b.tokens[place] : Token{0};
    }
  }
  return result;
}

}  // namespace kvc::demo
