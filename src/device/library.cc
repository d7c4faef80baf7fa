// The CUDA back end, a module.
#include <atomic>
#include <cstddef>
#include <string>

#include "src/base/error.h"
#include "src/base/modules.h"
#include "src/device/gpu.h"

namespace kvc {
namespace {

constexpr Module kBackend{"libkvcache_cuda.so", "kvc_cuda_backend", sizeof(cuda::BackendTable)};
static_assert(offsetof(cuda::BackendTable, struct_size) == offsetof(ModuleTable, struct_size) &&
              offsetof(cuda::BackendTable, version) == offsetof(ModuleTable, version));

std::atomic<const cuda::BackendTable*> loaded{nullptr};  // Found without the lock of find_module().
std::atomic<const cuda::BackendTable*> installed{nullptr};

const cuda::BackendTable* as_backend(const ModuleTable* table) {
  return reinterpret_cast<const cuda::BackendTable*>(table);
}

}  // namespace

const cuda::BackendTable* load_backend(const char* file, std::string* why) {
  return as_backend(load_module(kBackend, file, why));
}

const cuda::BackendTable* find_backend(std::string* why) {
  if (const auto* table = installed.load(std::memory_order_acquire)) return table;
  if (const auto* table = loaded.load(std::memory_order_acquire)) return table;
  const cuda::BackendTable* table = as_backend(find_module(kBackend, why));
  if (table != nullptr) loaded.store(table, std::memory_order_release);
  return table;
}

const cuda::BackendTable& require_backend() {
  std::string why;
  const cuda::BackendTable* table = find_backend(&why);
  if (table == nullptr) fail(KVC_E_UNSUPPORTED, "no CUDA back end: %s", why.c_str());
  return *table;
}

bool install_backend(const cuda::BackendTable* table, std::string* why) {
  const auto* head = reinterpret_cast<const ModuleTable*>(table);
  if (table != nullptr && !is_module_table(kBackend, head, "the installed back end", why))
    return false;
  installed.store(table, std::memory_order_release);
  return true;
}

}  // namespace kvc
