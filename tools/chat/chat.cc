#include "tools/chat/chat.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <thread>

#include "tools/chat/session.h"
#include "tools/kv_dtypes.h"
#include "tools/llm/model.h"
#include "tools/llm/model_files.h"
#include "tools/text_file.h"

namespace {

using namespace kvc;
using namespace kvc::chat;

constexpr int kFailed = 1;
constexpr int kUsage = 2;

struct ChatOptions {
  std::string model, system_path, load_path, template_name;
  std::string kv_dtype = "fp32", weights = "bf16";
  int threads = 0;
  int64_t context = 0, max_new = 1024;
  bool may_cut = false;
  SamplerOptions sampler;
};

constexpr const char* kHelp =
    "/fork       go on in a copy of this chat\n"
    "/go N       go to branch N\n"
    "/undo       take the last turn back\n"
    "/save FILE  save this branch (--load FILE)\n"
    "/stats      tokens, pages, bytes, speed\n"
    "/quit       end; so does Ctrl-D\n"
    "Ctrl-C stops an answer. // begins a text with /.\n";

std::string system_text(const std::string& path) {
  std::string text;
  try {
    text = read_text_file(path);
  } catch (const Refusal& refusal) {
    throw Refusal(std::string("--system ") + refusal.what());
  }
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  return text;
}

// False: /quit.
bool obey(Session& session, const std::string& line) {
  const size_t space = line.find(' ');
  const std::string name = line.substr(0, space);
  const std::string argument = space == std::string::npos ? "" : line.substr(space + 1);
  if (name == "/quit" || name == "/exit") return false;
  if (name == "/help") {
    put(kHelp);
  } else if (name == "/undo") {
    session.undo();
    put("(the last turn is taken back)\n");
  } else if (name == "/fork") {
    put("(branch " + std::to_string(session.fork()) + ")\n");
  } else if (name == "/go") {
    size_t branch = 0;
    std::from_chars(argument.data(), argument.data() + argument.size(), branch);
    session.go_to(branch);
    put("(branch " + std::to_string(session.branch()) + ")\n");
  } else if (name == "/save") {
    if (argument.empty()) throw Refusal("/save needs the name of a file");
    session.save(argument);
    put("(saved " + argument + ")\n");
  } else if (name == "/stats") {
    put(session.stats());
  } else {
    throw Refusal("there is no command " + name + ": /help lists them");
  }
  return true;
}

void converse(Session& session) {
  const bool is_terminal = isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0;
  LineReader reader;
  for (;;) {
    if (is_terminal) put("> ");
    bool was_interrupted = false;
    const std::optional<std::string> line = reader.next(&was_interrupted);
    if (!line) break;
    if (was_interrupted) put("\n(/quit or Ctrl-D ends the chat)\n");
    if (line->find_first_not_of(" \t") == std::string::npos) continue;
    try {
      const bool is_command = (*line)[0] == '/' && line->compare(0, 2, "//") != 0;
      if (is_command) {
        if (!obey(session, *line)) return;
      } else {
        session.turn((*line)[0] == '/' ? std::string_view(*line).substr(1) : *line);
      }
    } catch (const Refusal& refusal) {
      put("(" + std::string(refusal.what()) + ")\n");
    } catch (const CacheError& error) {
      put("(" + std::string(error.what()) + ")\n");
    }
    if (is_terminal) put("\n");
  }
  if (is_terminal) put("\n");
}

void show_progress(double done) {
  if (isatty(STDERR_FILENO) == 0) return;
  std::fprintf(stderr, done < 1 ? "\rloading weights %3.0f %%" : "\r                     \r",
               100 * done);
}

void run_chat(const ChatOptions& options) {
  const KvDtype dtype = cpu_kv_dtype(options.kv_dtype);
  llm::Model model(options.model.empty() ? llm::default_model() : options.model);
  const llm::Shape& shape = model.shape();
  const ChatTemplate chat_template(model.file(), model.tokeniser(), options.template_name);
  const int64_t context =
      options.context > 0 ? options.context : std::min<int64_t>(shape.context, 8192);
  if (context > shape.context)
    std::fprintf(stderr, "kvcache chat: --context %lld: the model was trained for %lld tokens\n",
                 static_cast<long long>(context), static_cast<long long>(shape.context));
  const int threads = options.threads > 0
                          ? options.threads
                          : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  llm::WorkerPool pool(threads);
  llm::Network& network =
      model.load({llm::weight_type(options.weights), show_progress}, pool, llm::block_kernels());
  ChatCache cache(shape, dtype.type, context, pool, dtype.quant);

  SessionOptions session_options;
  session_options.context = context;
  session_options.max_new = options.max_new;
  session_options.may_cut = options.may_cut;
  session_options.sampler = options.sampler;
  session_options.model_id = llm::model_id(model.file()) + "/" + options.weights;
  Session session(shape, cache, network, model.tokeniser(), chat_template, session_options);
  const Interrupts interrupts;
  if (!options.load_path.empty()) {
    session.load(options.load_path);
  } else if (options.system_path.empty()) {
    session.begin({});
  } else {
    session.begin(system_text(options.system_path));
  }
  converse(session);
}

int run_command(const ChatOptions& options) {
  signal(SIGPIPE, SIG_IGN);  // A closed output is an error of writing.
  try {
    run_chat(options);
    return 0;
  } catch (const Refusal& refusal) {
    std::fprintf(stderr, "kvcache chat: %s\n", refusal.what());
    return kUsage;
  } catch (const OutputClosed&) {
    return kFailed;
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "kvcache chat: not enough memory\n");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "kvcache chat: %s\n", error.what());
  }
  return kFailed;
}

}  // namespace

