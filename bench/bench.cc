#include "bench/bench.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "bench/benches.h"
#include "bench/gpu_bench.h"
#include "tools/chat/chat_template.h"
#include "tools/kv_dtypes.h"

namespace kvc::bench {

int threads_of(const CommonOptions& options) {
  return options.threads > 0 ? options.threads : machine_threads();
}

CacheShape shape_of(const ModelOptions& model, const CommonOptions& common) {
  CacheShape shape;
  shape.storage = storage_named(model.dtype);
  shape.q_heads = model.q_heads;
  shape.kv_heads = model.kv_heads;
  shape.head_dim = model.head_dim;
  shape.page_size = model.page_size;
  shape.threads = threads_of(common);
  shape.isa = isa_named(model.isa);
  return shape;
}

Report model_report(const std::string& bench, const ModelOptions& model,
                    const CommonOptions& common) {
  Report report =
      new_report(bench, isa_name(resolve_isa(isa_named(model.isa))), threads_of(common));
  report["dtype"] = model.dtype;
  report["q_heads"] = model.q_heads;
  report["kv_heads"] = model.kv_heads;
  report["head_dim"] = model.head_dim;
  report["page"] = model.page_size;
  return report;
}

Side arithmetic_side(ThreadTeam& team, Arithmetic arithmetic) {
  run_arithmetic(team, arithmetic, 1);  // Starts the threads.
  double flops = 0;
  const double seconds =
      timed(team.size(), [&] { flops = run_arithmetic(team, arithmetic, 1); }).seconds;
  const int chunks = std::max(1, static_cast<int>(kShortestPortion / seconds));
  return {flops * chunks,
          [&team, arithmetic, chunks](int) { run_arithmetic(team, arithmetic, chunks); }};
}

int layers_for_footprint(int64_t bytes_per_layer) {
  const int64_t layers =
      std::max<int64_t>(2, (kFootprintBytes + bytes_per_layer - 1) / bytes_per_layer);
  if (layers * bytes_per_layer > kLargestPoolBytes) {
    throw std::runtime_error("the pool would be too large: a shorter context or a smaller batch");
  }
  return static_cast<int>(layers);
}

namespace {

// What `value` holds is the default.
template <typename Number>
void add_number(CLI::App& command, const char* name, Number& value,
                std::type_identity_t<Number> least, std::type_identity_t<Number> most,
                const char* description) {
  command.add_option(name, value, description)
      ->check(CLI::Range(least, most))
      ->capture_default_str();
}

void add_choice(CLI::App& command, const char* name, std::string& value,
                const std::vector<std::string>& choices, const char* description) {
  command.add_option(name, value, description)
      ->check(CLI::IsMember(choices))
      ->capture_default_str();
}

void add_isa(CLI::App& command, std::string& isa) {
  add_choice(command, "--isa", isa, {"auto", "reference", "scalar", "avx2", "avx512", "avx512bf16"},
             "Instruction set of the kernels");
}

void add_common(CLI::App& command, CommonOptions& options) {
  command.add_flag("--json", options.json, "Print one JSON object");
  add_number(command, "--reps", options.budget.repetitions, 1, 10000,
             "Undisturbed repetitions wanted");
  add_number(command, "--seconds", options.budget.seconds, 0.0, 3600.0, "Longest time to measure");
}

void add_threads(CLI::App& command, CommonOptions& options) {
  add_number(command, "--threads", options.threads, 0, 1024, "CPU threads; 0: all");
}

void add_arithmetic(CLI::App& command, std::string& dtype, std::string& isa) {
  add_choice(command, "--dtype", dtype, {"bf16", "fp16", "fp32"}, "Storage and activation type");
  add_isa(command, isa);
}

void add_page(CLI::App& command, int& page_size) {
  add_number(command, "--page", page_size, 1, 65536, "Tokens per page");
}

void add_model(CLI::App& command, ModelOptions& model) {
  add_choice(command, "--dtype", model.dtype, {"bf16", "fp16", "fp32", "int8", "fp8"},
             "Storage and activation type; int8, fp8: with bf16 activations");
  add_isa(command, model.isa);
  add_number(command, "--q-heads", model.q_heads, 1, 4096, "Query heads");
  add_number(command, "--kv-heads", model.kv_heads, 1, 4096, "KV heads");
  add_number(command, "--head-dim,--dim", model.head_dim, 1, 512, "Elements of a head");
  add_page(command, model.page_size);
}

// MLA: one latent row per token for all heads.
void add_latents(CLI::App& command, MlaOptions& options) {
  add_arithmetic(command, options.dtype, options.isa);
  add_number(command, "--heads", options.heads, 1, 4096, "Query heads");
  add_number(command, "--rank", options.rank, 1, 960, "Elements of a latent that are values too");
  add_number(command, "--rope-dim", options.rope_dim, 0, 64,
             "Elements of a latent behind them, even");
  add_page(command, options.page_size);
}

void add_tokens(CLI::App& command, const char* name, int64_t& value, const char* description) {
  add_number(command, name, value, 1, int64_t{1} << 24, description);
}

void add_count(CLI::App& command, const char* name, int& value, const char* description) {
  add_number(command, name, value, 1, 1 << 20, description);
}

// The exit code of `work`; the reason of a failure goes to stderr.
int guarded(const std::string& name, const std::function<void()>& work) {
  try {
    work();
    return 0;
  } catch (const Refusal& refusal) {
    std::fprintf(stderr, "kvcache bench %s: %s\n", name.c_str(), refusal.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "kvcache bench %s: %s\n", name.c_str(), error.what());
    return 1;
  }
}

// Benches of a GPU are chosen by --device of `bench`, before or behind the subcommand.
void add_device(CLI::App& bench, GpuOptions& options) {
  bench.fallthrough();
  bench
      .add_option("--device", options.device,
                  "cpu, or cuda[:N]: fixed shapes, all or those of the subcommand")
      ->capture_default_str();
  bench.add_option("--shapes", options.shapes, "On a GPU: only these, D1,D2,...")
      ->delimiter(',')
      ->allow_extra_args(false);
  add_number(bench, "--matmul-tflops", options.matmul_tflops, 1e-3, 1e6,
             "On a GPU: the arithmetic limit; measured elsewhere");
  bench.add_flag("--tiny", options.tiny,
                 "On a GPU: very small sizes, once; for an emulated device");
}

bool is_gpu(const GpuOptions& options) { return options.device != "cpu"; }

// Throws where an option is given that would be ignored: of the fixed shapes of a GPU, of the CPU,
// or of `bench` behind another subcommand.
void require_options(const CLI::App& bench, const CLI::App& app, const GpuOptions& options) {
  const auto is_among = [](const CLI::Option& option, const std::vector<std::string>& names) {
    return std::any_of(names.begin(), names.end(),
                       [&](const std::string& name) { return option.check_lname(name); });
  };
  const auto refuse = [](const CLI::Option& option, const char* why) {
    throw std::runtime_error(option.get_name() + ": " + why);
  };
  for (const CLI::App* part : {&bench, &app}) {
    for (const CLI::Option* option : part->get_options()) {
      if (option->count() == 0 || is_among(*option, {"json", "reps", "seconds", "device"}))
        continue;
      if (is_among(*option, {"shapes", "matmul-tflops", "tiny"})) {
        if (!is_gpu(options)) refuse(*option, "only with --device cuda[:N]");
      } else if (is_gpu(options)) {
        refuse(*option, "a GPU is measured with fixed shapes, see --shapes");
      } else if (part != &app) {
        const bool has_it = app.get_option_no_throw(option->get_name()) != nullptr;
        refuse(*option, has_it ? "belongs behind the name of the bench" : "not of this bench");
      }
    }
  }
}

void run_on_gpu(const GpuOptions& options, const std::string& name) {
  if (!has_gpu_shapes(name)) throw std::runtime_error("not on a GPU: it has no shapes there");
  const Report report = run_gpu(options, name);
  print_gpu_report(report, options.json);
  for (const Report& shape : report["shapes"]) {
    if (shape.contains("failed"))
      throw std::runtime_error(shape["id"].get<std::string>() + ": " +
                               shape["failed"].get<std::string>());
  }
}

// A subcommand that runs a bench, prints its report and sets the exit code.
template <typename Options>
struct Command {
  CLI::App* app;
  std::shared_ptr<Options> options;
};

template <typename Options>
Command<Options> add_command(CLI::App& bench, const std::string& name, const char* description,
                             Report (*run)(const Options&), const std::shared_ptr<GpuOptions>& gpu,
                             int& exit_code) {
  auto options = std::make_shared<Options>();
  CLI::App* command = bench.add_subcommand(name, description);
  command->callback([options, run, name, gpu, command, &bench, &exit_code] {
    exit_code = guarded(name, [&] {
      require_options(bench, *command, *gpu);
      if (!is_gpu(*gpu)) return print_report(run(*options), options->common.json);
      gpu->json = gpu->json || options->common.json;
      gpu->budget = options->common.budget;
      run_on_gpu(*gpu, name);
    });
  });
  add_common(*command, options->common);
  return {command, options};
}

// Attention, through caches.
void register_attention(CLI::App& bench, const std::shared_ptr<GpuOptions>& gpu, int& exit_code) {
  const auto decode = add_command(bench, "decode",
                                  "New tokens over a long context; share of reading the same pages",
                                  run_decode, gpu, exit_code);
  add_threads(*decode.app, decode.options->common);
  add_model(*decode.app, decode.options->model);
  add_tokens(*decode.app, "--context", decode.options->context, "Visible tokens of each sequence");
  add_count(*decode.app, "--batch", decode.options->batch, "Sequences");
  add_choice(*decode.app, "--placement", decode.options->placement, {"scattered", "adjacent"},
             "Where a sequence's pages lie in the pool");

  const auto prefill =
      add_command(bench, "prefill", "Many new tokens over a context; share of the arithmetic peak",
                  run_prefill, gpu, exit_code);
  add_threads(*prefill.app, prefill.options->common);
  add_model(*prefill.app, prefill.options->model);
  add_tokens(*prefill.app, "--new", prefill.options->new_tokens, "New tokens");
  add_tokens(*prefill.app, "--context", prefill.options->context, "Tokens cached before them");

  const auto mla = add_command(
      bench, "mla", "New tokens over latent rows (absorbed MLA); share of the larger floor",
      run_mla, gpu, exit_code);
  add_threads(*mla.app, mla.options->common);
  add_latents(*mla.app, *mla.options);
  add_tokens(*mla.app, "--context", mla.options->context, "Visible tokens of each sequence");
  add_count(*mla.app, "--batch", mla.options->batch, "Sequences");

  const auto linear = add_command(
      bench, "linear",
      "Linear attention: a step as a share of streaming the states, prefill of the peak",
      run_linear, gpu, exit_code);
  add_threads(*linear.app, linear.options->common);
  add_isa(*linear.app, linear.options->isa);
  add_count(*linear.app, "--heads", linear.options->heads, "Heads of v and of the state");
  add_count(*linear.app, "--k-heads", linear.options->k_heads,
            "Heads of q and k; a divisor of --heads");
  add_count(*linear.app, "--dim", linear.options->dim, "Elements of a head");
  add_count(*linear.app, "--batch", linear.options->batch, "Sequences of the second step");
  add_tokens(*linear.app, "--tokens", linear.options->tokens, "Tokens of the prefill");

  const auto cascade =
      add_command(bench, "cascade",
                  "Decode of sequences forked from one prefix: read once for all against "
                  "once each. Apart, memory bounds it, and that grows "
                  "with the kv heads; together, arithmetic does, and that grows with the "
                  "query heads: so the gain falls with the query heads per "
                  "kv head (speedup: as asked; speedup_gqa4: four per kv head)",
                  run_cascade, gpu, exit_code);
  add_threads(*cascade.app, cascade.options->common);
  add_model(*cascade.app, cascade.options->model);
  add_count(*cascade.app, "--sequences", cascade.options->sequences,
            "Sequences that share the prefix");
  add_tokens(*cascade.app, "--prefix", cascade.options->prefix, "Tokens that all share");
  add_tokens(*cascade.app, "--tail", cascade.options->tail, "Tokens behind it of each sequence");

  const auto tree = add_command(bench, "tree",
                                "A token tree in one forward, and the commit of a path, against a "
                                "plain append of as many tokens",
                                run_tree, gpu, exit_code);
  add_threads(*tree.app, tree.options->common);
  add_model(*tree.app, tree.options->model);
  add_tokens(*tree.app, "--context", tree.options->context, "Tokens cached before the tree");
  add_number(*tree.app, "--nodes", tree.options->nodes, 1, KVC_MAX_TREE_NODES, "Nodes of the tree");
  add_count(*tree.app, "--branching", tree.options->branching, "Children of a node");

  const auto window = add_command(bench, "window",
                                  "Layers with a window: decode at growing contexts and against "
                                  "all keys, prefill against all keys",
                                  run_window, gpu, exit_code);
  add_threads(*window.app, window.options->common);
  add_model(*window.app, window.options->model);
  add_tokens(*window.app, "--window", window.options->window, "Visible keys of a token");
  add_tokens(*window.app, "--context", window.options->context,
             "Tokens of the middle length; a quarter and four times of it are measured too");
  add_tokens(*window.app, "--new", window.options->new_tokens,
             "New tokens of the prefill, at the end of the context");
}

// What moves rows and pages.
void register_memory(CLI::App& bench, const std::shared_ptr<GpuOptions>& gpu, int& exit_code) {
  const auto append =
      add_command(bench, "append", "Rotate and store K, store V; share of a streaming copy",
                  run_append, gpu, exit_code);
  add_threads(*append.app, append.options->common);
  add_model(*append.app, append.options->model);
  add_tokens(*append.app, "--tokens", append.options->tokens, "New tokens");
  append.app->add_flag("--rope,!--no-rope", append.options->rope, "Rotate K")
      ->capture_default_str();

  const auto copy =
      add_command(bench, "copy", "Copy-on-write of shared pages; share of a streaming copy",
                  run_copy, gpu, exit_code);
  add_threads(*copy.app, copy.options->common);
  add_model(*copy.app, copy.options->model);
  add_count(*copy.app, "--layers", copy.options->layers, "Layers of the model");
  add_count(*copy.app, "--sequences", copy.options->sequences,
            "Forked sequences that append at once");

  const auto swap = add_command(
      bench, "swap",
      "Pages between the device pool and the host pool by their ids; share of a streaming copy",
      run_swap, gpu, exit_code);
  add_threads(*swap.app, swap.options->common);
  add_model(*swap.app, swap.options->model);
  add_count(*swap.app, "--layers", swap.options->layers, "Layers of the model");
  add_choice(*swap.app, "--layout", swap.options->layout, {"layer-first", "page-first"},
             "How the layers of a page lie in the pools");

  const auto clear = add_command(
      bench, "clear", "Clearing pages before reuse: appends with it as a ratio to appends without",
      run_clear, gpu, exit_code);
  add_threads(*clear.app, clear.options->common);
  add_model(*clear.app, clear.options->model);
  add_count(*clear.app, "--layers", clear.options->layers, "Layers of the model");
  add_tokens(*clear.app, "--tokens", clear.options->tokens, "New tokens");

  const auto files = add_command(
      bench, "files",
      "Saving and loading a sequence; share of writing and reading a plain file as durably",
      run_files, gpu, exit_code);
  add_model(*files.app, files.options->model);
  add_count(*files.app, "--layers", files.options->layers, "Layers of the model");
  add_choice(*files.app, "--layout", files.options->layout, {"layer-first", "page-first"},
             "How the layers of a page lie in the pool");
  add_tokens(*files.app, "--tokens", files.options->tokens, "Tokens of the sequence");
  files.app->add_option("--folder", files.options->folder,
                        "Where the files are written; default: the folder of temporary files");

  const auto tier = add_command(
      bench, "tier",
      "Blocks to a tier and back; share of direct I/O, or of redis-benchmark with --redis",
      run_tier, gpu, exit_code);
  add_model(*tier.app, tier.options->model);
  add_count(*tier.app, "--layers", tier.options->layers, "Layers of the model");
  add_tokens(*tier.app, "--tokens", tier.options->tokens, "Tokens of a prompt");
  add_count(*tier.app, "--prompts", tier.options->prompts, "Prompts");
  add_count(*tier.app, "--rounds", tier.options->rounds, "Rounds of limit and tier in turn");
  tier.app->add_option("--folder", tier.options->folder,
                       "Where the files lie; default: the folder of temporary files");
  tier.app->add_option("--redis", tier.options->redis, "host:port of a server to use instead");

  const auto transfer = add_command(
      bench, "transfer",
      "A sequence to another cache over UCX on TCP; share of a plain socket between the same pages",
      run_transfer, gpu, exit_code);
  add_model(*transfer.app, transfer.options->model);
  add_tokens(*transfer.app, "--tokens", transfer.options->tokens, "Tokens of the sequence");
  add_count(*transfer.app, "--rounds", transfer.options->rounds,
            "Rounds of limit and transfer in turn");
  add_number(*transfer.app, "--in-flight", transfer.options->in_flight, 1, 4096,
             "MiB on their way at once");

  const auto overlap = add_command(
      bench, "overlap", "How much of a transfer over UCX a prefill hides that is sent as computed",
      run_overlap, gpu, exit_code);
  add_model(*overlap.app, overlap.options->model);
  add_count(*overlap.app, "--layers", overlap.options->layers, "Layers of the model");
  add_tokens(*overlap.app, "--tokens", overlap.options->tokens, "Tokens of the sequence");
  add_count(*overlap.app, "--rounds", overlap.options->rounds,
            "Rounds of transfer, prefill and both in turn");
  add_number(*overlap.app, "--prefill", overlap.options->prefill, 0.1, 100.0,
             "Duration of the prefill: so many transfers");
  add_number(*overlap.app, "--in-flight", overlap.options->in_flight, 1, 4096,
             "MiB on their way at once");
}

// What the host does beside them, and the machine.
void register_host(CLI::App& bench, const std::shared_ptr<GpuOptions>& gpu, int& exit_code) {
  const auto step =
      add_command(bench, "step", "Host time and transfers of one decode step, no tensor memory",
                  run_step, gpu, exit_code);
  add_count(*step.app, "--sequences", step.options->sequences, "Sequences");
  add_tokens(*step.app, "--context", step.options->context, "Tokens of each sequence");
  add_number(*step.app, "--versus-context", step.options->versus_context, 0, int64_t{1} << 24,
             "Second length, measured in turn; 0: none");
  add_count(*step.app, "--page", step.options->page_size, "Tokens per page");
  add_count(*step.app, "--layers", step.options->layers, "Layers of the model");
  add_number(
      *step.app, "--groups", step.options->groups, 1, 16,
      "Page tables per sequence: 1, or one more than the windows that layers take turns with");
  add_number(*step.app, "--many", step.options->many, 0, 1 << 20,
             "Sequences of two more batches, of one group and of six; 0: none");
  step.app->add_flag("--aligned", step.options->aligned,
                     "All sequences enter a new page in the same step");

  const auto bookkeeping =
      add_command(bench, "bookkeeping", "Single calls on sequences and batches, no tensor memory",
                  run_bookkeeping, gpu, exit_code);
  add_count(*bookkeeping.app, "--sequences", bookkeeping.options->sequences, "Sequences");
  add_tokens(*bookkeeping.app, "--tokens", bookkeeping.options->tokens,
             "Tokens of each sequence, and of an append");
  add_page(*bookkeeping.app, bookkeeping.options->page_size);

  const auto prefix = add_command(bench, "prefix",
                                  "The prefix index on one long prompt: keys, lookup, attach, "
                                  "insert, eviction; no tensor memory",
                                  run_prefix, gpu, exit_code);
  add_tokens(*prefix.app, "--tokens", prefix.options->tokens, "Tokens of the prompt");
  add_page(*prefix.app, prefix.options->page_size);
  add_count(*prefix.app, "--layers", prefix.options->layers, "Layers of the model");

  const auto schedule =
      add_command(bench, "schedule", "Making the work list of a decode batch on the CPU",
                  run_schedule, gpu, exit_code);
  add_tokens(*schedule.app, "--context", schedule.options->context, "Tokens of each sequence");

  add_command(bench, "kernels",
              "The CPU kernels without a cache around them: each instruction set, one thread",
              run_kernels, gpu, exit_code);

  const auto info = add_command(bench, "info", "What the library finds and what the machine can do",
                                run_info, gpu, exit_code);
  add_threads(*info.app, info.options->common);
}

constexpr const char* kAccuracyHelp =
    "\nWindow k begins at token k * stride of the text and has --window tokens, or ends with the\n"
    "text. It judges the tokens that no earlier window has. So every token but the first is "
    "judged\n"
    "once, behind at least window - stride tokens where the text has so many before it. Where the\n"
    "model's texts begin with a token of their own, each window has it in front.\n"
    "Perplexity is exp of the mean of -log(probability) over the tokens that are judged.\n"
    "Each question is asked behind the handbook, and the answer is the likeliest tokens, at most\n"
    "48. It is right when it contains the expected word.\n"
    "Exit status: 0; 1: something failed; 2: a file or an option cannot be used.";

// A model's answers. Nothing is compared with a limit or repeated.
void register_accuracy(CLI::App& bench, const std::shared_ptr<GpuOptions>& gpu, int& exit_code) {
  const auto options = std::make_shared<AccuracyOptions>();
  CLI::App* command = bench.add_subcommand(
      "accuracy",
      "A model's perplexity over a text and its right answers, by the storage type of K and V");
  command->callback([options, gpu, command, &bench, &exit_code] {
    exit_code = guarded("accuracy", [&] {
      if (is_gpu(*gpu)) throw std::runtime_error("--device: models run on the CPU");
      require_options(bench, *command, *gpu);
      print_accuracy(run_accuracy(*options), options->common.json);
    });
  });
  command->footer(kAccuracyHelp);
  command->add_flag("--json", options->common.json,
                    "Print one JSON object, with the answers that were wrong");
  command->add_option("FILE", options->text, "A text in UTF-8; default: the handbook");
  command
      ->add_option("--model", options->model,
                   "A GGUF file of llama, qwen2, qwen3 or gemma3; default: the one that "
                   "`make demo` fetches")
      ->type_name("FILE");
  std::vector<std::string> dtypes;
  for (const KvDtype& dtype : kKvDtypes) dtypes.emplace_back(dtype.name);
  add_choice(*command, "--kv-dtype", options->kv_dtype, dtypes, "Storage of K and V");
  add_number(*command, "--keep-tokens", options->keep_tokens, 0, 65536,
             "Leading tokens that 8-bit storage keeps in bf16");
  add_choice(*command, "--weights", options->weights, {"bf16", "fp32"}, "Weights in memory");
  command->add_option("--template", options->chat_template, "Chat format; default: the model's")
      ->check(CLI::IsMember(chat::template_names()));
  add_number(*command, "--window", options->window, 2, int64_t{1} << 24, "Tokens of a window");
  add_number(*command, "--stride", options->stride, 0, int64_t{1} << 24,
             "Tokens from a window to the next; 0: half of the window");
  command->add_flag("--no-questions", options->no_questions, "The perplexity alone");
  add_threads(*command, options->common);
}

}  // namespace
}  // namespace kvc::bench

void register_bench(CLI::App& app, int& exit_code) {
  using namespace kvc::bench;
  CLI::App& bench =
      *app.add_subcommand("bench",
                          "Measure the library against limits taken in the same process; "
                          "without a name: the main figures, quickly");
  bench.require_subcommand(0, 1);
  auto overview = std::make_shared<CommonOptions>();
  bench.add_flag("--json", overview->json, "Print one JSON object");
  add_threads(bench, *overview);
  const auto gpu = std::make_shared<GpuOptions>();
  add_device(bench, *gpu);
  bench.callback([&bench, overview, gpu, &exit_code] {
    if (!bench.get_subcommands().empty()) return;
    exit_code = guarded(is_gpu(*gpu) ? "device" : "overview", [&] {
      require_options(bench, bench, *gpu);
      if (!is_gpu(*gpu)) return print_report(run_overview(*overview), overview->json);
      gpu->json = overview->json;
      run_on_gpu(*gpu, "");
    });
  });

  register_attention(bench, gpu, exit_code);
  register_memory(bench, gpu, exit_code);
  register_host(bench, gpu, exit_code);
  register_accuracy(bench, gpu, exit_code);
}
