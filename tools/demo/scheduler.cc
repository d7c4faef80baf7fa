#include "tools/demo/scheduler.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "tools/demo/sampler.h"

namespace kvc::demo {
namespace {

using Clock = std::chrono::steady_clock;

enum class Stage { kExpected, kWaiting, kRunning, kDone };

// A conversation on its way, or the shared system prompt (which generates nothing).
struct Request {
  Stage stage = Stage::kExpected;
  std::vector<Token> tokens;    // Prompts and answers of the turns so far.
  std::vector<char> is_prompt;  // [tokens]
  size_t turn = 0;              // The one that is answered.
  int64_t turn_tokens = 0;      // Tokens of its answer so far.
  int64_t computed = 0;         // tokens that are in the cache
  int64_t ever_computed = 0;    // highest `computed` so far: tokens below are recomputed
  int64_t admitted = 0;         // order of admission
  Clock::time_point arrival;

  int64_t remaining() const { return static_cast<int64_t>(tokens.size()) - computed; }
  void add_prompt(const std::vector<Token>& prompt) {
    tokens.insert(tokens.end(), prompt.begin(), prompt.end());
    is_prompt.resize(tokens.size(), 1);
  }
};

class Scheduler {
 public:
  Scheduler(const Workload& workload, llm::Network& network, KvStore& store,
            const ServeOptions& options)
      : workload_(workload), network_(network), store_(store), options_(options) {
    num_conversations_ = static_cast<int>(workload.conversations.size());
    requests_.resize(static_cast<size_t>(num_conversations_) + 1);
    result_.answers.resize(static_cast<size_t>(num_conversations_));
    for (int i = 0; i < num_conversations_; ++i) {
      request(i).add_prompt(conversation(i).prompt());
      total_work_ += conversation(i).longest() - first_computed();
    }
    root().stage = Stage::kDone;
    if (options_.share_system_prompt) {
      root().add_prompt(workload.system);
      if (options_.load_system_prompt) {
        options_.load_system_prompt(root_id());
        root().computed = first_computed();
        return;
      }
      root().stage = Stage::kWaiting;
      total_work_ += first_computed();
    }
  }

  ServeResult run() {
    const Clock::time_point start = Clock::now();
    for (int done = 0; done < num_conversations_; done = count(Stage::kDone)) {
      arrive();
      plan_batch();
      if (!batch_.empty()) {
        open_step();
        compute();
        finish_step();
      }
      ++result_.steps;
    }
    result_.seconds = seconds_since(start);
    if (options_.keep_system_prompt) options_.keep_system_prompt(root_id());
    if (options_.share_system_prompt) store_.remove(root_id());
    return std::move(result_);
  }

 private:
  Request& request(int id) { return requests_[static_cast<size_t>(id)]; }
  const Conversation& conversation(int id) const {
    return workload_.conversations[static_cast<size_t>(id)];
  }
  int root_id() const { return num_conversations_; }
  Request& root() { return request(root_id()); }

  int count(Stage stage) const {
    return static_cast<int>(std::count_if(requests_.begin(), requests_.end() - 1,
                                          [&](const Request& r) { return r.stage == stage; }));
  }

  void arrive() {
    for (int i = 0; i < num_conversations_; ++i) {
      Request& r = request(i);
      if (r.stage != Stage::kExpected) continue;
      if (conversation(i).arrival_step > result_.steps) continue;
      r.stage = Stage::kWaiting;
      r.arrival = Clock::now();
    }
  }

  // Conversations that already run come first, oldest first, so that answers do not stall behind
  // new prompts. New conversations follow.
  void plan_batch() {
    batch_.clear();
    int64_t budget = options_.tokens_per_step;
    if (options_.share_system_prompt && root().remaining() > 0) {
      if (root().stage == Stage::kWaiting && admit(root_id())) root().stage = Stage::kRunning;
      batch_.push_back({root_id(), root().computed, std::min(budget, root().remaining())});
      return;
    }
    std::vector<int> running;
    for (int i = 0; i < num_conversations_; ++i) {
      if (request(i).stage == Stage::kRunning) running.push_back(i);
    }
    std::sort(running.begin(), running.end(),
              [&](int a, int b) { return request(a).admitted < request(b).admitted; });
    std::stable_partition(running.begin(), running.end(),
                          [&](int id) { return request(id).remaining() == 1; });
    for (const int id : running) add_to_batch(id, budget);
    for (int i = 0; i < num_conversations_ && budget > 0 && !admission_closed_; ++i) {
      if (request(i).stage != Stage::kWaiting) continue;
      if (!admit(i)) break;
      add_to_batch(i, budget);
    }
  }

