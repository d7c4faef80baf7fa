#include "src/base/modules.h"

#include <dlfcn.h>
#include <limits.h>
#include <sys/auxv.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <mutex>
#include <vector>

#include "src/base/error.h"
#include "src/base/process_mutex.h"

#ifndef KVC_LIBRARY_VERSION
#error "KVC_LIBRARY_VERSION comes from the build"
#endif

namespace kvc {
namespace {

// What a search has found: a table, or why there is none.
struct Search {
  const Module* module;
  const ModuleTable* table;
  std::string failure;
};

// Never destroyed: a thread may look for a module while the process ends.
struct Registry {
  ProcessMutex searching{AtFork::kForgets};  // Held while a module is loaded, which takes long.
  ProcessMutex mutex{AtFork::kWaits};        // Guards what follows.
  std::string path;  // Set by set_module_path; empty: the library's own directory.
  std::vector<Search> searches;
};

Registry& registry() noexcept {
  static constinit ProcessOnce<Registry*> made;
  return *made.get([] { return new Registry; });
}

void say(std::string* why, const std::string& text) {
  if (why != nullptr) *why = text;
}

std::string last_dlerror() {
  const char* text = dlerror();
  return text != nullptr ? text : "unknown error of the dynamic linker";
}

std::string directory_of(const std::string& file) {
  const size_t slash = file.rfind('/');
  return slash == std::string::npos ? std::string() : file.substr(0, slash + 1);
}

// The file that is mapped at `address`, as the kernel names it: absolute. Empty: unknown.
std::string mapped_file(const void* address) {
  std::ifstream maps("/proc/self/maps");
  const auto wanted = reinterpret_cast<uintptr_t>(address);
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR, &begin, &end) != 2) continue;
    const size_t path = line.find('/');
    if (wanted >= begin && wanted < end)
      return path == std::string::npos ? std::string() : line.substr(path);
  }
  return {};
}

// Of the file that holds this code, with the last slash; empty: unknown. For a program dladdr knows
// argv[0] only, which anybody may choose. A library that was loaded by a relative path has lost its
// directory when the working directory changes: the kernel still knows it.
std::string own_directory() {
  const auto* code = reinterpret_cast<const void*>(&find_module);
  Dl_info own{}, program{};
  if (dladdr(code, &own) == 0 || own.dli_fname == nullptr) return {};
  const auto* header_of_program = reinterpret_cast<const void*>(getauxval(AT_PHDR));
  if (dladdr(header_of_program, &program) != 0 && program.dli_fbase == own.dli_fbase) {
    char path[PATH_MAX];
    const ssize_t length = readlink("/proc/self/exe", path, sizeof(path));
    return length > 0 ? directory_of(std::string(path, static_cast<size_t>(length)))
                      : std::string();
  }
  return directory_of(own.dli_fname[0] == '/' ? std::string(own.dli_fname) : mapped_file(code));
}

Search search(const Module& module, const std::string& path) {
  const std::string directory = path.empty() ? own_directory() : path + "/";
  std::string why = std::string(module.file) +
                    " is looked for beside the library, whose own directory is not known here";
  const ModuleTable* table = nullptr;
  if (!directory.empty()) table = load_module(module, (directory + module.file).c_str(), &why);
  return {&module, table, why + "; kvc_module_path_set names another directory"};
}

}  // namespace

bool is_module_table(const Module& module, const ModuleTable* table, const std::string& name,
                     std::string* why) {
  if (table == nullptr) {
    say(why, name + " has no table of functions");
    return false;
  }
  if (table->struct_size != module.table_bytes) {
    say(why, name + " has a table of " + std::to_string(table->struct_size) +
                 " bytes, this library one of " + std::to_string(module.table_bytes));
    return false;
  }
  if (table->version == nullptr || std::strcmp(table->version, KVC_LIBRARY_VERSION) != 0) {
    say(why, name + " is of version " + (table->version != nullptr ? table->version : "(none)") +
                 ", this library of " + KVC_LIBRARY_VERSION);
    return false;
  }
  return true;
}

const ModuleTable* load_module(const Module& module, const char* file, std::string* why) {
  if (file[0] != '/' || std::strchr(file, '$') != nullptr) {
    say(why,
        std::string(file) + " is not loaded: a module is named by an absolute path without '$'");
    return nullptr;
  }
  void* library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    say(why, last_dlerror());
    return nullptr;
  }
  const auto entry = reinterpret_cast<const ModuleTable* (*)()>(dlsym(library, module.symbol));
  const ModuleTable* table = nullptr;
  if (entry == nullptr) {
    say(why, std::string(file) + " is no such module of kvcache: " + last_dlerror());
  } else if (const ModuleTable* found = entry(); is_module_table(module, found, file, why)) {
    table = found;
  }
  // A library that serves stays for the life of the process.
  if (table == nullptr) dlclose(library);
  return table;
}

const ModuleTable* find_module(const Module& module, std::string* why) {
  Registry& known = registry();
  const std::lock_guard alone(known.searching);
  std::string path;
  {
    const std::lock_guard lock(known.mutex);
    for (const Search& done : known.searches) {
      if (done.module != &module) continue;
      if (done.table == nullptr) say(why, done.failure);
      return done.table;
    }
    path = known.path;
  }
  Search made = search(module, path);
  const std::lock_guard lock(known.mutex);
  const Search& done = known.searches.emplace_back(std::move(made));
  if (done.table == nullptr) say(why, done.failure);
  return done.table;
}

void set_module_path(const char* path) {
  if (path != nullptr && path[0] != '/')
    fail(KVC_E_INVALID_ARGUMENT, "path = \"%s\", expected the absolute path of a directory", path);
  if (path != nullptr && std::strchr(path, '$') != nullptr)
    fail(KVC_E_INVALID_ARGUMENT,
         "path = \"%s\" holds a '$', which the dynamic linker would replace", path);
  std::string wanted = path != nullptr ? path : "";
  Registry& known = registry();
  const std::lock_guard alone(known.searching);
  const std::lock_guard lock(known.mutex);
  for (const Search& done : known.searches) {
    if (done.table == nullptr) continue;
    if (wanted == known.path) return;
    Dl_info module{};
    const bool is_known = dladdr(done.table, &module) != 0 && module.dli_fname != nullptr;
    fail(KVC_E_INVALID_STATE, "path = \"%s\" comes too late: %s is loaded", wanted.c_str(),
         is_known ? module.dli_fname : done.module->file);
  }
  known.path = std::move(wanted);
  known.searches.clear();
}

}  // namespace kvc
