// A host program's thread pool, made of fresh threads per call: slow and simple.
#pragma once

#include <atomic>
#include <thread>
#include <vector>

#include "kvcache.h"

namespace kvc::test {

struct ThreadedExecutor {
  int32_t workers = 4;
  std::atomic<int64_t> tasks{0};

  kvc_executor hooks() {
    kvc_executor hooks{};
    hooks.struct_size = sizeof hooks;
    hooks.user = this;
    hooks.concurrency = [](void* user) { return static_cast<ThreadedExecutor*>(user)->workers; };
    hooks.parallel_for = [](void* user, int64_t num_tasks, void (*fn)(void*, int64_t, int32_t),
                            void* arg) {
      auto* self = static_cast<ThreadedExecutor*>(user);
      self->tasks += num_tasks;
      std::vector<std::thread> threads;
      for (int32_t worker = 0; worker < self->workers; ++worker) {
        threads.emplace_back([=] {
          // Striped from the back: unlike any order the library's own pool takes.
          for (int64_t task = num_tasks - 1 - worker; task >= 0; task -= self->workers)
            fn(arg, task, worker);
        });
      }
      for (std::thread& thread : threads) thread.join();
    };
    return hooks;
  }
};

}  // namespace kvc::test
