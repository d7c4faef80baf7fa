// What the demo serves: a shared system prompt and conversations that differ after it, as bytes,
// with the step at which each arrives and the number of tokens it will be given.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace kvc::demo {

using Token = uint8_t;  // a byte-level model: every byte is a token

struct Conversation {
  std::string turn;           // the user's words
  std::vector<Token> prompt;  // system prompt + turn, as the model reads it
  int64_t max_new = 0;        // tokens to generate
  int64_t arrival_step = 0;
};

struct Workload {
  std::vector<Token> system;
  std::vector<Conversation> conversations;

  int64_t longest_request() const;  // tokens in the cache when the longest conversation ends
  int64_t prompt_tokens() const;    // over all conversations, each with its system prompt
};

struct WorkloadOptions {
  std::string system_path, users_path;  // empty: the texts that ship with the demo
  int conversations = 16;
  int64_t max_new = 64;
  uint64_t seed = 1;
};

// A file or an option that cannot be used; the message is for the user.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Turns of a users file: separated by blank lines when it has any, else one per line.
std::vector<std::string> split_turns(std::string_view text);

Workload make_workload(const WorkloadOptions& options);

// Position `index` of the stream of random numbers named by `seed` and `stream`; uniform over 64
// bits.
uint64_t random_bits(uint64_t seed, uint64_t stream, uint64_t index);

// The same as a number in (0, 1).
double random_unit(uint64_t seed, uint64_t stream, uint64_t index);

}  // namespace kvc::demo
