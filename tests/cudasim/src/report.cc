#include "report.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <elf.h>
#include <signal.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "cudasim/launch.h"
#include "device_memory.h"
#include "hopper_state.h"
#include "sanitizers.h"
#include "settings.h"

namespace cudasim {
namespace {

// Functions of a program or library by their address in the file, local ones too.
using Symbols = std::map<uint64_t, std::string>;

template <typename T>
std::vector<T> read_at(std::ifstream& file, uint64_t offset, uint64_t count) {
  std::vector<T> values(count);
  file.seekg(static_cast<std::streamoff>(offset));
  file.read(reinterpret_cast<char*>(values.data()),
            static_cast<std::streamsize>(count * sizeof(T)));
  return file ? values : std::vector<T>{};
}

Symbols read_symbols(const char* path) {
  Symbols symbols;
  std::ifstream file(path, std::ios::binary);
  const auto header = read_at<Elf64_Ehdr>(file, 0, 1);
  if (header.empty()) return symbols;
  const auto sections = read_at<Elf64_Shdr>(file, header[0].e_shoff, header[0].e_shnum);
  for (const Elf64_Shdr& section : sections) {
    if (section.sh_type != SHT_SYMTAB || section.sh_link >= sections.size()) continue;
    const auto entries =
        read_at<Elf64_Sym>(file, section.sh_offset, section.sh_size / sizeof(Elf64_Sym));
    const Elf64_Shdr& strings = sections[section.sh_link];
    auto names = read_at<char>(file, strings.sh_offset, strings.sh_size);
    names.push_back('\0');
    for (const Elf64_Sym& entry : entries)
      if (ELF64_ST_TYPE(entry.st_info) == STT_FUNC && entry.st_name < names.size())
        symbols[entry.st_value] = &names[entry.st_name];
  }
  return symbols;
}

std::string symbol_of(const void* address) {
  static std::map<std::string, Symbols> files;
  Dl_info info{};
  if (dladdr(address, &info) == 0 || info.dli_fname == nullptr) return {};
  const char* path = info.dli_fname;
  auto found = files.find(path);
  if (found == files.end()) {
    Symbols symbols = read_symbols(path);
    if (symbols.empty()) symbols = read_symbols("/proc/self/exe");
    found = files.emplace(path, std::move(symbols)).first;
  }
  const auto at = reinterpret_cast<uint64_t>(address);
  const auto base = reinterpret_cast<uint64_t>(info.dli_fbase);
  for (const uint64_t value : {at - base, at})
    if (const auto symbol = found->second.find(value); symbol != found->second.end())
      return symbol->second;
  return {};
}

// Without return type, namespaces of the kernel and parameters; template arguments stay.
std::string shorten(std::string name) {
  int depth = 0;
  size_t end = name.size();
  for (size_t i = name.size(); i-- > 0;) {
    if (name[i] == ')') ++depth;
    if (name[i] == '(' && --depth == 0) {
      end = i;
      break;
    }
  }
  name.resize(end);
  depth = 0;
  size_t begin = 0;
  for (size_t i = 0; i < name.size(); ++i) {
    if (name[i] == '<') {
      ++depth;
    } else if (name[i] == '>') {
      --depth;
    } else if (depth == 0 && (name[i] == ' ' || name[i] == ':')) {
      begin = i + 1;
    }
  }
  return name.substr(begin);
}

void print_place() {
  std::fprintf(stderr, "cudasim: ");
  if (here == nullptr || here->cta == nullptr) return;
  const Cta& cta = *here->cta;
  std::fprintf(stderr, "kernel %s, CTA (%u, %u, %u), warp %u, lane %u: ",
               kernel_name(cta.launch->kernel).c_str(), cta.block.x, cta.block.y, cta.block.z,
               here->warp, here->lane);
}

[[noreturn]] void end() {
  std::fprintf(stderr, "\ncudasim: seed %llu\n", static_cast<unsigned long long>(initial_seed()));
  std::fflush(stderr);
  std::abort();
}

// Inside a kernel it hardly matters what a signal handler may call: the program is at its end.
void print_crash(const char* what, const void* address) {
  if (here == nullptr || here->cta == nullptr) return;
  print_place();
  std::fprintf(stderr, "%s at %p\n", what, address);
}

#if !defined(CUDASIM_ASAN)
void on_signal(int signal, siginfo_t* info, void*) {
  if (signal == SIGSEGV && is_closed_to_host(info->si_addr))
    std::fprintf(stderr, "cudasim: the host touched memory of the device, at %p\n", info->si_addr);
  print_crash(
      signal == SIGFPE ? "arithmetic error" : "invalid address, or the end of a lane's stack,",
      info->si_addr);
  ::signal(signal, SIG_DFL);  // the instruction runs again
}
#endif

}  // namespace

void report_crashes() {
#if defined(CUDASIM_ASAN)
  __sanitizer_set_death_callback([] { print_crash("stopped by the sanitizer", nullptr); });
#else
  // On a stack of its own: a lane's may be full.
  static thread_local std::vector<std::byte> stack(size_t{64} << 10);
  stack_t alternative{};
  alternative.ss_sp = stack.data();
  alternative.ss_size = stack.size();
  sigaltstack(&alternative, nullptr);
  struct sigaction action {};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE}) sigaction(signal, &action, nullptr);
