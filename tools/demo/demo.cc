#include "tools/demo/demo.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <new>
#include <vector>

#include "tools/demo/report.h"
#include "tools/demo/terminal.h"
#include "tools/isa_names.h"
#include "tools/llm/model_files.h"

namespace {

using namespace kvc::demo;

constexpr int kFailed = 1;
constexpr int kUsage = 2;

// Names on the command line; their places are the values.
const std::vector<std::string> kIsas(kvc::kIsaNames.begin(), kvc::kIsaNames.end());

int place_of(const std::vector<std::string>& names, const std::string& name) {
  return static_cast<int>(std::find(names.begin(), names.end(), name) - names.begin());
}

// A range that --help need not spell out; a value outside it is answered with the range.
template <class Number>
CLI::Validator between(Number low, Number high) {
  return CLI::Range(low, high).description("");
}

struct CommandLine {
  DemoOptions options;
  std::string dtype = "fp32", isa = "auto", weights = "bf16";
  int32_t keep_tokens = 0;
  bool random = false;
  const CLI::Option *temperature = nullptr, *max_new = nullptr;
};

// The model that the command line asks for.
void choose_model(CommandLine& line) {
  DemoOptions& options = line.options;
  if (options.quick || line.random) {
    options.model_path.clear();
  } else if (options.model_path.empty()) {
    options.model_path = kvc::llm::find_default_model();
  }
  if (!options.model_path.empty()) {
    constexpr int64_t kShortAnswer = 32;
    if (line.temperature->count() == 0) options.temperature = 0;
    if (line.max_new->count() == 0) options.workload.max_new = kShortAnswer;
  }
  options.weights = kvc::llm::weight_type(line.weights);
}

// Opened before the run, so that a path that cannot be written is known at once.
std::ofstream open_output(const std::string& path, const char* option) {
  std::ofstream file;
  if (path.empty()) return file;
  file.open(path, std::ios::binary);
  if (!file)
    throw UsageError(std::string(option) + ": cannot write '" + path +
                     "': " + std::strerror(errno));
  return file;
}

void write_output(std::ofstream& file, const std::string& path, const std::string& content) {
  if (!file.is_open()) return;
  file << content;
  file.close();
  if (!file) throw std::runtime_error("cannot write '" + path + "'");
  std::printf("\n  wrote %s\n", path.c_str());
}

int run_command(CommandLine& line) {
  try {
    line.options.isa = place_of(kIsas, line.isa);
    line.options.dtype = kvc::cpu_kv_dtype(line.dtype, line.keep_tokens);
    choose_model(line);
    const DemoOptions& options = line.options;
    if (!options.state_path.empty()) {
      answer_from_state(options);
      return 0;
    }
    std::ofstream json = open_output(options.json_path, "--json");
    std::ofstream svg = open_output(options.svg_path, "--svg");
    const DemoRun run = run_demo(options);
    std::fputs(text_report(run, colours_on_stdout()).c_str(), stdout);
    write_output(json, options.json_path, json_report(run));
    write_output(svg, options.svg_path, svg_report(run));
    if (options.verify && !run.verified) {
      std::fprintf(stderr, "kvcache demo: --verify: %s\n", run.verdict.c_str());
      return kFailed;
    }
    return 0;
  } catch (const UsageError& error) {
    std::fprintf(stderr, "kvcache demo: %s\n", error.what());
    return kUsage;
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "kvcache demo: not enough memory\n");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "kvcache demo: %s\n", error.what());
  }
  return kFailed;
}

}  // namespace

