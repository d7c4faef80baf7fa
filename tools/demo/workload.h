// What the demo serves: a shared system prompt and conversations that differ after it, with the
// step at which each arrives and the number of tokens it will be given.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "tools/chat/chat_template.h"
#include "tools/refusal.h"

namespace kvc::demo {

using Token = int32_t;

// What a user says and hears.
struct Turn {
  std::string text;      // The user's words.
  std::string expected;  // A word of the right answer; empty: nobody knows one.
  // The model reads these before it answers. Those of the first turn begin with the system prompt.
  std::vector<Token> tokens;
};

struct Conversation {
  std::vector<Turn> turns;
  int64_t max_new = 0;  // Most tokens of an answer.
  int64_t arrival_step = 0;

  const std::vector<Token>& prompt() const { return turns.front().tokens; }
  // Most tokens in the cache. The last token is handed out, never fed back.
  int64_t longest() const;
};

struct Workload {
  std::vector<Token> system;
  std::vector<Conversation> conversations;
  std::vector<Token> ends;  // Tokens that end an answer.

  int64_t longest_request() const;  // tokens in the cache when the longest conversation ends
  int64_t prompt_tokens() const;    // over all conversations, each with its system prompt
  bool is_end(Token token) const;
};

struct WorkloadOptions {
  std::string system_path, users_path;  // empty: the texts that ship with the demo
  int conversations = 16;
  int64_t max_new = 64;
  uint64_t seed = 1;
};

using UsageError = Refusal;

// Turns of a users file: separated by blank lines when it has any, else one per line.
std::vector<std::string> split_turns(std::string_view text);

// For the model with random weights, whose tokens are bytes: one turn each.
Workload make_workload(const WorkloadOptions& options);
// For a model that can answer: two or three questions each, in its chat format. The texts are the
// handbook and its questions, or those of files.
Workload make_chat_workload(const WorkloadOptions& options,
                            const chat::ChatTemplate& chat_template);

// Position `index` of the stream of random numbers named by `seed` and `stream`; uniform over 64
// bits.
uint64_t random_bits(uint64_t seed, uint64_t stream, uint64_t index);

// The same as a number in (0, 1).
double random_unit(uint64_t seed, uint64_t stream, uint64_t index);

}  // namespace kvc::demo
