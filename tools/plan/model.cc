#include "tools/plan/model.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>

#include "src/model_config/families.h"
#include "tools/kv_dtypes.h"
#include "tools/plan/capacity.h"

namespace kvc::plan_tool {
namespace {

// What the library reads of a configuration at most; one byte more is refused there.
constexpr size_t kMostBytes = (size_t{16} << 20) + 1;

std::string file_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(kMostBytes, '\0');
  if (file) file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file && !file.eof()) throw Failure("cannot read " + path + ": " + std::strerror(errno));
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.find('\0') != std::string::npos)
    throw Failure(path + " is not JSON: it has a zero byte");
  return text;
}

std::string divides(const char* what, size_t layer, int64_t value, int32_t ranks) {
  return "--tp " + std::to_string(ranks) + " does not divide the " + std::to_string(value) + " " +
         what + " of layer " + std::to_string(layer);
}

int32_t part(const char* what, size_t layer, int32_t heads, int32_t ranks) {
  if (heads % ranks != 0) throw Failure(divides(what, layer, heads, ranks));
  return heads / ranks;
}

// At least one per rank: ranks beyond the heads hold copies.
int32_t kv_part(size_t layer, int32_t heads, int32_t ranks) {
  if (heads < ranks && ranks % heads == 0) return 1;
  return part("kv heads", layer, heads, ranks);
}

const kvc_state_spec* divided_states(size_t layer, const kvc_layer& whole, int32_t ranks,
                                     Model& model) {
  std::vector<kvc_state_spec> states;
  const auto* bytes = reinterpret_cast<const std::byte*>(whole.states);
  for (int32_t i = 0; i < whole.num_states; ++i) {
    kvc_state_spec state;
    std::memcpy(&state, bytes + static_cast<size_t>(i) * whole.states->struct_size, sizeof state);
    std::vector<int64_t> shape(state.shape, state.shape + state.ndim);
    if (shape[0] % ranks != 0)
      throw Failure(divides("rows of a recurrent state", layer, shape[0], ranks));
    shape[0] /= ranks;
    model.own_shapes.push_back(std::move(shape));
    state.shape = model.own_shapes.back().data();
    states.push_back(state);
  }
  model.own_states.push_back(std::move(states));
  return model.own_states.back().data();
}

// What the library logs while this lives goes to `lines`.
class Warnings {
 public:
  explicit Warnings(std::vector<std::string>& lines) {
    (void)kvc_set_logger(add, &lines, KVC_LOG_WARNING, nullptr);
  }
  ~Warnings() { (void)kvc_set_logger(nullptr, nullptr, KVC_LOG_WARNING, nullptr); }
  Warnings(const Warnings&) = delete;
  Warnings& operator=(const Warnings&) = delete;

 private:
  static void add(void* user, kvc_log_level, const char* message) {
    static_cast<std::vector<std::string>*>(user)->emplace_back(message);
  }
};

}  // namespace

std::vector<std::string> known_families() { return hf::family_names(); }

std::string families_text() {
  const std::vector<std::string> names = known_families();
  size_t width = 0;
  for (const std::string& name : names) width = std::max(width, name.size());
  std::string text;
  for (const std::string& name : names) {
    text += name + std::string(width + 2 - name.size(), ' ') + hf::family_keeps(name) + "\n";
  }
  return text;
}

namespace {

void read_layers(const std::string& path, const std::string& text, const kvc_hf_options& options,
                 Model& model) {
  kvc_error error{};
  size_t count = 0;
  const auto read = [&](kvc_layer* layers) {
    const kvc_status status =
        kvc_config_from_hf(text.c_str(), &options, &model.config, layers, &count, &error);
    if (status == KVC_OK) return;
    const bool is_unknown =
        status == KVC_E_UNSUPPORTED &&
        (std::string_view(error.message).find("model_type = '") != std::string::npos ||
         std::string_view(error.message).find("unknown model_type") != std::string::npos);
    throw Failure(path + ": " + in_option_names(error.message) +
                  (is_unknown
                       ? ". --families lists what is known; --assume llama reads a plain decoder"
                       : ""));
  };
  read(nullptr);
  model.layers.resize(count);
  model.layers[0].struct_size = sizeof(kvc_layer);
  read(model.layers.data());
}

}  // namespace

void read_model_file(const std::string& path, const std::string& assumed, int32_t mtp_layers,
                     Model& model) {
  const std::string text = file_text(path);
  kvc_hf_options options{};
  options.struct_size = sizeof options;
  if (!assumed.empty()) options.assume = assumed.c_str();
  {
    const Warnings warnings(model.warnings);
    read_layers(path, text, options, model);
  }
  if (mtp_layers == 0) return;
  const int32_t own_layers = model.config.num_layers;
  options.mtp_layers = mtp_layers;
  std::vector<std::string> said;  // The same lines again.
  const Warnings warnings(said);
  read_layers(path, text, options, model);
  model.num_mtp_layers = model.config.num_layers - own_layers;
}

