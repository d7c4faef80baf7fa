// Continuous batching (Yu et al., Orca, OSDI 2022): every step takes the next token of each running
// conversation and fills a token budget with chunks of waiting prompts. One scheduler serves all
// rows; only the store differs.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "tools/demo/kv_store.h"
#include "tools/demo/workload.h"
#include "tools/llm/network.h"

namespace kvc::demo {

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

struct ServeOptions {
  int64_t tokens_per_step = 1024;
  double temperature = 0.8;
  uint64_t seed = 1;
  bool share_system_prompt = false;  // compute it once and fork; needs a store that can
  // Called with the sequence of the shared system prompt before it is removed; may be empty.
  std::function<void(int)> keep_system_prompt;
  // Adds that sequence, so that it is not computed; may be empty.
  std::function<void(int)> load_system_prompt;
  std::function<void(double)> progress;  // part of the work done, 0..1; may be empty
  // Called with a conversation and a turn of it when its answer is complete; may be empty.
  std::function<void(int, size_t, const std::vector<Token>&)> answered;
};

// All answers of a conversation, one behind the other.
struct Answer {
  std::vector<Token> tokens;
  std::vector<size_t> turn_ends;  // Tokens with those of turn i.
  // [tokens][kept_logits(vocabulary)]: of what each token was drawn from, every n-th.
  std::vector<float> logits;
  double first_token_seconds = 0.0;

  std::vector<Token> turn(size_t index) const;
};

// Logits of a token that are kept to be compared: all of a small vocabulary, else some 256.
constexpr int64_t kept_stride(int64_t vocabulary) {
  return vocabulary < 512 ? 1 : vocabulary / 256;
}
constexpr int64_t kept_logits(int64_t vocabulary) {
  return (vocabulary + kept_stride(vocabulary) - 1) / kept_stride(vocabulary);
}

// What one row did and took.
struct ServeResult {
  std::vector<Answer> answers;
  double seconds = 0.0;
  int64_t steps = 0;
  int64_t prompt_tokens = 0;      // prompt tokens computed
  int64_t recomputed_tokens = 0;  // tokens computed again after a preemption
  int64_t waits = 0;              // steps that took less work because the pool was full
  int64_t preemptions = 0;        // conversations put back because nothing else could give way
  MemoryUse peak;                 // at the step that held most
  int peak_conversations = 0;
  std::vector<PageUse> peak_pages;

  int64_t generated_tokens() const;
  double first_token_percentile(double percent) const;
};

ServeResult serve(const Workload& workload, llm::Network& network, KvStore& store,
                  const ServeOptions& options);

}  // namespace kvc::demo
