// Texts that a user names on the command line.
#pragma once

#include <string>

namespace kvc {

// Throws Refusal: "FILE: why it cannot be read", also for a folder and for more than 1 GiB.
std::string read_text_file(const std::string& path);

}  // namespace kvc
