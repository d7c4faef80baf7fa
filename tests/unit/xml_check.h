// Is a text well-formed XML, as far as figures and pages use it?
#pragma once

#include <algorithm>
#include <cctype>
#include <string>
#include <string_view>
#include <vector>

namespace kvc {

// Empty: yes; else what is wrong. Elements nest and close, attributes are quoted and come once,
// text is escaped.
inline std::string xml_fault(std::string_view text) {
  const auto fault = [&](const std::string& what, size_t at) {
    return what + " at byte " + std::to_string(at) + ": " + std::string(text.substr(at, 40));
  };
  const auto bad_entity = [](std::string_view part) {
    for (size_t i = part.find('&'); i != std::string_view::npos; i = part.find('&', i + 1)) {
      const std::string_view rest = part.substr(i);
      bool is_known = false;
      for (const char* name : {"&amp;", "&lt;", "&gt;", "&quot;"})
        is_known |= rest.starts_with(name);
      if (!is_known) return true;
    }
    return false;
  };
  std::vector<std::string> open;
  size_t at = 0, roots = 0;
  while (at < text.size()) {
    const size_t tag = std::min(text.find('<', at), text.size());
    const std::string_view words = text.substr(at, tag - at);
    if (bad_entity(words)) return fault("a bare &", at);
    for (const char c : words) {
      const bool is_space = c == '\n' || c == ' ';
      if (static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t')
        return fault("a control character", at);
      if (!is_space && open.empty()) return fault("text outside", at);
    }
    if (tag == text.size()) break;
    size_t i = tag + 1;
    const auto name = [&] {
      const size_t begin = i;
      while (i < text.size() &&
             (std::isalnum(static_cast<unsigned char>(text[i])) || text[i] == '-'))
        ++i;
      return std::string(text.substr(begin, i - begin));
    };
    const bool is_end = i < text.size() && text[i] == '/';
    if (is_end) ++i;
    const std::string element = name();
    if (element.empty()) return fault("a tag without a name", tag);
    if (is_end) {
      if (open.empty() || open.back() != element) return fault("a wrong end tag", tag);
      open.pop_back();
      if (i >= text.size() || text[i] != '>') return fault("an open end tag", tag);
      at = i + 1;
      continue;
    }
    if (open.empty() && ++roots > 1) return fault("a second root", tag);
    std::vector<std::string> attributes;
    while (true) {
      const size_t before = i;
      while (i < text.size() && (text[i] == ' ' || text[i] == '\n')) ++i;
      if (i >= text.size()) return fault("an open tag", tag);
      if (text[i] == '>' || text.substr(i, 2) == "/>") break;
      if (i == before) return fault("no blank before an attribute", i);
      const std::string attribute = name();
      for (const std::string& other : attributes) {
        if (other == attribute) return fault("an attribute twice", tag);
      }
      attributes.push_back(attribute);
      if (attribute.empty() || text.substr(i, 2) != "=\"")
        return fault("an attribute without a quoted value", i);
      const size_t end = text.find('"', i + 2);
      if (end == std::string_view::npos) return fault("an open attribute", i);
      const std::string_view value = text.substr(i + 2, end - i - 2);
      if (value.find('<') != std::string_view::npos || bad_entity(value))
        return fault("a bad value", i);
      i = end + 1;
    }
    const bool is_empty = text[i] == '/';
    if (!is_empty) open.push_back(element);
    at = i + (is_empty ? 2 : 1);
  }
  if (!open.empty()) return "no end of <" + open.back() + ">";
  return roots == 1 ? "" : "no element";
}

}  // namespace kvc
