// The `kvcache bench` command: figures are ratios to limits measured in the same process.
#pragma once

#include <CLI/CLI.hpp>

// Adds the subcommand `bench`, which has a subcommand for each bench, to the command line.
// `exit_code` is written when one of them runs: 0; 1: it could not measure; 2: a file or an option
// cannot be used. The reason goes to stderr. Both references must outlive the parse.
void register_bench(CLI::App& app, int& exit_code);
