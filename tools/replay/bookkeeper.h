// What a replay asks of a cache: the calls that a serving engine makes for a request.
#pragma once

#include <kvcache.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace kvc::replay {

enum class Append { kDone, kFull, kNeverFits };

// Anything unexpected is a std::runtime_error.
class Bookkeeper {
 public:
  virtual ~Bookkeeper() = default;

  // Keys of the full blocks of a prompt whose tokens are known, KVC_HASH_BYTES each.
  virtual void make_keys(const int32_t* tokens, int64_t num_tokens, std::vector<uint8_t>* keys) = 0;

  // Without looking for a prefix
  virtual void add(kvc_seq seq) = 0;
  virtual int64_t attach(kvc_seq seq, const kvc_prefix_query& query) = 0;  // tokens that hit
  virtual Append append(kvc_seq seq, int64_t num_tokens) = 0;              // unchanged unless done
  virtual void insert(kvc_seq seq, const kvc_prefix_query& query) = 0;
  virtual void remove(kvc_seq seq) = 0;

  virtual kvc_stats stats() const = 0;
  virtual void check() const = 0;  // throws when the books are wrong
};

// The library's, without memory for tensors, `block` tokens a page: one group of layers, and with
// `window` a second one of layers that see that many tokens.
std::unique_ptr<Bookkeeper> make_cache_bookkeeper(int64_t block, int64_t num_pages, int64_t window);

}  // namespace kvc::replay
