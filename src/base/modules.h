// Modules: shared objects beside the library that bring what not every host has (CUDA, RocksDB,
// hiredis). They are opened at run time by an absolute path, never by a search of the dynamic
// linker, and stay for the life of the process.
//
// A module exports one function, which returns its table. The parameters behind a table may change
// with every version, so nothing but a module of the library's own version will do.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

#include "kvcache.h"

namespace kvc {

// What every table begins with.
struct ModuleTable {
  uint32_t struct_size;
  const char* version;
};

// One kind of module. Instances have static storage.
struct Module {
  const char* file;    // "libkvcache_cuda.so"
  const char* symbol;  // Returns the table.
  uint32_t table_bytes;
};

// Why something failed in a module, where nothing is thrown.
struct ModuleFailure {
  kvc_status status = KVC_E_IO;
  int32_t sys_code = 0;
  char text[240] = "";

  template <typename... Args>
  void set(const char* format, Args... args) noexcept {
    std::snprintf(text, sizeof text, format, args...);
  }
};

// Null, and `why` (nullable), unless `table` is of this library's version. `name` for messages.
bool is_module_table(const Module& module, const ModuleTable* table, const std::string& name,
                     std::string* why);
// Opens a file. Null: it is not this module, and `why` (nullable) says so.
const ModuleTable* load_module(const Module& module, const char* file, std::string* why);
// Loads the module at the first call. A failure is remembered until set_module_path: null, and
// `why` (nullable) names the file looked for. Any thread.
const ModuleTable* find_module(const Module& module, std::string* why);
// The directory of modules; null: the one of the file that holds this code. Throws
// INVALID_ARGUMENT for a relative path, INVALID_STATE once a module is loaded from elsewhere.
void set_module_path(const char* path);

}  // namespace kvc
