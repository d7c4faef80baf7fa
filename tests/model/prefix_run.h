// Random operations on a cache with a prefix index. The oracle is a dictionary: of every slot of
// every page, the whole history of the token that was written there. A page that a sequence can see
// has to hold the sequence's own history.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <initializer_list>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "kvcache.h"
#include "tests/model/coverage.h"
#include "tests/model/prefix_events.h"
#include "tests/model/prefix_history.h"
#include "tests/model/prefix_setup.h"
#include "tests/model/random.h"
#include "tests/model/random_run.h"
#include "tests/model/trace.h"

namespace kvc::test {

class PrefixRun {
 public:
  PrefixRun(uint64_t seed, PrefixRunKind kind);
  // Throws Mismatch. Returns the number of operations done.
  int64_t run(int64_t operations);
  std::string describe() const;
  // With "tokens hit" besides functions.
  const Coverage& coverage() const { return coverage_; }

 private:
  using Call = std::function<kvc_status(kvc_error*)>;
  using Table = std::vector<int32_t>;  // page of each entry; -1: dropped

  struct Node {  // of an uncommitted tree
    int32_t parent;
    int32_t token;
    int history;
    bool is_known;
  };
  static constexpr int kFromHost = -2;  // came back with a page of the host: not known here
  struct Content {
    int group = -1;            // kFromHost: any
    std::vector<int> history;  // of each token; -1: never written; kFromHost
  };
  struct Sequence {
    Namespace space;       // what its tokens were computed under
    bool is_told = false;  // and the cache knows it
    int64_t known = 0;     // leading tokens whose ids the cache has been given without a gap
    bool had_gap = false;  // it once grew without
    std::vector<int32_t> tokens;
    std::vector<int> history;
    std::vector<Table> tables;
    std::vector<Node> nodes;
    std::deque<int32_t> pending;  // what is left of its prompt
    int64_t window = 0, sink = 0;
    bool is_moved = false;     // by kvc_seq_shift, tokens that are still there
    bool is_old = false;       // older than a reset
    bool is_doubtful = false;  // was once one of these: the library may go on to publish nothing
    // Never begun inside a block, whose pages may be known for another one
    bool is_whole = true;
    std::vector<std::vector<Content>> swapped;  // what went to the host, by group and entry
    bool is_swapped = false;

    int64_t length() const { return static_cast<int64_t>(tokens.size()); }
    int64_t slots() const { return length() + static_cast<int64_t>(nodes.size()); }
    // Nothing is left of what was moved or is old.
    void forget_empty() {
      if (slots() == 0) is_moved = is_old = false;
    }
    bool is_clean() const { return window == 0 && !is_moved && !is_old; }
  };
  struct Entry {  // of the open forward
    kvc_seq seq;
    bool is_tree;
    bool is_known;  // ids are given
    int64_t old_slots;
    std::vector<int32_t> tokens, parents;
    std::vector<int> history;
    std::vector<Table> old_tables;
  };

  // prefix_run.cc
  kvc_status call(const char* function, const Call& fn);
  void require_ok(const char* function, kvc_status status) const;
  void trace(const char* format, ...) __attribute__((format(printf, 2, 3)));
  void step();
  void step_open(double dice);
  void finish();
  kvc_seq any_seq();
  // Neither swapped nor in the open forward; false: there is none.
  bool pick_idle(kvc_seq* seq);
  bool is_open(kvc_seq seq) const;
  kvc_stats stats() const;
  kvc_seq_info info_of(kvc_seq seq) const;

