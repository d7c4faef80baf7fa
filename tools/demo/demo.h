// The `kvcache demo` command.
#pragma once

#include <CLI/CLI.hpp>

// Adds the subcommand to the command line. `exit_code` is written when it runs: 0; 1 when --verify
// was asked for and the rows differ, or when something failed; 2 for files and options that cannot
// be used. Both references must outlive the parse.
void register_demo(CLI::App& app, int& exit_code);
