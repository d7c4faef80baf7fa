#include "tools/demo/restart.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "tools/demo/terminal.h"

extern char** environ;

namespace kvc::demo {
namespace {

constexpr char kThisProgram[] = "/proc/self/exe";

std::vector<std::string> own_arguments() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> arguments;
  for (std::string argument; std::getline(file, argument, '\0');) arguments.push_back(argument);
  return arguments;
}

// What the program prints to its standard output. Throws std::runtime_error.
std::string output_of(std::vector<std::string> arguments) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error(std::strerror(errno));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  pid_t child = 0;
  const int failure = posix_spawn(&child, kThisProgram, &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  std::string output;
  if (failure == 0) {
    char part[4096];
    for (ssize_t count; (count = read(ends[0], part, sizeof part)) > 0;)
      output.append(part, static_cast<size_t>(count));
  }
  close(ends[0]);
  if (failure != 0) throw std::runtime_error(std::strerror(failure));
  int status = 0;
  waitpid(child, &status, 0);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    throw std::runtime_error("the new process failed");
  return output;
}

}  // namespace

SavedPrompt::SavedPrompt(const std::string& path) : path_(path), is_temporary_(path.empty()) {
  if (is_temporary_)
    path_ = std::filesystem::temp_directory_path() /
            ("kvcache-demo-" + std::to_string(getpid()) + ".kvc");
}

SavedPrompt::~SavedPrompt() {
  if (!is_temporary_) return;
  std::error_code ignored;
  std::filesystem::remove(path_, ignored);
}

void SavedPrompt::write(const PagedStore& store, int sequence) {
  const auto start = std::chrono::steady_clock::now();
  result_.file_bytes = store.save(sequence, path_);
  result_.save_seconds = seconds_since(start);
}

Restart SavedPrompt::restart(std::span<const Token> expected) {
  try {
    std::vector<std::string> arguments = own_arguments();
    arguments.insert(arguments.end(), {"--from-state", path_});
    const auto answer = nlohmann::json::parse(output_of(arguments));
    result_.load_seconds = answer["load_seconds"];
    result_.prompt_tokens = answer["prompt_tokens"];
    const auto tokens = answer["tokens"].get<std::vector<Token>>();
    const auto differs =
        std::mismatch(tokens.begin(), tokens.end(), expected.begin(), expected.end());
    result_.same_tokens = differs.first - tokens.begin();
    result_.answer_tokens = static_cast<int64_t>(std::max(tokens.size(), expected.size()));
  } catch (const std::exception& error) {
    result_.problem = error.what();
  }
  return result_;
}

std::string Restart::verdict() const {
  if (!problem.empty()) return problem;
  return format("generated token %lld of conversation 1 differs",
                static_cast<long long>(same_tokens + 1));
}

void print_answer(const ServeResult& result, double load_seconds) {
  const nlohmann::json line = {{"load_seconds", load_seconds},
                               {"prompt_tokens", result.prompt_tokens},
                               {"tokens", result.answers.front().tokens}};
  std::printf("%s\n", line.dump().c_str());
}

}  // namespace kvc::demo