#endif
}

std::string kernel_name(const void* kernel) {
  static std::mutex mutex;
  static std::map<const void*, std::string> names;
  const std::lock_guard lock(mutex);
  std::string& name = names[kernel];
  if (name.empty()) {
    const std::string symbol = symbol_of(kernel);
    int status = -1;
    const std::unique_ptr<char, void (*)(void*)> plain(
        abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status), std::free);
    name = status == 0 ? shorten(plain.get()) : symbol;
    if (name.empty()) {
      char text[32];
      std::snprintf(text, sizeof text, "%p", kernel);
      name = text;
    }
  }
  return name;
}

void fail(const char* format, ...) {
  print_place();
  va_list arguments;
  va_start(arguments, format);
  std::vfprintf(stderr, format, arguments);
  va_end(arguments);
  end();
}

void fail_in(const Cta& cta, const char* message) {
  std::fprintf(stderr, "cudasim: kernel %s, CTA (%u, %u, %u): %s",
               kernel_name(cta.launch->kernel).c_str(), cta.block.x, cta.block.y, cta.block.z,
               message);
  end();
}

void report_deadlock(const Cta& cta) {
  std::fprintf(stderr, "cudasim: kernel %s, CTA (%u, %u, %u): deadlock, nobody can go on",
               kernel_name(cta.launch->kernel).c_str(), cta.block.x, cta.block.y, cta.block.z);
  for (uint32_t w = 0; w < cta.num_warps; ++w) {
    std::map<std::string, uint32_t> lanes;
    for (uint32_t l = 0; l < 32; ++l) {
      const Lane& lane = *cta.lanes[32 * w + l];
      if ((cta.warps[w].alive >> l & 1u) == 0)
        lanes["ended"] |= 1u << l;
      else if (lane.waits_for == nullptr)
        lanes["runs"] |= 1u << l;
      else
        lanes[std::string("in ") + lane.waits_for + describe_wait(lane)] |= 1u << l;
    }
    for (const auto& [what, mask] : lanes)
      std::fprintf(stderr, "\n  warp %u, lanes %08x: %s", w, mask, what.c_str());
  }
  for (int b = 0; b < 16; ++b)
    if (cta.barriers[b].arrived != 0)
      std::fprintf(stderr, "\n  barrier %d: %u of %u threads", b, cta.barriers[b].arrived,
                   cta.barriers[b].threads);
  end();
}

}  // namespace cudasim