  void add_to_batch(int id, int64_t& budget) {
    const int64_t tokens = std::min(budget, request(id).remaining());
    if (tokens == 0) return;
    batch_.push_back({id, request(id).computed, tokens});
    budget -= tokens;
  }

  bool admit(int id) {
    Request& r = request(id);
    r.computed = 0;
    if (options_.share_system_prompt && id != root_id()) {
      r.computed = static_cast<int64_t>(workload_.system.size());
      store_.fork(root_id(), id, r.computed);
    } else if (!store_.add(id)) {
      return false;
    }
    r.ever_computed = std::max(r.ever_computed, r.computed);
    r.stage = Stage::kRunning;
    r.admitted = ++num_admitted_;
    return true;
  }

  // Begins the step with as much of the planned batch as the pool has room for. The youngest gives
  // way; the last one left takes the pages of the youngest that is not in the step.
  void open_step() {
    bool waited = false;
    while (!store_.begin(batch_)) {
      waited = true;
      const auto younger = [&](const BatchItem& a, const BatchItem& b) {
        return request(a.sequence).admitted < request(b.sequence).admitted;
      };
      if (batch_.size() > 1) {
        const auto youngest = std::max_element(batch_.begin(), batch_.end(), younger);
        // Admitted for this step and empty so far: back to the queue. Others stay and try again in
        // the next step.
        const Request& r = request(youngest->sequence);
        if (r.computed == first_computed()) put_back(youngest->sequence);
        batch_.erase(youngest);
        continue;
      }
      int victim = -1;
      for (int i = 0; i < num_conversations_; ++i) {
        if (request(i).stage != Stage::kRunning || i == batch_[0].sequence) continue;
        if (victim < 0 || request(i).admitted > request(victim).admitted) victim = i;
      }
      if (victim >= 0) {
        put_back(victim);
        ++result_.preemptions;
        admission_closed_ = true;
      } else if (batch_[0].count > 1) {
        batch_[0].count /= 2;
      } else {
        throw std::runtime_error(
            "the pool is too small for one conversation; give it more with --memory");
      }
    }
    if (waited) ++result_.waits;
  }

  int64_t first_computed() const {
    return options_.share_system_prompt ? static_cast<int64_t>(workload_.system.size()) : 0;
  }

  void put_back(int id) {
    store_.remove(id);
    work_done_ -= request(id).computed - first_computed();
    request(id).stage = Stage::kWaiting;
    request(id).computed = 0;
  }

  void compute() {
    tokens_.clear();
    wanted_.clear();
    for (const BatchItem& item : batch_) {
      const Request& r = request(item.sequence);
      tokens_.insert(tokens_.end(), r.tokens.begin() + item.begin,
                     r.tokens.begin() + item.begin + item.count);
      if (item.sequence != root_id() && item.count == r.remaining()) {
        wanted_.push_back(static_cast<int64_t>(tokens_.size()) - 1);
      }
    }
    logits_.resize(wanted_.size() * static_cast<size_t>(network_.vocabulary()));
    network_.forward(store_, tokens_, wanted_, logits_.data());
    store_.end();
  }

  void finish_step() {
    const float* logits = logits_.data();
    std::vector<int> finished;
    for (const BatchItem& item : batch_) {
      Request& r = request(item.sequence);
      count_tokens(item, r);
      r.computed += item.count;
      work_done_ += item.count;
      r.ever_computed = std::max(r.ever_computed, r.computed);
      if (item.sequence == root_id()) {
        if (r.remaining() == 0) r.stage = Stage::kDone;
        continue;
      }
      if (r.remaining() > 0) continue;
      take_token(item.sequence, {logits, static_cast<size_t>(network_.vocabulary())});
      logits += network_.vocabulary();
      if (r.turn == conversation(item.sequence).turns.size()) finished.push_back(item.sequence);
    }
    record_peak();
    for (const int id : finished) {
      store_.remove(id);
      request(id).stage = Stage::kDone;
      admission_closed_ = false;
    }
    if (options_.progress)
      options_.progress(static_cast<double>(work_done_) / static_cast<double>(total_work_));
  }

