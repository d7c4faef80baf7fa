// The `kvcache replay` command.
#pragma once

#include <CLI/CLI.hpp>

// Adds the subcommand to the command line. `exit_code` is written when it runs: 0; 1 when something
// failed; 2 for a trace, files and options that cannot be used. Both references must outlive the
// parse.
void register_replay(CLI::App& app, int& exit_code);
