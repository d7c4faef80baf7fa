// Amounts of memory as people write them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kvc::plan_tool {

// "24GiB", "24GB", "1.5 TiB", "500MiB", "4096". Units: B, KB, MB, GB, TB (powers of 1000), KiB, MiB, GiB, TiB (of 1024), any case. Empty:
// not an amount, or more than 2^63 - 1 bytes. Fractions of a byte are dropped.
std::optional<uint64_t> parse_size(std::string_view text);

// "1.50 GiB"
std::string size_text(uint64_t bytes);

// "131,072"
std::string grouped(int64_t number);

}  // namespace kvc::plan_tool
