#include "tools/tokeniser/utf8.h"

namespace kvc::tokeniser {

size_t character_bytes(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  // The second byte is bounded where the first allows longer forms of shorter characters,
  // surrogates, or numbers above U+10FFFF.
  unsigned char low = 0x80, high = 0xbf;
  size_t bytes = 0;
  if (first >= 0xc2 && first <= 0xdf) {
    bytes = 2;
  } else if (first >= 0xe0 && first <= 0xef) {
    bytes = 3;
    if (first == 0xe0) low = 0xa0;
    if (first == 0xed) high = 0x9f;
  } else if (first >= 0xf0 && first <= 0xf4) {
    bytes = 4;
    if (first == 0xf0) low = 0x90;
    if (first == 0xf4) high = 0x8f;
  }
  if (bytes == 0 || bytes > text.size() - at || byte(1) < low || byte(1) > high) return 0;
  for (size_t i = 2; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  return bytes;
}

void append_character(std::string& text, char32_t character) {
  const auto put = [&](char32_t byte) { text += static_cast<char>(byte); };
  const auto tail = [&](int shift) { put(0x80 | (character >> shift & 0x3f)); };
  if (character < 0x80) {
    put(character);
  } else if (character < 0x800) {
    put(0xc0 | character >> 6);
    tail(0);
  } else if (character < 0x10000) {
    put(0xe0 | character >> 12);
    tail(6);
    tail(0);
  } else {
    put(0xf0 | character >> 18);
    tail(12);
    tail(6);
    tail(0);
  }
}

}  // namespace kvc::tokeniser
