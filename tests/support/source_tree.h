// Files of the source tree that tests read.
#pragma once

#include <filesystem>
#include <stdexcept>
#include <string>

namespace kvc::test {

// In a generated file of its own: no other object differs between two clones of the tree.
extern const char* const kSourceRoot;

// `path` is relative to the root of the tree. Throws where nothing is there.
inline std::filesystem::path source_path(const std::string& path) {
  const std::filesystem::path found = std::filesystem::path(kSourceRoot) / path;
  if (!std::filesystem::exists(found))
    throw std::runtime_error(found.string() + " is missing: this test reads the source tree");
  return found;
}

}  // namespace kvc::test
