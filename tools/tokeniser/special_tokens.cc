#include "tools/tokeniser/special_tokens.h"

#include <algorithm>

namespace kvc::tokeniser {

SpecialTokens::SpecialTokens(std::vector<std::pair<std::string, int32_t>> tokens)
    : tokens_(std::move(tokens)) {
  std::sort(tokens_.begin(), tokens_.end());
  const auto is_same = [](const auto& a, const auto& b) { return a.first == b.first; };
  tokens_.erase(std::unique(tokens_.begin(), tokens_.end(), is_same), tokens_.end());
  if (!tokens_.empty() && tokens_.front().first.empty()) tokens_.erase(tokens_.begin());
  for (const auto& [text, id] : tokens_) ++begins_[static_cast<unsigned char>(text[0]) + size_t{1}];
  for (size_t byte = 0; byte < 256; ++byte) begins_[byte + 1] += begins_[byte];
}

std::optional<SpecialTokens::Match> SpecialTokens::find(std::string_view text, size_t begin) const {
  if (tokens_.empty()) return {};
  for (size_t at = begin; at < text.size(); ++at) {
    const auto first = static_cast<unsigned char>(text[at]);
    size_t low = begins_[first], high = begins_[first + size_t{1}];
    std::optional<Match> longest;
    // Tokens [low, high) agree with the text in `bytes` bytes. A token that ends there is the first
    // of them.
    for (size_t bytes = 1; low < high; ++bytes) {
      if (tokens_[low].first.size() == bytes) longest = Match{at, bytes, tokens_[low++].second};
      if (at + bytes == text.size()) break;
      const auto next = static_cast<unsigned char>(text[at + bytes]);
      const auto byte_of = [bytes](const auto& token) {
        return static_cast<unsigned char>(token.first[bytes]);
      };
      const auto from = tokens_.begin() + static_cast<std::ptrdiff_t>(low);
      const auto to = tokens_.begin() + static_cast<std::ptrdiff_t>(high);
      const auto lower =
          std::partition_point(from, to, [&](const auto& token) { return byte_of(token) < next; });
      const auto upper = std::partition_point(
          lower, to, [&](const auto& token) { return byte_of(token) == next; });
      low = static_cast<size_t>(lower - tokens_.begin());
      high = static_cast<size_t>(upper - tokens_.begin());
    }
    if (longest) return longest;
  }
  return {};
}

std::optional<int32_t> SpecialTokens::id(std::string_view text) const {
  const auto found = std::lower_bound(
      tokens_.begin(), tokens_.end(), text,
      [](const auto& token, std::string_view wanted) { return token.first < wanted; });
  if (found == tokens_.end() || found->first != text) return {};
  return found->second;
}

}  // namespace kvc::tokeniser
