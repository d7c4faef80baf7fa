// One run of a scenario: the cache, the open forward, and the checks that follow every step.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kvcache.h"
#include "tests/conformance/model.h"

namespace kvc::conformance {

// The sequences of the forward that was begun last.
struct Batch {
  std::vector<kvc_seq> seqs;
  std::vector<int64_t> lengths;
  Ids ids;        // of the new tokens, packed
  Ids cross_ids;  // of the encoder tokens that this forward writes, packed
};

// A result of an attention call that a later step merges.
struct Partial {
  HostTensor out, lse;
};

inline int32_t layer_of(const Json& step) { return step.at("layer").get<int32_t>(); }
inline kvc_seq seq_of(const Json& step) { return step.at("seq").get<kvc_seq>(); }

// A pool of a host program, for kvc_op_*.
struct HostPool {
  HostTensor k, v;
  kvc_op_pool call{};
  int32_t heads = 1, k_dim = 0, v_dim = 0;
};

struct Session {
  Session(const Json& scenario, kvc_cpu_isa isa);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  void run();

  // Where a token's rotary position is not its id: what the caller gave with the forward.
  Vector position_of(int64_t id) const;
  bool near(double actual, double expected) const;
  // Number of the page table that a layer reads.
  int32_t group_of(int32_t layer) const;

  const Json& scenario;
  kvc_cpu_isa isa;
  double tolerance;
  Model model;
  kvc_plan* plan = nullptr;
  kvc_cache* cache = nullptr;
  kvc_forward* fwd = nullptr;  // the last one, also when it has ended
  bool open = false;
  Batch batch;
  int64_t next_id = 0;
  std::map<int64_t, Vector> given_positions;
  std::map<std::string, Partial> partials;
  std::map<std::string, HostPool> pools;

 private:
  void run_step(const Json& step);
  void finish();
};

// Performs a step and checks its results when it succeeded. Returns the status of the step's call.
using Handler = std::function<kvc_status(Session&, const Json& step, kvc_error* err)>;
using Handlers = std::map<std::string, Handler>;

void add_sequence_steps(Handlers& handlers);
void add_forward_steps(Handlers& handlers);
void add_attention_steps(Handlers& handlers);
void add_state_steps(Handlers& handlers);
void add_stored_steps(Handlers& handlers);
void add_export_steps(Handlers& handlers);
void add_operator_steps(Handlers& handlers);
void add_prefix_steps(Handlers& handlers);

// What a refused step must leave as it was: lengths, every field of kvc_seq_info, page tables, free pages.
std::string snapshot(const Session& session);

// The "expect" object of a step.
void check_expectations(const Session& session, const Json& expect);

// Page ids of a sequence's kept pages in the group of a layer.
std::vector<int64_t> seq_pages(const Session& session, kvc_seq seq, int32_t group);

// Content of an exported tensor, and its deletion.
std::vector<int64_t> take_integers(struct DLManagedTensorVersioned* exported);

}  // namespace kvc::conformance
