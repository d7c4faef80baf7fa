// Every function of kvcache.h is called by the tests of this folder.
#include <gtest/gtest.h>

#include <cctype>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "tests/support/source_tree.h"

namespace kvc::test {
namespace {

std::string read(const std::filesystem::path& path) {
  std::ifstream stream(path);
  std::stringstream text;
  text << stream.rdbuf();
  return text.str();
}

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// Names of the functions that KVC_API declares.
std::set<std::string> declared_functions(const std::string& header) {
  std::set<std::string> names;
  const std::string mark = "\nKVC_API ";
  for (size_t at = header.find(mark); at != std::string::npos; at = header.find(mark, at + 1)) {
    const size_t open = header.find('(', at);
    size_t begin = open;
    while (is_word(header[begin - 1])) --begin;
    names.insert(header.substr(begin, open - begin));
  }
  return names;
}

// The whole word, followed by a call's parenthesis or, for a function handed on by name, a comma.
bool is_used(const std::string& text, const std::string& name) {
  for (size_t at = text.find(name); at != std::string::npos; at = text.find(name, at + 1)) {
    const char before = at == 0 ? ' ' : text[at - 1];
    const char after = text[at + name.size()];
    if (!is_word(before) && (after == '(' || after == ',' || after == '}')) return true;
  }
  return false;
}

TEST(Coverage, EveryFunctionOfTheHeaderIsCalledInThisFolder) {
  const std::filesystem::path header = source_path("include/kvcache.h");
  std::string tests;
  for (const auto& entry : std::filesystem::directory_iterator(source_path("tests/capi"))) {
    if (entry.path().extension() == ".cc" || entry.path().extension() == ".h")
      tests += read(entry.path());
  }
  const std::set<std::string> functions = declared_functions(read(header));
  EXPECT_GE(functions.size(), 70u);
  for (const std::string& function : functions) {
    EXPECT_TRUE(is_used(tests, function)) << function << " is never called in tests/capi";
  }
}

}  // namespace
}  // namespace kvc::test
