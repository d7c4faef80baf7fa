#include "tests/conformance/schema.h"

#include <fstream>
#include <map>
#include <set>
#include <stdexcept>
#include <vector>

namespace kvc::conformance {
namespace {

using Keys = std::set<std::string>;

const Keys kScenario{"name", "about", "config", "tolerance", "steps"};
const Keys kConfig{
    "page_size",      "num_pages",     "byte_budget",     "layers",       "layer_begin",
    "layer_end",      "max_seqs",      "max_seq_len",     "storage",      "max_tokens_per_forward",
    "pool_layout",    "max_cross_len", "num_state_slots", "state_stride", "num_threads",
    "event_capacity", "pad_pages"};
const Keys kLayer{"kind",   "heads", "q_heads", "k_dim",       "v_dim",           "dtype",  "v_dtype", "rope",
                  "window", "chunk", "source",  "latent_rank", "latent_rope_dim", "v_is_k", "states"};
const Keys kState{"shape", "dtype", "init"};
const Keys kRope{"mode",
                 "style",
                 "rotary_dim",
                 "theta",
                 "scale",
                 "freq_factors",
                 "long_freq_factors",
                 "scaling",
                 "sections",
                 "section_layout",
                 "factor",
                 "low_freq_factor",
                 "high_freq_factor",
                 "beta_fast",
                 "beta_slow",
                 "attention_factor",
                 "original_context",
                 "frequencies",
                 "magnitude"};
const Keys kExpect{"lengths", "free_pages", "empty", "total_length", "seqs", "info", "pages", "stats"};
const Keys kOptions{"scale", "soft_cap", "window", "sink_logits", "alibi", "spans", "bias", "flags"};
const Keys kTable{"seq_lens", "qo_indptr", "page_indptr", "page_indices", "block_table"};

// Keys of every step besides those of its operation.
const Keys kEveryStep{"op", "about", "status", "detail", "expect"};
// What describes a batch, and what an attention call checks.
const Keys kBatch{"seqs",          "lengths",   "ids",     "tree_parents", "positions",
                  "cross_lengths", "cross_ids", "publish", "partial"};
// What describes a query of the prefix cache, and what it finds.
const Keys kQuery{"tokens", "num_tokens", "salt", "keys", "flags", "priority", "hashes", "hit"};
const Keys kQueryKey{"type", "offset", "data"};
const Keys kRows{"q", "sees", "at", "q_at", "long_from", "opt"};

Keys join(std::initializer_list<Keys> sets) {
  Keys all;
  for (const Keys& keys : sets) all.insert(keys.begin(), keys.end());
  return all;
}

const std::map<std::string, Keys>& operations() {
  static const std::map<std::string, Keys> table{
      {"plan", {"config", "groups", "layer_groups", "request_pages", "layers"}},
      {"add", {"seq"}},
      {"remove", {"seq"}},
      {"fork", {"parent", "child", "pos"}},
      {"pop", {"seq", "n"}},
      {"shift", {"seq", "begin", "end", "delta"}},
      {"set_window", {"seq", "window", "sink"}},
      {"clear", {}},
      {"resize", {"num_pages"}},
      {"can_append", {"seqs", "lengths", "missing"}},
      {"can", {"seq", "what", "pos", "nearest"}},
      {"checkpoint", {"seq"}},
      {"commit", {"seqs", "leaves"}},
      {"begin", kBatch},
      {"end", {}},
      {"abort", {}},
      {"forward", join({kBatch, kRows, {"layer_sees", "cross_sees", "get", "set"}})},
      {"positions", {"values"}},
      {"tables", {"layer", "indptr", "last_page_len", "seq_lens", "qo_indptr", "page_position", "kind"}},
      {"attn", join({kRows, {"layer", "append", "rows"}})},
      {"fused", join({kRows, {"layer"}})},
      {"self", join({kRows, {"layer", "into"}})},
      {"cached", join({kRows, {"layer", "into"}})},
      {"merge", join({kRows, {"layer", "into", "other"}})},
      {"append", {"layer"}},
      {"mla_append", {"layer"}},
      {"cross", join({kRows, {"layer", "give"}})},
      {"shared_kv", join({kRows, {"source", "q_heads"}})},
      {"gather", {"layer", "seq", "ids", "at", "long_from"}},
      {"state_get", {"layer", "state", "values"}},
      {"state_set", {"layer", "state", "values"}},
      {"linear", {"layer", "state", "decay", "delta", "beta", "scale", "skip", "heads_k", "history"}},
      {"conv", {"layer", "state", "bias", "activation", "history"}},
      {"stored", {"seq", "layer", "begin", "end", "ids", "at", "long_from"}},
      {"store", {"seq", "layer", "begin", "ids"}},
      {"stored_kv", {"seq", "begin", "end", "ids"}},
      {"store_kv", {"seq", "begin", "ids"}},
      {"stored_mla", {"seq", "begin", "end", "ids"}},
      {"store_mla", {"seq", "begin", "ids"}},
      {"stored_state", {"seq", "layer", "state", "value", "conv_inputs", "linear"}},
      {"store_state", {"seq", "layer", "state", "value"}},
      {"export_pool", {"layer", "kind", "shape"}},
      {"op_pool", {"pool", "layout", "num_pages", "page_size", "heads", "k_dim", "v_dim", "dtype"}},
      {"op_append", {"pool", "slots", "ids", "positions", "rope"}},
      {"op_attention", join({kRows, {"pool", "table", "q_ids", "q_heads", "full", "rope"}})},
      {"op_mla", join({kRows, {"pool", "table", "q_ids", "q_heads", "latent_rank"}})},
      {"op_ragged",
       join({kRows, {"qo_indptr", "kv_indptr", "q_ids", "k_ids", "q_heads", "heads", "dim", "full"}})},
      {"op_merge", {"heads", "dim", "parts"}},
      {"op_gather", {"pool", "table", "ids"}},
      {"op_copy_pages", {"pool", "pairs"}},
      {"op_rotate", {"ids", "heads", "dim", "positions", "rope", "in_place"}},
      {"prefix_hash", {"tokens", "salt", "keys", "block", "values"}},
      {"match", kQuery},
      {"attach", join({kQuery, {"seq"}})},
      {"insert", join({kQuery, {"seq"}})},
      {"pin", kQuery},
      {"unpin", kQuery},
      {"evict", {"pages", "freed"}},
      {"prefix_reset", {}},
      {"quota", {"salt", "pages"}},
      {"events", {"counts"}},
      {"op_linear", {"ids", "qo_indptr", "heads", "k_dim", "v_dim", "decay", "delta", "beta", "scale"}},
  };
  return table;
}

[[noreturn]] void mistake(const std::string& where, const std::string& what) {
  throw std::runtime_error(where + ": " + what);
}

void check_keys(const Json& object, const Keys& known, const std::string& where) {
  if (!object.is_object()) mistake(where, "has to be an object");
  for (const auto& [key, unused] : object.items())
    if (known.count(key) == 0) mistake(where, "unknown key '" + key + "'");
}

void check_config(const Json& config, const std::string& where) {
  check_keys(config, kConfig, where);
  for (const Json& layer : config.at("layers")) {
    check_keys(layer, kLayer, where + ".layers");
    if (layer.contains("rope")) check_keys(layer["rope"], kRope, where + ".layers.rope");
    for (const Json& state : layer.value("states", Json::array()))
      check_keys(state, kState, where + ".layers.states");
  }
}

void check_step(const Json& step, const std::string& where) {
  if (!step.is_object()) mistake(where, "has to be an object");
  const auto known = operations().find(step.at("op").get<std::string>());
  if (known == operations().end()) mistake(where, "unknown op " + step["op"].dump());
  check_keys(step, join({kEveryStep, known->second}), where);
  if (step.contains("expect")) check_keys(step["expect"], kExpect, where + ".expect");
  if (step.contains("opt")) check_keys(step["opt"], kOptions, where + ".opt");
  if (step.contains("table")) check_keys(step["table"], kTable, where + ".table");
  if (step.contains("rope")) check_keys(step["rope"], kRope, where + ".rope");
  for (const Json& key : step.value("keys", Json::array())) check_keys(key, kQueryKey, where + ".keys");
  if (step.contains("config")) check_config(step["config"], where + ".config");
}

// A key that is written twice would silently win over the first.
bool refuse_duplicate_keys(std::vector<Keys>& open, Json::parse_event_t event, const Json& parsed) {
  if (event == Json::parse_event_t::object_start) open.emplace_back();
  if (event == Json::parse_event_t::object_end) open.pop_back();
  if (event == Json::parse_event_t::key && !open.back().insert(parsed.get<std::string>()).second)
    throw std::runtime_error("key " + parsed.dump() + " is written twice");
  return true;
}

}  // namespace

Json load_scenario(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path);
  std::vector<Keys> open;
  Json scenario = Json::parse(file, [&](int, Json::parse_event_t event, Json& parsed) {
    return refuse_duplicate_keys(open, event, parsed);
  });
  check_keys(scenario, kScenario, "scenario");
  for (const char* key : {"name", "about", "config", "steps"})
    if (!scenario.contains(key)) mistake("scenario", std::string("lacks '") + key + "'");
  check_config(scenario["config"], "config");
  size_t number = 0;
  for (const Json& step : scenario["steps"]) check_step(step, "step " + std::to_string(number++));
  return scenario;
}

}  // namespace kvc::conformance
