// Traces in files of their own, and a prefix cache of a few lines to replay them through.
#pragma once

#include <gtest/gtest.h>
#include <zlib.h>

#include <cstdio>
#include <fstream>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/folder.h"
#include "tests/support/source_tree.h"
#include "tools/replay/bookkeeper.h"
#include "tools/replay/trace.h"

namespace kvc::replay {

// A file with this content, gone at the end of the scope.
class ScratchFile {
 public:
  explicit ScratchFile(const std::string& content, const std::string& ending = ".jsonl")
      : path_(folder_.path() + "/trace" + ending) {
    std::ofstream(path_, std::ios::binary) << content;
  }

  const std::string& path() const { return path_; }

 private:
  test::Folder folder_;
  std::string path_;
};

inline std::string gzipped(const std::string& text) {
  const ScratchFile file("", ".gz");
  gzFile out = gzopen(file.path().c_str(), "wb");
  if (gzwrite(out, text.data(), static_cast<unsigned>(text.size())) !=
      static_cast<int>(text.size()))
    return "";
  gzclose(out);
  std::ifstream in(file.path(), std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Of a trace of tests/traces.
inline std::string sample_path(const std::string& name) {
  return test::source_path("tests/traces/" + name).string();
}

inline ReadOptions reading(const std::string& path, bool skip_bad_lines = false) {
  ReadOptions options;
  options.path = path;
  options.skip_bad_lines = skip_bad_lines;
  return options;
}

// Of the error that reading answers with; empty: none.
inline std::string refusal(const ReadOptions& options) {
  try {
    read_trace(options);
  } catch (const TraceError& error) {
    return error.what();
  }
  return "";
}

// A cache that is easy to follow: blocks by key, least recently used first, the end of a prompt
// before its beginning. Sequences that hold a block keep it.
class FakeBookkeeper : public Bookkeeper {
 public:
  FakeBookkeeper(int64_t block, int64_t num_pages) : block_(block), num_pages_(num_pages) {}

  // A key says all tokens up to the end of its block; enough bytes for the prompts of tests.
  void make_keys(const int32_t* tokens, int64_t num_tokens, std::vector<uint8_t>* keys) override {
    keys->assign(static_cast<size_t>(num_tokens / block_ * KVC_HASH_BYTES), 0);
    uint64_t chain = 1;
    for (int64_t i = 0; i < num_tokens / block_ * block_; ++i) {
      chain = chain * 1000003 + static_cast<uint64_t>(tokens[i]) + 1;
      if ((i + 1) % block_ != 0) continue;
      for (int b = 0; b < 8; ++b) {
        (*keys)[static_cast<size_t>(i / block_ * KVC_HASH_BYTES + b)] =
            static_cast<uint8_t>(chain >> 8 * b);
      }
    }
  }

  void add(kvc_seq seq) override {
    if (!sequences_.emplace(seq, Sequence()).second) throw std::runtime_error("sequence exists");
  }
  int64_t attach(kvc_seq seq, const kvc_prefix_query& query) override {
    add(seq);
    Sequence& sequence = sequences_[seq];
    ++stats_.prefix_lookups;
    stats_.prefix_query_tokens += static_cast<uint64_t>(query.num_tokens);
    const int64_t most = (query.num_tokens - 1) / block_;
    for (int64_t i = 0; i < most && blocks_.count(key(query, i)) > 0; ++i)
      hold(&sequence, key(query, i));
    sequence.length = static_cast<int64_t>(sequence.blocks.size()) * block_;
    stats_.prefix_hit_tokens += static_cast<uint64_t>(sequence.length);
    return sequence.length;
  }
  Append append(kvc_seq seq, int64_t num_tokens) override {
    Sequence& sequence = sequences_.at(seq);
    if (num_tokens < 1) throw std::runtime_error("an append of no tokens");
    const int64_t pages = (sequence.length + num_tokens + block_ - 1) / block_ -
                          (sequence.length + block_ - 1) / block_;
    if ((sequence.length + num_tokens + block_ - 1) / block_ > num_pages_)
      return Append::kNeverFits;
    const auto evictable = static_cast<int64_t>(order_.size());
    if (pages > num_pages_ - held() + evictable) return Append::kFull;
    while (pages > num_pages_ - held()) {
      blocks_.erase(order_.begin()->second);
      order_.erase(order_.begin());
      ++stats_.prefix_evicted;
    }
    sequence.own_pages += pages;
    own_pages_ += pages;
    sequence.length += num_tokens;
    return Append::kDone;
  }
  void insert(kvc_seq seq, const kvc_prefix_query& query) override {
    Sequence& sequence = sequences_.at(seq);
    if (query.num_tokens > sequence.length)
      throw std::runtime_error("more tokens than the sequence has");
    if (static_cast<int64_t>(query.num_hashes) != query.num_tokens / block_)
      throw std::runtime_error("num_hashes");
    for (auto i = static_cast<int64_t>(sequence.blocks.size()); i < query.num_tokens / block_;
         ++i) {
      const bool is_new = blocks_.emplace(key(query, i), Block{0, 0, i}).second;
      ++(is_new ? stats_.prefix_stored : stats_.prefix_duplicates);
      if (!is_new) blocks_[key(query, i)].depth = i;
      hold(&sequence, key(query, i));
      --sequence.own_pages;
      --own_pages_;
    }
  }
  void remove(kvc_seq seq) override {
    const Sequence& sequence = sequences_.at(seq);
    ++now_;
    own_pages_ -= sequence.own_pages;
    for (const std::string& name : sequence.blocks) {
      Block& block = blocks_.at(name);
      block.used = now_;
      if (--block.holders == 0) order_.insert({{block.used, -block.depth}, name});
    }
    sequences_.erase(seq);
  }
  kvc_stats stats() const override {
    kvc_stats stats = stats_;
    stats.struct_size = sizeof(stats);
    stats.pages_total = num_pages_;
    stats.pages_cached = static_cast<int64_t>(order_.size());
    stats.pages_used = held() - stats.pages_cached;
    stats.num_seqs = static_cast<int64_t>(sequences_.size());
    return stats;
  }
  void check() const override { ++num_checks; }

  mutable int num_checks = 0;

 private:
  struct Block {
    int64_t used = 0, holders = 0, depth = 0;
  };
  struct Sequence {
    int64_t length = 0, own_pages = 0;
    std::vector<std::string> blocks;
  };
  using Place = std::pair<std::pair<int64_t, int64_t>, std::string>;

  static std::string key(const kvc_prefix_query& query, int64_t block) {
    return std::string(reinterpret_cast<const char*>(query.hashes) + block * KVC_HASH_BYTES,
                       KVC_HASH_BYTES);
  }
  int64_t held() const { return own_pages_ + static_cast<int64_t>(blocks_.size()); }
  void hold(Sequence* sequence, const std::string& name) {
    Block& block = blocks_.at(name);
    if (block.holders++ == 0) order_.erase({{block.used, -block.depth}, name});
    sequence->blocks.push_back(name);
  }

  int64_t block_, num_pages_, own_pages_ = 0, now_ = 0;
  std::map<std::string, Block> blocks_;
  std::set<Place> order_;  // of eviction
  std::map<kvc_seq, Sequence> sequences_;
  kvc_stats stats_{};
};

inline std::unique_ptr<Bookkeeper> make_fake(int64_t block, int64_t num_pages) {
  return std::make_unique<FakeBookkeeper>(block, num_pages);
}

}  // namespace kvc::replay
