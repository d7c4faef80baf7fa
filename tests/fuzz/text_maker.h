// Texts for parsers: an input that begins like a file is taken as it is, so that files are seeds;
// any other is read as choices, from which a text is made that is nearly right.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tests/fuzz/sized_struct.h"

namespace kvc::fuzz {

inline bool is_text(const uint8_t* data, size_t size, std::string_view first) {
  return size != 0 && first.find(static_cast<char>(data[0])) != std::string_view::npos;
}

inline std::string any_number(Input& input) {
  static const std::vector<std::string> kNumbers = {"0",
                                                    "1",
                                                    "2",
                                                    "3",
                                                    "8",
                                                    "16",
                                                    "32",
                                                    "64",
                                                    "128",
                                                    "4096",
                                                    "-1",
                                                    "1.5",
                                                    "1e9",
                                                    "2147483647",
                                                    "2147483648",
                                                    "4294967296",
                                                    "1e308",
                                                    "1e309",
                                                    "-0",
                                                    "16777217",
                                                    "0.25",
                                                    "1e-9",
                                                    "131072",
                                                    "600",
                                                    "1000000000",
                                                    "-2147483649",
                                                    "512",
                                                    "NaN",
                                                    "9223372036854775808"};
  return kNumbers[input.choose(kNumbers.size())];
}

inline std::string any_value(Input& input, int depth = 0) {
  switch (input.choose(depth > 3 ? 5 : 8)) {
    case 0:
    case 1: return any_number(input);
    case 2: return input.one_in(2) ? "true" : "false";
    case 3: return "null";
    case 4: return "\"" + std::string(input.choose(4), 'x') + "\"";
    case 5: return "{" + (input.one_in(2) ? "\"type\": " + any_value(input, depth + 1) : "") + "}";
    default: {
      std::string list = "[";
      for (size_t i = input.choose(5); i > 0; --i)
        list += any_value(input, depth + 1) + (i > 1 ? ", " : "");
      return list + "]";
    }
  }
}

}  // namespace kvc::fuzz
