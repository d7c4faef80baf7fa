// Where the back end comes from: libkvcache_cuda.so in the directory of modules, never by a search
// of the dynamic linker.
#include <dlfcn.h>
#include <limits.h>
#include <sys/auxv.h>
#include <unistd.h>

#include <atomic>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <mutex>
#include <string>

#include "src/base/error.h"
#include "src/device/gpu.h"

#ifndef KVC_LIBRARY_VERSION
#error "KVC_LIBRARY_VERSION comes from the build"
#endif

namespace kvc {
namespace {

constexpr char kLibrary[] = "libkvcache_cuda.so";
constexpr char kSymbol[] = "kvc_cuda_backend";

std::mutex loading;       // guards the next two
std::string module_path;  // Set by kvc_module_path_set; empty: the library's own directory.
// Why the last search found nothing; empty: none has failed since the path was set
std::string failed_search;
std::atomic<const cuda::BackendTable*> loaded{nullptr};
std::atomic<const cuda::BackendTable*> installed{nullptr};

void say(std::string* why, const std::string& text) {
  if (why != nullptr) *why = text;
}

std::string last_dlerror() {
  const char* text = dlerror();
  return text != nullptr ? text : "unknown error of the dynamic linker";
}

// The table is plain functions whose parameters may change with every version, so nothing but the
// same version will do.
bool is_ours(const cuda::BackendTable* table, const std::string& name, std::string* why) {
  if (table == nullptr) {
    say(why, name + " has no table of functions");
    return false;
  }
  if (table->struct_size != sizeof(cuda::BackendTable)) {
    say(why, name + " has a table of " + std::to_string(table->struct_size) +
                 " bytes, this library one of " + std::to_string(sizeof(cuda::BackendTable)));
    return false;
  }
  if (table->version == nullptr || std::strcmp(table->version, KVC_LIBRARY_VERSION) != 0) {
    say(why, name + " is of version " + (table->version != nullptr ? table->version : "(none)") +
                 ", this library of " + KVC_LIBRARY_VERSION);
    return false;
  }
  return true;
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
  const auto* code = reinterpret_cast<const void*>(&load_backend);
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

}  // namespace

const cuda::BackendTable* load_backend(const char* file, std::string* why) {
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
  const auto entry = reinterpret_cast<const cuda::BackendTable* (*)()>(dlsym(library, kSymbol));
  const cuda::BackendTable* table = nullptr;
  if (entry == nullptr) {
    say(why, std::string(file) + " is no back end of kvcache: " + last_dlerror());
  } else if (const cuda::BackendTable* found = entry(); is_ours(found, file, why)) {
    table = found;
  }
  // A library that serves stays for the life of the process
  if (table == nullptr) dlclose(library);
  return table;
}

const cuda::BackendTable* find_backend(std::string* why) {
  if (const auto* table = installed.load(std::memory_order_acquire)) return table;
  if (const auto* table = loaded.load(std::memory_order_acquire)) return table;
  const std::lock_guard lock(loading);
  if (const auto* table = loaded.load(std::memory_order_relaxed)) return table;
  if (failed_search.empty()) {
    const std::string directory = module_path.empty() ? own_directory() : module_path + "/";
    std::string reason = std::string(kLibrary) +
                         " is looked for beside the library, whose own directory is not known here";
    const cuda::BackendTable* table = nullptr;
    if (!directory.empty()) table = load_backend((directory + kLibrary).c_str(), &reason);
    if (table != nullptr) {
      loaded.store(table, std::memory_order_release);
      return table;
    }
    failed_search = reason + "; kvc_module_path_set names another directory";
  }
  say(why, failed_search);
  return nullptr;
}

void set_module_path(const char* path) {
  if (path != nullptr && path[0] != '/')
    fail(KVC_E_INVALID_ARGUMENT, "path = \"%s\", expected the absolute path of a directory", path);
  if (path != nullptr && std::strchr(path, '$') != nullptr)
    fail(KVC_E_INVALID_ARGUMENT,
         "path = \"%s\" holds a '$', which the dynamic linker would replace", path);
  std::string wanted = path != nullptr ? path : "";
  const std::lock_guard lock(loading);
  if (const auto* table = loaded.load(std::memory_order_relaxed)) {
    if (wanted == module_path) return;
    Dl_info module{};
    const bool is_known = dladdr(table, &module) != 0 && module.dli_fname != nullptr;
    fail(KVC_E_INVALID_STATE, "path = \"%s\" comes too late: %s is loaded", wanted.c_str(),
         is_known ? module.dli_fname : kLibrary);
  }
  module_path = std::move(wanted);
  failed_search.clear();
}

const cuda::BackendTable& require_backend() {
  std::string why;
  const cuda::BackendTable* table = find_backend(&why);
  if (table == nullptr) fail(KVC_E_UNSUPPORTED, "no CUDA back end: %s", why.c_str());
  return *table;
}

bool install_backend(const cuda::BackendTable* table, std::string* why) {
  if (table != nullptr && !is_ours(table, "the installed back end", why)) return false;
  installed.store(table, std::memory_order_release);
  return true;
}

}  // namespace kvc
