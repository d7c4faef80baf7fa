// Characters of UTF-8 text.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace kvc::tokeniser {

// Bytes of the character that begins at `at`. 0: no character of valid UTF-8 begins there.
size_t character_bytes(std::string_view text, size_t at);

void append_character(std::string& text, char32_t character);

}  // namespace kvc::tokeniser
