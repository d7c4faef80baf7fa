// Where the back end comes from: libkvcache_cuda.so beside the code that asks for it.
#include <dlfcn.h>
#include <limits.h>
#include <sys/auxv.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <string>

#include "src/base/device.h"
#include "src/base/error.h"

#ifndef KVC_LIBRARY_VERSION
#error "KVC_LIBRARY_VERSION comes from the build"
#endif

namespace kvc {
namespace {

constexpr char kLibrary[] = "libkvcache_cuda.so";
constexpr char kSymbol[] = "kvc_cuda_backend";

std::mutex loading;
std::atomic<const cuda::BackendTable*> loaded{nullptr};
std::atomic<const cuda::BackendTable*> installed{nullptr};

void say(std::string* why, const std::string& text) {
  if (why != nullptr) *why = text;
}

std::string last_dlerror() {
  const char* text = dlerror();
  return text != nullptr ? text : "unknown error of the dynamic linker";
}

// The table is plain functions whose parameters may change with every version, so nothing but the same version will do.
bool is_ours(const cuda::BackendTable* table, const std::string& name, std::string* why) {
  if (table == nullptr) {
    say(why, name + " has no table of functions");
    return false;
  }
  if (table->struct_size != sizeof(cuda::BackendTable)) {
    say(why, name + " has a table of " + std::to_string(table->struct_size) + " bytes, this library one of " +
                 std::to_string(sizeof(cuda::BackendTable)));
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

// Of the file that holds this code, with the last slash; empty: unknown. For a program dladdr knows argv[0] only, which need not be its path.
std::string own_directory() {
  Dl_info own{}, program{};
  if (dladdr(reinterpret_cast<const void*>(&load_backend), &own) == 0 || own.dli_fname == nullptr) return {};
  const auto* header_of_program = reinterpret_cast<const void*>(getauxval(AT_PHDR));
  if (dladdr(header_of_program, &program) != 0 && program.dli_fbase == own.dli_fbase) {
    char path[PATH_MAX];
    const ssize_t length = readlink("/proc/self/exe", path, sizeof(path));
    return length > 0 ? directory_of(std::string(path, static_cast<size_t>(length))) : std::string();
  }
  return directory_of(own.dli_fname);
}

}  // namespace

const cuda::BackendTable* load_backend(const char* file, std::string* why) {
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
  if (table == nullptr) dlclose(library);  // a library that serves stays for the life of the process
  return table;
}

const cuda::BackendTable* find_backend(std::string* why) {
  if (const auto* table = installed.load(std::memory_order_acquire)) return table;
  if (const auto* table = loaded.load(std::memory_order_acquire)) return table;
  const std::lock_guard lock(loading);
  if (const auto* table = loaded.load(std::memory_order_relaxed)) return table;
  const std::string directory = own_directory();
  const std::string beside = directory + kLibrary;
  // A file beside us is the one that belongs to us: where it does not load, another one would only hide that.
  const bool is_beside = !directory.empty() && access(beside.c_str(), F_OK) == 0;
  const cuda::BackendTable* table = load_backend(is_beside ? beside.c_str() : kLibrary, why);
  loaded.store(table, std::memory_order_release);
  return table;
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
