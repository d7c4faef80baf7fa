#include "tools/modules.h"

#include <filesystem>
#include <system_error>

#include "kvcache.h"

void find_modules() {
  std::error_code error;
  const std::filesystem::path folder =
      std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  // Installed: the directory of libraries beside that of commands; built: the one above.
  for (const char* place : {"", KVC_TOOL_LIBRARIES, ".."}) {
    const std::filesystem::path candidate = (folder / place).lexically_normal();
    const auto holds = [&](const char* name) {
      return std::filesystem::exists(candidate / name, error);
    };
    if (!holds("libkvcache_cuda.so") && !holds("libkvcache_tier_rocksdb.so") &&
        !holds("libkvcache_tier_redis.so") && !holds("libkvcache_transport_ucx.so"))
      continue;
    if (*place != '\0') (void)kvc_module_path_set(candidate.c_str(), nullptr);
    return;
  }
}
