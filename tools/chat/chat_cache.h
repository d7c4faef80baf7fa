// The cache of a chat: what a program of its own would write around libkvcache to serve one model
// on the CPU. Conversations are sequences. A branch of one shares its pages.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "kvcache.h"
#include "tools/llm/network.h"
#include "tools/llm/shape.h"
#include "tools/llm/worker_pool.h"

namespace kvc::chat {

// A call of the library that was refused. what() is its message.
class CacheError : public std::runtime_error {
 public:
  CacheError(kvc_status status, const std::string& message, int64_t detail)
      : std::runtime_error(message), status(status), detail(detail) {}
  kvc_status status;
  int64_t detail;
};

class ChatCache final : public llm::Attention {
 public:
  // Room for one conversation of `context` tokens; it grows when branches need more. Shape and pool
  // are borrowed.
  ChatCache(const llm::Shape& shape, DLDataType dtype, int64_t context, llm::WorkerPool& pool,
            kvc_quant quant = KVC_QUANT_NONE, int32_t keep_tokens = 0);

  void add(kvc_seq seq);
  void remove(kvc_seq seq);
  // `child` begins as `parent` was after its first `pos` tokens; -1: as it is.
  void fork(kvc_seq parent, kvc_seq child, int64_t pos = -1);
  // Takes the last n tokens back.
  void pop(kvc_seq seq, int64_t n);
  // Takes tokens [begin, end) out; what follows moves forward.
  void cut(kvc_seq seq, int64_t begin, int64_t end);
  int64_t length(kvc_seq seq) const;

  // To a state file and back. `model` names weights and storage: a file of another one is refused.
  // A file may hold a conversation alone, or with its beginnings, ascending: states to return to.
  // Pages that they share are in it once.
  void save(kvc_seq seq, std::span<const kvc_seq> beginnings, const std::string& path,
            const std::string& model);
  // The conversation gets the id `first`, its beginnings the ids behind it. Returns how many.
  size_t load(kvc_seq first, const std::string& path, const std::string& model);

  // Appends `tokens` to a sequence and computes the logits of the last one, [vocabulary]; null:
  // nobody needs them. A forward that fails changes nothing.
  void forward(kvc_seq seq, std::span<const int32_t> tokens, llm::Network& network, float* logits);
  // The same with the logits of the rows that `wanted` lists, [wanted.size()][vocabulary].
  void forward(kvc_seq seq, std::span<const int32_t> tokens, llm::Network& network,
               std::span<const int64_t> wanted, float* logits);

  kvc_stats stats() const;
  const kvc_plan_info& plan() const { return info_; }

 private:
  void attend(int32_t layer, const float* qkv, int64_t stride, float* out) override;
  void begin(kvc_seq seq, std::span<const int32_t> tokens);
  template <class Call>
  void check_with_room(const Call& call);

  const llm::Shape& shape_;
  std::unique_ptr<kvc_plan, decltype(&kvc_plan_destroy)> plan_{nullptr, kvc_plan_destroy};
  std::unique_ptr<kvc_cache, decltype(&kvc_cache_destroy)> cache_{nullptr, kvc_cache_destroy};
  kvc_plan_info info_{};
  kvc_forward* forward_ = nullptr;
};

}  // namespace kvc::chat