  // prefix_compare.cc
  int root_of(const Sequence& sequence) { return histories_.root(epoch_, sequence.space.salt); }
  int next_history(const Sequence& sequence, int parent, int64_t position, int32_t token);
  bool sees(const Sequence& sequence, const PrefixSetup::Group& group, int64_t token) const;
  int64_t first_seen(const PrefixSetup::Group& group, int64_t position) const;
  // What a page holds of a group. A page whose content is not known becomes the group's.
  Content& content_of(int32_t page, size_t group);
  // The page does not hold the sequence's tokens of this entry.
  bool contradicts(const Content& content, const Sequence& sequence, size_t group,
                   size_t entry) const;
  void note_promoted(kvc_seq seq, int64_t pages);
  // On the device, by all sequences but one.
  std::set<int32_t> held_pages(kvc_seq but) const;
  // Pages that no sequence holds may hold anything from now on.
  void forget_unheld_pages();
  std::vector<int32_t> exported_pages(kvc_seq seq, size_t group) const;
  void read_tables(kvc_seq seq);
  // After something was published: entries may be the index's pages now, or, of a block that begins
  // like another, copies of their own.
  void compare_published(const std::vector<kvc_seq>& seqs, uint64_t copied_before);
  void compare_sequence(kvc_seq seq);
  void compare_rows(kvc_seq seq);
  void compare_all();
  void compare_counts();
  // Whatever a living sequence holds and the cache knows can be found.
  void compare_use(kvc_seq seq, bool just_ended);
  void note_published(kvc_seq seq);
  // Leading tokens that no partial forward has left unwritten.
  int64_t written(const Sequence& sequence) const;
  int64_t match(Query& query);
  int64_t predicted(Query& query);
  void compare_prediction();
  void compare_quotas();

  // prefix_queries.cc
  Query draw_query();
  Query query_of(const Sequence& sequence, int64_t num_tokens);
  void remember(const Namespace& space, const std::vector<int32_t>& prompt);
  void op_attach();
  void check_hit(Query& query, int64_t hit, int64_t matched);
  void op_match();
  // Keys of a namespace, asked for in another one.
  void op_foreign_keys();
  void op_insert();
  // Histories of the ends of the query's full blocks.
  std::vector<int> block_ends(const Query& query);
  void op_pin();
  void op_unpin();
  void op_evict();
  void op_reset();
  void op_quota();
  void op_events();
  void op_refused();

  // prefix_sequences.cc
  void op_add();
  void op_remove();
  void op_fork();
  void op_pop();
  void op_set_window();
  void op_shift();
  void op_resize();
  void op_clear();
  void op_checkpoint();
  void op_swap_out();
  void op_swap_in();

  // prefix_forward.cc
  void draw_batch();
  void draw_tokens(Entry* entry, int64_t count);
  void op_begin();
  void leave_rows_out();
  void take_tables();
  void write_content();
  void write_rows();
  void op_end();
  void op_abort();
  void op_commit();
  void commit_path(kvc_seq seq, int32_t leaf);

  uint64_t seed_;
  PrefixRunKind kind_;
  Random random_;
  PrefixSetup setup_;
  kvc_forward* forward_ = nullptr;
  int64_t steps_ = 0;

  Histories histories_;
  int32_t epoch_ = 0;
  std::vector<Namespace> spaces_;
  std::vector<int32_t> alphabet_;
  // Prompts that others may begin like
  std::vector<std::pair<Namespace, std::vector<int32_t>>> book_;
  std::map<kvc_seq, Sequence> sequences_;
  std::vector<Content> content_;  // by page
  std::vector<Entry> entries_;    // of the open forward
  // Layer that the open forward leaves unwritten
  size_t left_out_ = SIZE_MAX;
  // Histories of tokens that a partial forward left so
  std::set<int> unwritten_;
  // Histories of tokens that may be in the index
  std::set<int> published_;
  std::map<std::string, EventConsumer::Block> blocks_;  // all that were ever published, by key
  EventConsumer consumer_;
  std::list<Query> pins_;
  // By history of the block's last token, where every group sees all
  std::map<int, int64_t> pin_counts_;
  std::map<int, int> pin_parents_;  // the block before
  struct Quota {
    uint64_t bytes, limit;
  };
  std::map<std::string, Quota> quotas_;
  std::set<std::string> had_quota_;
  int64_t num_pages_ = 0;
  uint64_t lookups_ = 0, query_tokens_ = 0, hit_tokens_ = 0;

  kvc_error last_error_{};
  Coverage coverage_;
  Trace trace_;
};

}  // namespace kvc::test
