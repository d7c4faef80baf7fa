// The `kvcache chat` command.
#pragma once

#include <CLI/CLI.hpp>

// Adds the subcommand to the command line. `exit_code` is written when it runs: 0; 1: something
// failed, or the output was closed; 2: a file or an option that cannot be used. Both references
// outlive the parse.
void register_chat(CLI::App& app, int& exit_code);
