// Amounts of memory as people write them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kvc::plan_tool {

// "24GiB", "24G", "24GB", "1.5 TiB", "500MiB", "4096". Units in any case: KB, MB, GB and TB are
// powers of 1000; K, M, G, T, KiB, MiB, GiB and TiB are powers of 1024, as GNU's tools read them.
// Empty: not an amount, or more than 2^63 - 1 bytes. Fractions of a byte are dropped.
std::optional<uint64_t> parse_size(std::string_view text);

// Why `text` is no memory for a cache; empty: it is. A number below 1 MiB without a unit is
// refused: nobody means 24 bytes.
std::string size_problem(const std::string& text);

// "1.50 GiB"
std::string size_text(uint64_t bytes);

// "131,072"
std::string grouped(int64_t number);

}  // namespace kvc::plan_tool
