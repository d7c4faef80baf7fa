// What a scenario file may contain. A key that is not listed is a mistake of the file, never skipped.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace kvc::conformance {

using Json = nlohmann::json;

// Read and check a file; throws std::runtime_error that names the place of the mistake.
Json load_scenario(const std::string& path);

}  // namespace kvc::conformance