void append_draft(Model& draft, Model& model) {
  std::vector<kvc_layer> layers(model.layers.data(), model.layers.data() + model.num_layers());
  for (size_t i = 0; i < draft.num_layers(); ++i) {
    kvc_layer layer = draft.layers[i];
    if (layer.kind == KVC_LAYER_CROSS)
      throw Failure("--draft: layer " + std::to_string(i) +
                    " attends to an encoder, which a draft model has not");
    if (layer.kind == KVC_LAYER_SHARED) layer.source_layer += model.config.num_layers;
    layers.push_back(layer);
  }
  model.kept.push_back(std::move(model.layers));
  model.kept.push_back(std::move(draft.layers));
  model.layers = std::move(layers);
  const int64_t limit = draft.config.max_seq_len;
  if (limit != 0 && (model.config.max_seq_len == 0 || limit < model.config.max_seq_len))
    model.config.max_seq_len = limit;
  model.num_draft_layers = draft.config.num_layers;
  model.config.num_layers += draft.config.num_layers;
  model.config.layers = model.layers.data();
}

void make_uniform(const UniformLayers& shape, Model& model) {
  for (int32_t i = 0; i < shape.layers; ++i) {
    kvc_layer layer{};
    layer.struct_size = sizeof layer;
    layer.num_q_heads = shape.q_heads;
    layer.num_kv_heads = shape.kv_heads;
    layer.k_dim = shape.head_dim;
    const bool is_windowed =
        shape.full_every != 0 ? (i + 1) % shape.full_every != 0 : (i + 1) % shape.window_every == 0;
    if (is_windowed) layer.window = shape.window;
    model.layers.push_back(layer);
  }
  model.config.num_layers = shape.layers;
  model.config.layers = model.layers.data();
}

const std::vector<std::string>& kv_dtype_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> out = {"auto"};
    for (const KvDtype& dtype : kKvDtypes) out.emplace_back(dtype.name);
    return out;
  }();
  return names;
}

void set_kv_dtype(const std::string& name, Model& model, int32_t keep_tokens) {
  const KvDtype* dtype = find_kv_dtype(name);
  const bool quantised = dtype != nullptr && dtype->quant != KVC_QUANT_NONE;
  if (keep_tokens != 0 && !quantised)
    throw Failure("--keep-tokens " + std::to_string(keep_tokens) + ": --kv-dtype " + name +
                  " is not quantised");
  if (dtype == nullptr) return;
  for (size_t i = 0; i < model.num_layers(); ++i) {
    kvc_layer& layer = model.layers[i];
    if (layer.kind == KVC_LAYER_MLA && dtype->quant == KVC_QUANT_BLOCK16) {
      throw Failure("--kv-dtype " + name + ": layer " + std::to_string(i) +
                    " keeps latents (MLA), which no type with a scale per 16 elements stores");
    }
    // K and V of an encoder are written once and stay as the model has them unless all are.
    const bool may = layer.kind == KVC_LAYER_ATTENTION || layer.kind == KVC_LAYER_MLA ||
                     (layer.kind == KVC_LAYER_CROSS && !quantised);
    if (!may) continue;
    layer.quant = dtype->quant;
    layer.keep_tokens = keep_tokens;
    layer.k_dtype = layer.v_dtype = dtype->type;
  }
}

void deal_out_tokens(int32_t tensor_ranks, int32_t context_ranks, Model& model) {
  model.config.cp_size = context_ranks;
  if (context_ranks == 1) return;
  for (size_t i = 0; i < model.num_layers(); ++i) {
    const kvc_layer& layer = model.layers[i];
    const bool is_latent = layer.kind == KVC_LAYER_MLA;
    if (!is_latent && layer.kind != KVC_LAYER_ATTENTION) continue;
    const int32_t heads = is_latent ? 1 : layer.num_kv_heads;
    const int32_t copies = heads < tensor_ranks ? tensor_ranks / heads : 1;
    if (copies % context_ranks == 0) continue;
    throw Failure("--cp " + std::to_string(context_ranks) + ": layer " + std::to_string(i) +
                  (is_latent ? " keeps latents, of which --tp "
                             : " has " + std::to_string(heads) + " kv heads, of which --tp ") +
                  std::to_string(tensor_ranks) + " makes " + std::to_string(copies) +
                  (copies == 1 ? " copy" : " copies") + " to deal tokens out over");
  }
}

void divide_heads(int32_t ranks, Model& model) {
  if (ranks == 1) return;
  std::map<const kvc_state_spec*, const kvc_state_spec*> divided;  // layers share their states
  for (size_t i = 0; i < model.num_layers(); ++i) {
    kvc_layer& layer = model.layers[i];
    if (layer.kind == KVC_LAYER_STATE) {
      auto [place, is_new] = divided.try_emplace(layer.states, nullptr);
      if (is_new) place->second = divided_states(i, layer, ranks, model);
      layer.states = place->second;
      continue;
    }
    if (layer.num_q_heads != 0)
      layer.num_q_heads = part("query heads", i, layer.num_q_heads, ranks);
    if (layer.kind == KVC_LAYER_ATTENTION || layer.kind == KVC_LAYER_CROSS)
      layer.num_kv_heads = kv_part(i, layer.num_kv_heads, ranks);
  }
}

}  // namespace kvc::plan_tool
