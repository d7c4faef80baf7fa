// The `kvcache bench` command: every figure is a ratio to a limit measured in the same process.
#pragma once

#include <CLI/CLI.hpp>

// Adds the subcommand `bench` with decode, prefill, append, copy, step and info to the command
// line. `exit_code` is written when one of them runs: 0, or 1 when it could not measure (the reason
// goes to stderr). Both references must outlive the parse.
void register_bench(CLI::App& app, int& exit_code);