void register_chat(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<ChatOptions>();
  CLI::App* chat = app.add_subcommand("chat", "Talk with a model in a GGUF file");
  chat->option_defaults()->always_capture_default();
  chat->footer(std::string("\nIn the chat:\n") + kHelp +
               "Input may be a pipe: each line is a turn.\n"
               "Exit status: 0; 1: something failed; 2: a file or an option cannot be used.");
  const auto file = [&](const char* name, std::string& path, const char* help) {
    chat->add_option(name, path, help)->type_name("FILE");
  };
  std::vector<std::string> dtypes;
  for (const KvDtype& dtype : kKvDtypes) dtypes.emplace_back(dtype.name);
  file("--model", options->model,
       "A GGUF file of llama, qwen2, qwen3 or gemma3; default: the one that `make demo` fetches");
  file("--system", options->system_path, "Text of the system prompt; default: the model's own");
  file("--load", options->load_path, "Go on with a chat that /save has written");
  chat->add_option("--template", options->template_name, "Chat format; default: the model's")
      ->check(CLI::IsMember(template_names()))
      ->type_name("NAME");
  chat->add_option("--kv-dtype", options->kv_dtype, "Storage of K and V")
      ->check(CLI::IsMember(dtypes))
      ->type_name("NAME");
  chat->add_option("--weights", options->weights, "Weights in memory: bf16 or fp32")
      ->check(CLI::IsMember({"bf16", "fp32"}))
      ->type_name("NAME");
  chat->add_option("--context", options->context,
                   "Tokens of a chat at most; 0: the model's, up to 8,192")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 24).description(""))
      ->type_name("N");
  chat->add_flag("--cut", options->may_cut, "Let the oldest turns go when the context is full");
  chat->add_option("--max-new", options->max_new, "Tokens of an answer at most")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24).description(""))
      ->type_name("N");
  chat->add_option("--temperature", options->sampler.temperature, "0: the likeliest token")
      ->check(CLI::Range(0.0, 10.0).description(""))
      ->type_name("X");
  chat->add_option("--top-p", options->sampler.top_p,
                   "Draw from the likeliest tokens that have this share")
      ->check(CLI::Range(0.0, 1.0).description(""))
      ->type_name("X");
  chat->add_option("--seed", options->sampler.seed, "Of what is drawn")->type_name("N");
  chat->add_option("--threads", options->threads, "Threads; 0: one per core")
      ->check(CLI::Range(0, 1024).description(""))
      ->type_name("N");
  chat->callback([options, &exit_code] { exit_code = run_command(*options); });
}
