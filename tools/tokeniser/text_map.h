// Ids by text, looked up without copying the text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>

namespace kvc::tokeniser {

struct TextHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};

using TextMap = std::unordered_map<std::string, int32_t, TextHash, std::equal_to<>>;

}  // namespace kvc::tokeniser
