#include "bench/pin.h"

#if defined(__linux__)
#include <dirent.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#endif

namespace kvc::bench {

#if defined(__linux__)

namespace {

// The processors before the first call narrowed anything.
const std::vector<int>& usable_processors() {
  static const std::vector<int> processors = [] {
    std::vector<int> found;
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) != 0) return found;
    for (int processor = 0; processor < CPU_SETSIZE; ++processor) {
      if (CPU_ISSET(processor, &set)) found.push_back(processor);
    }
    return found;
  }();
  return processors;
}

std::vector<int> other_threads() {
  std::vector<int> threads = process_threads();
  std::erase(threads, gettid());
  return threads;
}

void allow(pid_t thread, const std::vector<int>& processors) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int processor : processors) CPU_SET(processor, &set);
  sched_setaffinity(thread, sizeof set, &set);
}

}  // namespace

std::vector<int> process_threads() {
  std::vector<int> threads;
  DIR* tasks = opendir("/proc/self/task");
  if (tasks == nullptr) return threads;
  while (const dirent* entry = readdir(tasks)) {
    const int thread = std::atoi(entry->d_name);
    if (thread > 0) threads.push_back(thread);
  }
  closedir(tasks);
  std::sort(threads.begin(), threads.end());
  return threads;
}

void pin_threads(int threads) {
  const std::vector<int>& processors = usable_processors();
  const size_t places = std::min(processors.size(), static_cast<size_t>(threads));
  // One thread is left to the scheduler: it finds the quietest processor.
  if (places < 2) return;
  allow(gettid(), {processors[0]});
  // Team and library each made threads - 1 of them, one after the other: counting round and round
  // keeps each set apart.
  const std::vector<int> others = other_threads();
  for (size_t i = 0; i < others.size(); ++i) allow(others[i], {processors[1 + i % (places - 1)]});
}

void unpin_threads() {
  allow(gettid(), usable_processors());
  for (const int thread : other_threads()) allow(thread, usable_processors());
}

#else

std::vector<int> process_threads() { return {}; }
void pin_threads(int) {}
void unpin_threads() {}

#endif

}  // namespace kvc::bench