  // Draws the next token of an answer. Where that is complete, the next turn's prompt follows.
  void take_token(int id, std::span<const float> logits) {
    Request& r = request(id);
    Answer& answer = result_.answers[static_cast<size_t>(id)];
    const auto place = static_cast<int64_t>(answer.tokens.size());
    if (place == 0) answer.first_token_seconds = seconds_since(r.arrival);
    const Token token = sample(logits, options_.temperature, options_.seed, id, place);
    answer.tokens.push_back(token);
    for (size_t i = 0; i < logits.size();
         i += static_cast<size_t>(kept_stride(network_.vocabulary())))
      answer.logits.push_back(logits[i]);
    const bool is_end = workload_.is_end(token);
    // A prompt brings the end of the answer before it.
    if (!is_end) {
      r.tokens.push_back(token);
      r.is_prompt.push_back(0);
    }
    if (!is_end && ++r.turn_tokens < conversation(id).max_new) return;
    total_work_ -= conversation(id).max_new - r.turn_tokens;
    answer.turn_ends.push_back(answer.tokens.size());
    if (options_.answered) options_.answered(id, r.turn, answer.turn(r.turn));
    r.turn_tokens = 0;
    if (++r.turn < conversation(id).turns.size())
      r.add_prompt(conversation(id).turns[r.turn].tokens);
  }

  void count_tokens(const BatchItem& item, const Request& r) {
    const auto first = r.is_prompt.begin() + item.begin;
    result_.prompt_tokens += std::count(first, first + item.count, 1);
    result_.recomputed_tokens += std::clamp<int64_t>(r.ever_computed - item.begin, 0, item.count);
  }

  void record_peak() {
    const MemoryUse use = store_.memory();
    if (use.reserved_bytes < result_.peak.reserved_bytes) return;
    result_.peak = use;
    result_.peak_conversations = count(Stage::kRunning);
    result_.peak_pages = store_.pages();
  }

  const Workload& workload_;
  llm::Network& network_;
  KvStore& store_;
  const ServeOptions& options_;
  int num_conversations_ = 0;
  std::vector<Request> requests_;  // the conversations, then the shared system prompt
  int64_t num_admitted_ = 0;
  bool admission_closed_ =
      false;  // from a preemption until a conversation ends, else the two take turns for ever
  int64_t work_done_ = 0, total_work_ = 0;
  std::vector<BatchItem> batch_;
  std::vector<Token> tokens_;
  std::vector<int64_t> wanted_;
  std::vector<float> logits_;
  ServeResult result_;
};

}  // namespace

ServeResult serve(const Workload& workload, llm::Network& network, KvStore& store,
                  const ServeOptions& options) {
  return Scheduler(workload, network, store, options).run();
}

std::vector<Token> Answer::turn(size_t index) const {
  const size_t begin = index == 0 ? 0 : turn_ends[index - 1];
  return {tokens.begin() + static_cast<int64_t>(begin),
          tokens.begin() + static_cast<int64_t>(turn_ends[index])};
}

int64_t ServeResult::generated_tokens() const {
  int64_t total = 0;
  for (const Answer& answer : answers) total += static_cast<int64_t>(answer.tokens.size());
  return total;
}

double ServeResult::first_token_percentile(double percent) const {
  std::vector<double> times;
  for (const Answer& answer : answers) times.push_back(answer.first_token_seconds);
  std::sort(times.begin(), times.end());
  // Nearest rank.
  const auto rank =
      static_cast<size_t>(std::ceil(percent / 100.0 * static_cast<double>(times.size())));
  return times[std::max<size_t>(rank, 1) - 1];
}

}  // namespace kvc::demo