void register_demo(CLI::App& app, int& exit_code) {
  auto line = std::make_shared<CommandLine>();
  DemoOptions& options = line->options;
  CLI::App* demo = app.add_subcommand(
      "demo", "Serve conversations three ways: contiguous, paged, paged and shared");
  demo->option_defaults()->always_capture_default();
  demo->footer(
      "\nThe conversations share a system prompt and go through a language model, or one with "
      "random "
      "weights, by\n"
      "continuous batching. Row 1 keeps a contiguous cache per sequence, row 2 pages, row 3 "
      "computes the "
      "system prompt "
      "once and forks.\n"
      "Exit status: 0; 1: --verify found a difference, or something failed; 2: a file or an option "
      "cannot be "
      "used.");

  const auto file = [&](const char* name, std::string& path, const char* help, const char* group) {
    demo->add_option(name, path, help)->type_name("FILE")->group(group);
  };
  const auto number = [&](const char* name, auto& value, auto low, auto high, const char* help,
                          const char* group) {
    return demo->add_option(name, value, help)
        ->check(between(low, high))
        ->type_name("N")
        ->group(group);
  };
  const auto choice = [&](const char* name, std::string& value,
                          const std::vector<std::string>& names, const char* help,
                          const char* group) {
    demo->add_option(name, value, help)
        ->check(CLI::IsMember(names).description(""))
        ->type_name("NAME")
        ->group(group);
  };

  file("--model", options.model_path,
       "A GGUF file of llama, qwen2, qwen3 or gemma3; default: the one that `make demo` fetches",
       "Work");
  demo->add_flag("--random", line->random, "Random weights, though there is a model")
      ->group("Work");
  choice("--weights", line->weights, {"bf16", "fp32"}, "Weights in memory: bf16 or fp32",
         "Machine");
  file("--system", options.workload.system_path,
       "Text of the system prompt, instead of the one that ships", "Work");
  file("--users", options.workload.users_path,
       "User turns: one per line, or several lines each, blank lines between; `| word` at the end "
       "is "
       "what a right answer contains",
       "Work");
  number("--conversations", options.workload.conversations, 1, 512,
         "Conversations; turns repeat when they run out", "Work");
  line->max_new =
      number("--max-new", options.workload.max_new, 1, 4096,
             "Tokens of an answer at most; random weights: of the longest, others get at least 5/8 "
             "of it; default with a model: 32",
             "Work");
  line->temperature =
      demo->add_option("--temperature", options.temperature,
                       "Of the sampling; 0 takes the likeliest token; default with a model: 0")
          ->check(between(0.0, 10.0))
          ->type_name("N")
          ->group("Work");
  demo->add_option("--seed", options.workload.seed, "Of weights, arrivals and answers")
      ->type_name("N")
      ->group("Work");

  demo->add_option("--kv-dtype,--dtype", line->dtype,
                   "Storage of rows 2 and 3: fp32, fp16, bf16, int8, fp8 or fp8_e5m2")
      ->type_name("NAME")
      ->group("Cache");
  number("--keep-tokens", line->keep_tokens, 0, 65536,
         "Leading tokens of a request that 8-bit storage keeps in bf16", "Cache");
  number("--page-size", options.page_size, 1, 4096, "Tokens of a page", "Cache");
  number("--tokens-per-step", options.tokens_per_step, 1, 65536,
         "Most tokens of one step, decodes and prompt chunks", "Cache");
  number("--max-length", options.max_length, 0, 1 << 20,
         "Tokens that row 1 reserves for each; 0: the longest request, up to a multiple of 512",
         "Cache");
  number("--memory", options.memory_mib, 0, 1 << 20,
         "MiB for the pages of rows 2 and 3; 0: what row 1 may reserve", "Cache");

  number("--threads", options.threads, 0, 1024, "Threads; 0: one per core", "Machine");
  choice("--isa", line->isa, kIsas,
         "Instruction set: auto, reference, scalar, avx2, avx512, avx512_bf16", "Machine");
  demo->add_flag("--quick", options.quick, "A model of two layers: done in a few seconds")
      ->group("Machine");

  demo->add_flag(
          "--verify", options.verify,
          "Fail unless all rows agree token for token (other storage than fp32: rows 2 and 3)")
      ->group("Output");
  demo->add_flag("--verbose", options.verbose, "Print some answers of row 3")->group("Output");
  file("--json", options.json_path, "Write all figures", "Output");
  // The new process of the last act.
  demo->add_option("--from-state", options.state_path)->group("");
  file("--save", options.save_path,
       "Keep the state file of the system prompt, for `kvcache inspect`", "Output");
  file("--svg", options.svg_path, "Write a figure of memory, prompt tokens and pages", "Output");

  demo->callback([line, &exit_code] { exit_code = run_command(*line); });
}
