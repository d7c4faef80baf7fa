// The layers that `kvcache plan` plans: read from a config.json or alike from the command line,
// then changed as the options say.
#pragma once

#include <cstdint>
#include <deque>
#include <stdexcept>
#include <string>
#include <vector>

#include "kvcache.h"

namespace kvc::plan_tool {

// Ends the command with exit status 1; what() is for the user.
struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Owns everything that `config` points at.
struct Model {
  kvc_config config{};
  std::vector<kvc_layer> layers;  // behind the layers: what they point at
  std::deque<std::vector<kvc_state_spec>> own_states;
  std::deque<std::vector<int64_t>> own_shapes;
  std::vector<std::string> warnings;        // The library said them about the file.
  std::deque<std::vector<kvc_layer>> kept;  // Arrays that `layers` points into.
  // The last layers draft tokens and run on the last pipeline stage.
  int32_t num_mtp_layers = 0, num_draft_layers = 0;

  Model() = default;
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  size_t num_layers() const { return static_cast<size_t>(config.num_layers); }
};

// Every model_type that a config.json may name, in alphabetical order.
std::vector<std::string> known_families();
// A line for each, with what it keeps.
std::string families_text();

// Reads the config.json at `path`. `assumed`: the family whose rules read a model_type that is not
// known; empty: none. `mtp_layers`: layers of multi-token prediction to append. Throws Failure.
void read_model_file(const std::string& path, const std::string& assumed, int32_t mtp_layers,
                     Model& model);

// Appends the layers of a draft model, whose cache is planned with the model's: both keep the same
// tokens. Throws Failure for an encoder-decoder.
void append_draft(Model& draft, Model& model);

struct UniformLayers {
  int32_t layers = 0;
  int32_t q_heads = 0;  // 0: as many as kv heads
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  int64_t window = 0;        // 0: none
  int32_t window_every = 1;  // every n-th layer has the window
  // Every n-th layer has none and all others have it; 0: window_every counts
  int32_t full_every = 0;
};
void make_uniform(const UniformLayers& shape, Model& model);

// Names of --kv-dtype, "auto" first: what the model says.
const std::vector<std::string>& kv_dtype_names();
// Storage of K and V. Throws Failure for layers that cannot have it.
void set_kv_dtype(const std::string& name, Model& model, int32_t keep_tokens = 0);

// Sets config.cp_size: ranks with the same heads deal out the tokens of a request. Throws Failure
// where not that many of `tensor_ranks` have them. To be called before divide_heads.
void deal_out_tokens(int32_t tensor_ranks, int32_t context_ranks, Model& model);

// One of `ranks` tensor parallel ranks: query and kv heads and the first dimension of states
// divided, latents kept whole. Throws Failure where something does not divide.
void divide_heads(int32_t ranks, Model& model);

}  // namespace kvc::plan_tool
