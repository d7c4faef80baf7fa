// What a module of transfers is to the core: an engine in a shared object of its own, as src/tiers
// has them for tiers. Everything here crosses the boundary of a module, where nothing is thrown.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "src/base/digest.h"
#include "src/base/modules.h"
#include "src/transfer/engine.h"

namespace kvc {

// For the error of the call.
using TransferFailure = ModuleFailure;

// TransferEvents without exceptions. The ranges of on_message() are copied before it is called
// again.
struct ModuleEvents {
  virtual bool on_message(PeerId from, std::span<const std::byte> header, uint64_t payload_bytes,
                          std::span<const IoRange>* into, uint64_t* token) noexcept = 0;
  virtual void on_received(uint64_t token, bool is_whole, IoDigest digest) noexcept = 0;
  virtual void on_sent(uint64_t token, IoDigest digest) noexcept = 0;
  virtual void on_closed(PeerId peer) noexcept = 0;

 protected:
  ~ModuleEvents() = default;
};

// TransferEngine without exceptions.
class ModuleEngine {
 public:
  virtual ~ModuleEngine() = default;

  virtual const char* address() const noexcept = 0;
  // 0 with a failure.
  virtual PeerId connect(const char* address, TransferFailure* failure) noexcept = 0;
  // False: there is no memory for it, and on_sent() does not follow.
  virtual bool send(PeerId peer, std::span<const std::byte> header, std::span<const IoRange> ranges,
                    uint64_t token) noexcept = 0;
  virtual void close(PeerId peer) noexcept = 0;
  virtual bool progress(ModuleEvents& events) noexcept = 0;
  virtual int descriptor() const noexcept = 0;
  virtual void wait(int64_t timeout_ns) noexcept = 0;
  virtual void wake() noexcept = 0;
};

struct TransferModule {
  ModuleTable table;
  // `address`: nullable. `digests`: the engine copies payloads and makes digests on the way; null:
  // the network may take them where they lie. Null with a failure.
  ModuleEngine* (*open)(const char* address, const DigestTable* digests, TransferFailure* failure);
};

// Whether the engine "ucx" can be loaded.
bool has_ucx_engine();
// Whether this machine has a network card that moves memory by itself (RDMA).
bool has_rdma() noexcept;
// Engine "ucx" of libkvcache_transport_ucx.so. `address`: nullable. `copies`: payloads pass through
// its hands, and it gives digests of them. Throws UNSUPPORTED where there is no such module, else
// the module's own failure.
std::unique_ptr<TransferEngine> open_ucx_engine(const char* address, bool copies = !has_rdma());

}  // namespace kvc
