// The demo as a program of its own, which `make demo` runs: it compiles in two thirds of
// the time of the `kvcache` command, and takes the same options.
#include <CLI/CLI.hpp>

#include "kvcache.h"
#include "tools/demo/demo.h"

int main(int argc, char** argv) {
  int exit_code = 0;
  CLI::App app("libkvcache's demo; `make` builds the whole `kvcache` command", "kvcache_demo");
  app.set_version_flag("--version", std::string("kvcache ") + kvc_version_string());
  app.require_subcommand(1);
  app.get_formatter()->column_width(30);
  register_demo(app, exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    constexpr int kUsage = 2;
    return app.exit(error) == 0 ? 0 : kUsage;
  }
  return exit_code;
}
