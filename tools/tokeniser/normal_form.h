// Unicode's normal form NFC, for models whose text is normalised. Classes and compositions of
// characters are those of the installed utf8proc: 2.8 has Unicode 14.
#pragma once

#include <string>
#include <string_view>

namespace kvc::tokeniser {

// The form NFC of valid UTF-8: the text itself where it has that form already, else a text in
// `storage`. Takes n log n steps for n characters.
std::string_view to_nfc(std::string_view text, std::string& storage);

}  // namespace kvc::tokeniser
