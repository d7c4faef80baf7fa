// The `kvcache` command: what a user runs first.
#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "kvcache.h"
#include "src/base/close_name.h"
#include "tools/chat/chat.h"
#include "tools/demo/demo.h"
#include "tools/info.h"
#include "tools/inspect.h"
#include "tools/modules.h"
#include "tools/plan/plan.h"
#include "tools/replay/command.h"

#if __has_include("bench/bench.h")
#include "bench/bench.h"
#define KVC_TOOL_HAS_BENCH 1
#endif

namespace {

// "kvcache: did you mean 'plan'?" for a command or an option that is not known; empty where none is
// close.
std::string suggestion(const CLI::App& app, int argc, char** argv) {
  const CLI::App* command = &app;
  for (int i = 1; i < argc; ++i) {
    const std::string given(argv[i]);
    const std::string word = given.substr(0, given.find('='));
    std::vector<std::string> names;
    if (word.rfind("--", 0) == 0) {
      if (command->get_option_no_throw(word) != nullptr) continue;
      for (const CLI::Option* option : command->get_options()) {
        for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
      }
    } else if (command == &app) {
      for (const CLI::App* one : app.get_subcommands({})) {
        if (one->get_name() == word) command = one;
        names.push_back(one->get_name());
      }
      if (command != &app) continue;
    }
    const std::string close = kvc::close_name(word, names);
    if (!close.empty()) return "kvcache: did you mean '" + close + "' for '" + word + "'?\n";
  }
  return "";
}

// The exit code of a command whose output arrived; a full disk or a closed output is a failure.
int written(int exit_code) {
  const bool is_flushed = std::fflush(stdout) == 0;
  const int error_number = errno;
  if (is_flushed && std::ferror(stdout) == 0) return exit_code;
  std::fprintf(stderr, "kvcache: cannot write the output%s%s\n", is_flushed ? "" : ": ",
               is_flushed ? "" : std::strerror(error_number));
  return exit_code == 0 ? 1 : exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  find_modules();
  int exit_code = 0;
  CLI::App app("libkvcache: the KV cache of LLM serving as a C library", "kvcache");
  app.set_version_flag("--version", std::string("kvcache ") + kvc_version_string());
  app.require_subcommand(1);
  app.get_formatter()->column_width(30);
  register_chat(app, exit_code);
  register_demo(app, exit_code);
  register_info(app, exit_code);
  register_inspect(app, exit_code);
  register_plan(app, exit_code);
  register_replay(app, exit_code);
#ifdef KVC_TOOL_HAS_BENCH
  register_bench(app, exit_code);
#endif
  app.footer("`kvcache COMMAND --help` lists a command's options.");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    constexpr int kUsage = 2;
    if (argc == 1) {
      std::fputs(app.help().c_str(), stderr);
      return kUsage;
    }
    const int code = app.exit(error);
    if (code != 0) std::fputs(suggestion(app, argc, argv).c_str(), stderr);
    return written(code == 0 ? 0 : kUsage);
  }
  return written(exit_code);
}
