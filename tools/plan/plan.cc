#include "tools/plan/plan.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>

#include "kvcache.h"
#include "tools/plan/capacity.h"
#include "tools/plan/figure.h"
#include "tools/plan/model.h"
#include "tools/plan/report.h"
#include "tools/plan/size.h"

namespace {

using namespace kvc::plan_tool;

constexpr int32_t kMaxRanks = 1024;

struct Options {
  std::string file, assumed, draft;
  int32_t mtp_layers = 0;
  UniformLayers uniform;
  std::string memory, host_memory, svg_path;
  int64_t pages = 0;
  int64_t max_len = 0;
  int32_t page_size = 16;
  std::string kv_dtype = "auto";
  int32_t keep_tokens = 0;
  int64_t max_tokens_per_forward = 8192;  // Engines default to this or less.
  int32_t in_flight = 0;
  int64_t state_slots = 0;
  int64_t max_cross_len = 0;
  int32_t tensor_ranks = 1, stages = 1, context_ranks = 1;
  bool pads_pages = false;
  bool json = false;
};

uint64_t bytes_of(const std::string& text) {
  return text.empty() ? 0 : parse_size(text).value_or(0);
}

void warn(const std::string& text) {
  std::fprintf(stderr, "kvcache plan: warning: %s\n", text.c_str());
}

// Requests are as long as both models allow.
void read_draft(const Options& options, Model& model) {
  Model draft;
  (void)kvc_config_init(&draft.config, sizeof draft.config);
  read_model_file(options.draft, "", 0, draft);
  for (const std::string& line : draft.warnings) warn(options.draft + ": " + line);
  const int64_t of_model = model.config.max_seq_len;
  append_draft(draft, model);
  if (options.max_len == 0 && of_model > model.config.max_seq_len) {
    warn("the draft model has " + grouped(model.config.max_seq_len) +
         " tokens at most, the model " + grouped(of_model) + ": this is the plan for the former");
  }
}

void read_model(const Options& options, Model& model) {
  (void)kvc_config_init(&model.config, sizeof model.config);
  if (options.file.empty()) {
    make_uniform(options.uniform, model);
  } else {
    read_model_file(options.file, options.assumed, options.mtp_layers, model);
    for (const std::string& line : model.warnings) warn(line);
  }
  if (!options.draft.empty()) read_draft(options, model);
  set_kv_dtype(options.kv_dtype, model, options.keep_tokens);
  deal_out_tokens(options.tensor_ranks, options.context_ranks, model);
  divide_heads(options.tensor_ranks, model);
  kvc_config& config = model.config;
  config.flags = options.pads_pages ? KVC_CONFIG_PAD_PAGES : 0;
  config.page_size = options.page_size;
  config.max_tokens_per_forward = options.max_tokens_per_forward;
  config.forwards_in_flight = options.in_flight;
  config.host_byte_budget = bytes_of(options.host_memory);
  config.num_state_slots = options.state_slots;
  if (options.max_len != 0) config.max_seq_len = options.max_len;
  if (options.max_cross_len != 0) config.max_cross_len = options.max_cross_len;
}

// Opened before the work, so that a bad path ends the command early. Empty: no figure.
std::ofstream open_figure(const std::string& path) {
  std::ofstream file;
  if (path.empty()) return file;
  file.open(path, std::ios::binary | std::ios::trunc);
  if (!file.is_open()) throw Failure("--svg: cannot write " + path + ": " + std::strerror(errno));
  return file;
}

int show(const Options& options) {
  try {
    Model model;
    read_model(options, model);
    std::ofstream svg = open_figure(options.svg_path);
    const Capacity capacity = plan_capacity(model, bytes_of(options.memory), options.tensor_ranks,
                                            options.stages, options.pages);
    const std::string warning = warning_of(capacity);
    if (!warning.empty()) warn(warning);
    if (svg.is_open() && !(svg << svg_figure(capacity)).flush())
      throw Failure("cannot write " + options.svg_path + ": " + std::strerror(errno));
    std::fputs((options.json ? json_report(capacity) : text_report(capacity)).c_str(), stdout);
    if (svg.is_open() && !options.json) std::printf("wrote %s\n", options.svg_path.c_str());
    return 0;
  } catch (const Failure& failure) {
    std::fprintf(stderr, "kvcache plan: %s\n", failure.what());
    return 1;
  }
}

// What the parser cannot say by itself.
void check_usage(const CLI::App& plan, const Options& options) {
  const bool has_shape = plan.count("--layers") != 0;
  if (options.file.empty() == !has_shape)
    throw CLI::ValidationError("plan",
                               "give a config.json, or --layers with --kv-heads and --head-dim");
  if (options.file.empty() && !options.assumed.empty())
    throw CLI::ValidationError("plan", "--assume is for a config.json");
  if (options.file.empty() && options.mtp_layers != 0)
    throw CLI::ValidationError("plan", "--mtp is for a config.json");
  if (plan.count("--window-every") != 0 && plan.count("--full-every") != 0)
    throw CLI::ValidationError("plan", "--window-every and --full-every exclude each other");
}

void add_shape(CLI::App& plan, UniformLayers& shape) {
  const auto heads = CLI::Range(1, 65536);
  CLI::Option* layers =
      plan.add_option("--layers", shape.layers, "Without a file: that many layers alike")
          ->check(heads);
  const auto add = [&](const char* name, auto& value, const char* text, const CLI::Range& range) {
    return plan.add_option(name, value, text)->check(range)->needs(layers);
  };
  layers->needs(add("--kv-heads", shape.kv_heads, "Heads of K and V", heads));
  layers->needs(add("--head-dim", shape.head_dim, "Elements of a head", CLI::Range(1, 512)));
  add("--q-heads", shape.q_heads, "Query heads; default: as many as kv heads", heads);
  CLI::Option* window = add("--window", shape.window,
                            "Visible keys of a query, itself included, in layers with a window",
                            CLI::Range(1, INT32_MAX));
  add("--window-every", shape.window_every, "Every n-th layer has the window; default: all", heads)
      ->needs(window);
  add("--full-every", shape.full_every, "Every n-th layer has no window, the others have it", heads)
      ->needs(window);
}

}  // namespace

