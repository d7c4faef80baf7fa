// The last act: row 3 saves the system prompt, and a new process loads it and answers.
#pragma once

#include <span>
#include <string>

#include "tools/demo/demo_run.h"
#include "tools/demo/paged_store.h"

namespace kvc::demo {

// A state file: at `path`, or when that is empty in the folder for temporary files, gone with the
// object.
class SavedPrompt {
 public:
  explicit SavedPrompt(const std::string& path);
  ~SavedPrompt();
  SavedPrompt(const SavedPrompt&) = delete;
  SavedPrompt& operator=(const SavedPrompt&) = delete;

  void write(const PagedStore& store, int sequence);
  // Starts this program anew with the same command line, to answer conversation 1 from the file.
  Restart restart(std::span<const Token> expected);

 private:
  std::string path_;
  bool is_temporary_;
  Restart result_;
};

// What the new process says: one line that restart() reads.
void print_answer(const ServeResult& result, double load_seconds);

}  // namespace kvc::demo
