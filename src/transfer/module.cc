#include "src/transfer/module.h"

#include <stdlib.h>

#include <chrono>
#include <exception>
#include <filesystem>
#include <new>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "src/base/error.h"

namespace kvc {
namespace {

constexpr Module kUcx{"libkvcache_transport_ucx.so", "kvc_transport_module",
                      sizeof(TransferModule)};

[[noreturn]] void fail_with(const TransferFailure& failure) {
  Error error(failure.status, 0);
  std::snprintf(error.buffer(), Error::kCapacity, "%s", failure.text);
  error.set_sys_code(failure.sys_code);
  throw error;
}

// An engine whose work a module does.
class EngineOfModule final : public TransferEngine {
 public:
  EngineOfModule(const char* name, std::unique_ptr<ModuleEngine> engine)
      : name_(name), engine_(std::move(engine)) {}

  const char* name() const override { return name_; }
  std::string address() const override { return engine_->address(); }
  PeerId connect(const std::string& address) override {
    TransferFailure failure;
    const PeerId peer = engine_->connect(address.c_str(), &failure);
    if (peer == 0) fail_with(failure);
    return peer;
  }
  void send(PeerId peer, std::span<const std::byte> header, const std::vector<IoRange>& ranges,
            uint64_t token) override {
    if (!engine_->send(peer, header, ranges, token)) throw std::bad_alloc();
  }
  void close(PeerId peer) noexcept override { engine_->close(peer); }
  bool progress(TransferEvents& events) override {
    Events passed(events);
    const bool worked = engine_->progress(passed);
    if (passed.failure != nullptr) std::rethrow_exception(passed.failure);
    return worked;
  }
  int64_t now() const override {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
  int descriptor() const override { return engine_->descriptor(); }
  void wait(int64_t timeout_ns) override { engine_->wait(timeout_ns); }
  void wake() noexcept override { engine_->wake(); }

 private:
  // Keeps what was thrown until the module has returned.
  struct Events final : ModuleEvents {
    explicit Events(TransferEvents& events) : to(events) {}

    bool on_message(PeerId from, std::span<const std::byte> header, uint64_t payload_bytes,
                    std::span<const IoRange>* into, uint64_t* token) noexcept override {
      bool wants = false;
      ranges.clear();
      keep([&] { wants = to.on_message(from, header, payload_bytes, &ranges, token); });
      *into = ranges;
      return wants;
    }
    void on_received(uint64_t token, bool is_whole, IoDigest digest) noexcept override {
      keep([&] { to.on_received(token, is_whole, digest); });
    }
    void on_sent(uint64_t token, IoDigest digest) noexcept override {
      keep([&] { to.on_sent(token, digest); });
    }
    void on_closed(PeerId peer) noexcept override {
      keep([&] { to.on_closed(peer); });
    }

    template <typename Call>
    void keep(Call call) noexcept {
      try {
        call();
      } catch (...) {
        failure = std::current_exception();
      }
    }

    TransferEvents& to;
    std::vector<IoRange> ranges;
    std::exception_ptr failure;
  };

  const char* const name_;
  const std::unique_ptr<ModuleEngine> engine_;
};

// libucs reads these when it is loaded. Without them it replaces the handlers that the host program
// has for SIGSEGV and others, and prints. What the host program has set stays.
void set_ucx_defaults() noexcept {
  constexpr int kKeeps = 0;
  (void)setenv("UCX_HANDLE_ERRORS", "none", kKeeps);
  (void)setenv("UCX_ERROR_SIGNALS", "", kKeeps);
  (void)setenv("UCX_LOG_LEVEL", "fatal", kKeeps);
}

const TransferModule* find_ucx(std::string* why) {
  set_ucx_defaults();
  return reinterpret_cast<const TransferModule*>(find_module(kUcx, why));
}

}  // namespace

bool has_ucx_engine() { return find_ucx(nullptr) != nullptr; }

bool has_rdma() noexcept {
  std::error_code none;
  const std::filesystem::directory_iterator devices("/sys/class/infiniband", none);
  return !none && devices != std::filesystem::directory_iterator();
}

std::unique_ptr<TransferEngine> open_ucx_engine(const char* address, bool copies) {
  std::string why;
  const TransferModule* module = find_ucx(&why);
  if (module == nullptr) fail(KVC_E_UNSUPPORTED, "desc.engine = \"ucx\": %s", why.c_str());
  TransferFailure failure;
  std::unique_ptr<ModuleEngine> engine(
      module->open(address, copies ? digest_table() : nullptr, &failure));
  if (engine == nullptr) fail_with(failure);
  return std::make_unique<EngineOfModule>("ucx", std::move(engine));
}

}  // namespace kvc