void register_plan(CLI::App& app, int& exit_code) {
  const auto options = std::make_shared<Options>();
  CLI::App* plan = app.add_subcommand(
      "plan", "Plan the cache of a model in given memory: pages, requests at once, waste");
  plan->add_option("config", options->file, "Hugging Face config.json of the model");
  plan->add_option("--memory", options->memory,
                   "Memory for the cache on each rank: 24GiB or 24G (of 1024), 24GB (of 1000), "
                   "bytes from 1 MiB")
      ->required()
      ->check(size_problem);
  plan->add_flag_callback(
      "--families",
      [] {
        std::fputs(families_text().c_str(), stdout);
        throw CLI::Success();
      },
      "Print every model_type that a config.json may have with what it keeps, and end");
  plan->add_option("--assume", options->assumed,
                   "Read a model_type that is not known by the rules of this one, such as llama")
      ->check(CLI::IsMember(known_families()).description(""))
      ->type_name("FAMILY");
  plan->add_option("--mtp", options->mtp_layers,
                   "Layers of multi-token prediction that are kept too, at most those of the model")
      ->check(CLI::Range(1, 4096));
  plan->add_option("--draft", options->draft,
                   "config.json of a draft model, whose cache lies in the same memory");
  const auto lengths = CLI::Range(int64_t{1}, int64_t{INT32_MAX});
  const auto add_length = [&](const char* name, int64_t& value, const char* text) {
    plan->add_option(name, value, text)->check(lengths);
  };
  add_length("--max-len", options->max_len, "Tokens of the longest request; default: the model's");
  plan->add_option("--page-size", options->page_size, "Tokens per page of the widest layers")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  plan->add_option("--kv-dtype", options->kv_dtype, "Storage of K and V; auto: the model's")
      ->check(CLI::IsMember(kv_dtype_names()))
      ->capture_default_str();
  plan->add_option("--keep-tokens", options->keep_tokens,
                   "Leading tokens of a request that quantised storage keeps in bf16")
      ->check(CLI::Range(0, INT32_MAX))
      ->capture_default_str();
  plan->add_option("--max-tokens-per-forward", options->max_tokens_per_forward,
                   "New tokens of one forward at most; 0: a prompt comes in one forward, whatever "
                   "its length")
      ->check(CLI::Range(int64_t{0}, int64_t{INT32_MAX}))
      ->capture_default_str();
  plan->add_option("--in-flight", options->in_flight, "Forwards under way at once; default: 1")
      ->check(CLI::Range(1, 64));
  plan->add_option("--host-memory", options->host_memory, "Host memory for swapped pages")
      ->check(size_problem);
  plan->add_flag("--pad", options->pads_pages,
                 "Pad the pages of narrow layers instead of giving them more tokens");
  plan->add_option("--tp", options->tensor_ranks,
                   "Tensor parallel ranks: heads and states are divided")
      ->check(CLI::Range(1, kMaxRanks))
      ->capture_default_str();
  plan->add_option("--pp", options->stages,
                   "Pipeline stages: layers are divided, the first get what is left over")
      ->check(CLI::Range(1, kMaxRanks))
      ->capture_default_str();
  plan->add_option("--cp", options->context_ranks,
                   "Tensor parallel ranks with the same heads that a request's tokens are dealt "
                   "out over (vLLM: --decode-context-parallel-size)")
      ->check(CLI::Range(1, kMaxRanks))
      ->capture_default_str();
  add_length("--state-slots", options->state_slots,
             "Recurrent states kept at most, in memory set aside for them");
  add_length("--max-cross-len", options->max_cross_len,
             "Encoder tokens of a request; default: the model's");
  add_shape(*plan, options->uniform);
  plan->add_option("--pages", options->pages,
                   "Pages of pipeline stages whose layers keep states alone; --memory then holds "
                   "their states")
      ->check(CLI::Range(int64_t{1}, int64_t{INT32_MAX} - 1));
  plan->add_option("--svg", options->svg_path,
                   "Write a figure: pages of a request by layer group, requests by length");
  plan->add_flag("--json", options->json, "Print one JSON object");
  plan->callback([plan, options, &exit_code] {
    check_usage(*plan, *options);
    exit_code = show(*options);
  });
}
