// Windows over a text, for a model that judges each token by those before it.
#pragma once

#include <cstdint>
#include <vector>

namespace kvc::bench {

// Tokens [begin, end) of the text. The probabilities of tokens [judged, end) are taken here.
struct TextWindow {
  int64_t begin, end, judged;
};

// Window k begins at token k * stride and has `window` tokens, or ends with the text; the last one
// is the first that does. Each judges the tokens that no earlier one has, so every token but the
// first is judged once, behind at least window - stride tokens where the text has so many before
// it. 1 <= stride < window.
std::vector<TextWindow> text_windows(int64_t tokens, int64_t window, int64_t stride);

}  // namespace kvc::bench
