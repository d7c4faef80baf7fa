// Instruction sets as the command line and the reports write them.
#pragma once

#include <array>
#include <cstddef>

#include "kvcache.h"

namespace kvc {

// A name's place is its kvc_cpu_isa.
inline constexpr std::array<const char*, 6> kIsaNames = {"auto", "reference", "scalar",
                                                         "avx2", "avx512",    "avx512_bf16"};

inline const char* isa_name(kvc_cpu_isa isa) {
  const auto place = static_cast<size_t>(isa);
  return place < kIsaNames.size() ? kIsaNames[place] : "unknown";
}

}  // namespace kvc
