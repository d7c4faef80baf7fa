// What differs between kinds of vocabularies: how text without control tokens becomes tokens.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvc::tokeniser {

class Encoder {
 public:
  virtual ~Encoder() = default;
  // Appends the ids of a text that is not empty and has no control tokens.
  virtual void encode(std::string_view text, std::vector<int32_t>& ids) const = 0;
  // Bytes that a token of the vocabulary stands for.
  virtual std::string bytes(int32_t id) const = 0;
  // Whether encode() puts a space before each text, which decoding takes away again.
  virtual bool adds_space() const = 0;
};

}  // namespace kvc::tokeniser
