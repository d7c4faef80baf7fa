// The `kvcache inspect` command.
#pragma once

#include <CLI/CLI.hpp>

// Adds the subcommand to the command line. `exit_code` is written when it runs. Both references
// must outlive the parse.
void register_inspect(CLI::App& app, int& exit_code);
