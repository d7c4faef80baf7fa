#include "tools/tokeniser/normal_form.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "tools/tokeniser/utf8.h"

namespace kvc::tokeniser {
namespace {

constexpr auto kNfc = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);

// Characters below U+0300 keep their place and compose with no character before them.
constexpr int32_t kFirstThatChanges = 0x300;

[[noreturn]] void fail(utf8proc_ssize_t error) {
  throw std::runtime_error(std::string("utf8proc cannot normalise a text: ") +
                           utf8proc_errmsg(error));
}

// The character at `at`, which moves behind it.
int32_t next_character(std::string_view text, size_t& at) {
  int32_t character = 0;
  const utf8proc_ssize_t bytes =
      utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + at,
                       static_cast<utf8proc_ssize_t>(text.size() - at), &character);
  if (bytes <= 0) fail(bytes);
  at += static_cast<size_t>(bytes);
  return character;
}

// Appends the form NFC of a text. utf8proc's own function for this takes a square number of steps
// for a run of marks that are out of order.
void append_nfc(std::string_view text, std::vector<int32_t>& characters, std::string& to) {
  characters.clear();
  constexpr int kLongest = 32;  // Unicode's longest canonical decomposition has 4 characters.
  int32_t parts[kLongest];
  for (size_t at = 0; at < text.size();) {
    const utf8proc_ssize_t count =
        utf8proc_decompose_char(next_character(text, at), parts, kLongest, kNfc, nullptr);
    if (count < 0 || count > kLongest) fail(count);
    characters.insert(characters.end(), parts, parts + count);
  }
  // Unicode's class of a mark; 0: a character that no mark before it passes.
  const auto mark_class = [](int32_t character) {
    return utf8proc_get_property(character)->combining_class;
  };
  const auto is_mark = [&](int32_t character) { return mark_class(character) != 0; };
  for (auto at = characters.begin(); at != characters.end();) {
    const auto begin = std::find_if(at, characters.end(), is_mark);
    at = std::find_if_not(begin, characters.end(), is_mark);
    std::stable_sort(begin, at,
                     [&](int32_t a, int32_t b) { return mark_class(a) < mark_class(b); });
  }
  const utf8proc_ssize_t left = utf8proc_normalize_utf32(
      characters.data(), static_cast<utf8proc_ssize_t>(characters.size()), kNfc);
  if (left < 0) fail(left);
  for (utf8proc_ssize_t i = 0; i < left; ++i)
    append_character(to, static_cast<char32_t>(characters[static_cast<size_t>(i)]));
}

}  // namespace

std::string_view to_nfc(std::string_view text, std::string& storage) {
  storage.clear();
  std::vector<int32_t> characters;
  size_t done = 0;    // Bytes that are in `storage`, normalised.
  size_t before = 0;  // Begin of the last character below kFirstThatChanges.
  for (size_t at = 0; at < text.size();) {
    size_t begin = at;
    if (next_character(text, at) < kFirstThatChanges) {
      before = begin;
      continue;
    }
    // The run of others, with the character that it may compose with.
    size_t end = at;
    while (at < text.size() && next_character(text, at) >= kFirstThatChanges) end = at;
    begin = std::max(before, done);
    storage.append(text.substr(done, begin - done));
    append_nfc(text.substr(begin, end - begin), characters, storage);
    done = before = at = end;
  }
  if (storage == text.substr(0, done)) return text;
  storage.append(text.substr(done));
  return storage;
}

}  // namespace kvc::tokeniser
