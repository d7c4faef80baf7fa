// A chat: turns, branches, undo and state files on one cache.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/chat/chat_cache.h"
#include "tools/chat/chat_template.h"
#include "tools/chat/sampler.h"
#include "tools/chat/terminal_io.h"
#include "tools/llm/network.h"
#include "tools/refusal.h"
#include "tools/tokeniser/tokeniser.h"

namespace kvc::chat {

struct SessionOptions {
  int64_t context = 0;   // Tokens that a conversation may have.
  int64_t max_new = 0;   // Most tokens of an answer.
  bool may_cut = false;  // The oldest turns go when the context is full.
  SamplerOptions sampler;
  std::string model_id;  // Written into state files, and asked of them.
};

class Session {
 public:
  // Borrows all.
  Session(const llm::Shape& shape, ChatCache& cache, llm::Network& network,
          const tokeniser::Tokeniser& tokeniser, const ChatTemplate& chat_template,
          const SessionOptions& options);

  // Begins with a system text (see ChatTemplate::begin), or with a saved conversation.
  void begin(std::optional<std::string_view> system);
  void load(const std::string& path);  // With its turns, where save() has written them.

  // Computes an answer and writes it as it grows. Ctrl-C ends it: the sequence then holds what was
  // written, or nothing of the turn where nothing was yet. Throws Refusal, CacheError; the
  // conversation is then as before.
  void turn(std::string_view text);

  void undo();                // Takes the last turn back.
  size_t fork();              // Goes on in a copy. Returns its number.
  void go_to(size_t branch);  // Numbers begin at 1.
  // The present branch. Turns go with it as far back as they can be taken back.
  void save(const std::string& path);
  std::string stats() const;

  size_t branch() const { return current_ + 1; }
  size_t num_branches() const { return branches_.size(); }

 private:
  struct Turn {
    int64_t begin;                    // Tokens before it.
    std::optional<kvc_seq> snapshot;  // The conversation before it.
  };
  struct Branch {
    kvc_seq seq;
    int64_t first_turn;  // Tokens before the first turn.
    std::vector<Turn> turns;
  };

  Branch& present() { return branches_[current_]; }
  void append(std::span<const int32_t> tokens, float* logits);
  bool prefill(std::span<const int32_t> tokens);
  void make_room(int64_t tokens);
  void take_back();
  void answer();

  ChatCache& cache_;
  llm::Network& network_;
  const tokeniser::Tokeniser& tokeniser_;
  const ChatTemplate& template_;
  SessionOptions options_;
  Sampler sampler_;
  // A window drops tokens that undo would need: then a fork of each turn's beginning is kept.
  bool keeps_snapshots_;
  std::vector<Branch> branches_;
  size_t current_ = 0;
  kvc_seq next_seq_ = 0;
  std::vector<float> logits_;
  // Of the last turn.
  int64_t prompt_tokens_ = 0, new_tokens_ = 0;
  double prompt_seconds_ = 0, new_seconds_ = 0;
};

}  // namespace kvc::chat
