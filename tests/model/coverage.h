// What a random run has met: how often each function gave each answer.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "kvcache.h"

namespace kvc::test {

using Coverage = std::map<std::string, std::map<kvc_status, int64_t>>;

}  // namespace kvc::test
