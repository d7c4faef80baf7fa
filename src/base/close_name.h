// The name that somebody may have meant.
#pragma once

#include <string>
#include <vector>

namespace kvc {

// The one of `names` that is closest to `word`: one letter away for short words, two for long ones;
// empty: none is.
std::string close_name(const std::string& word, const std::vector<std::string>& names);

}  // namespace kvc
