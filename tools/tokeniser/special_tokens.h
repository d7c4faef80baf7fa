// Tokens that stand in a text as they are written, such as "<|im_end|>".
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvc::tokeniser {

class SpecialTokens {
 public:
  SpecialTokens() = default;
  // Texts and ids. Empty texts are left out; of equal texts the first counts.
  explicit SpecialTokens(std::vector<std::pair<std::string, int32_t>> tokens);

  struct Match {
    size_t begin, bytes;
    int32_t id;
  };
  // The leftmost token of the text from `begin` on, and of those that begin there the longest.
  std::optional<Match> find(std::string_view text, size_t begin) const;
  // The token with exactly this text.
  std::optional<int32_t> id(std::string_view text) const;

  // Calls plain(stretch) for each non-empty stretch without tokens and token(id) for each token, in
  // the order of the text.
  template <typename Plain, typename Token>
  void split(std::string_view text, const Plain& plain, const Token& token) const {
    size_t begin = 0;
    while (const std::optional<Match> match = find(text, begin)) {
      if (match->begin > begin) plain(text.substr(begin, match->begin - begin));
      token(match->id);
      begin = match->begin + match->bytes;
    }
    if (begin < text.size()) plain(text.substr(begin));
  }

 private:
  // Sorted by text.
  std::vector<std::pair<std::string, int32_t>> tokens_;
  // Tokens that begin with byte b: [begins_[b], begins_[b + 1]).
  std::array<size_t, 257> begins_{};
};

}  // namespace kvc::tokeniser
