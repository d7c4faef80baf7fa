// What moves messages between processes: the interface of engines.
//
// An engine is two-sided: the receiver says where a payload goes when it has its header, and
// refuses one for which nobody waits before a byte lands. An engine with put() is one-sided too:
// its peers write registered memory without asking.
//
// An engine belongs to one Transport, which calls all but wake() under its own lock, from any
// thread. Callbacks run inside progress() alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace kvc {

struct IoRange {
  std::byte* data = nullptr;
  size_t size = 0;
};

size_t total_bytes(const std::vector<IoRange>& ranges);
// XXH3 of 64 bits, however the bytes are cut into ranges.
uint64_t digest_of(const std::vector<IoRange>& ranges) noexcept;

// The digest of a payload that has passed through the engine's hands, which costs less than to read
// it once more. Nothing where it has not.
using IoDigest = std::optional<uint64_t>;

// A connection. Never given again by one engine.
using PeerId = uint64_t;

struct TransferEvents {
  virtual ~TransferEvents() = default;
  // A message has come. True: its payload, if it has one, goes to `into`, and `token` comes back
  // with on_received(). False: nothing of it is wanted.
  virtual bool on_message(PeerId from, std::span<const std::byte> header, uint64_t payload_bytes,
                          std::vector<IoRange>* into, uint64_t* token) = 0;
  // Once for each payload that was wanted, whatever happens: from here on nothing is written there.
  // `is_whole`: all of it has come.
  virtual void on_received(uint64_t token, bool is_whole, IoDigest digest) = 0;
  // Once for each send(), whatever happens: from here on nothing is read from its ranges. It says
  // nothing of the peer.
  virtual void on_sent(uint64_t token, IoDigest digest) = 0;
  // The connection is gone, after on_received() and on_sent() for all of its requests.
  virtual void on_closed(PeerId peer) = 0;
};

class TransferEngine {
 public:
  virtual ~TransferEngine() = default;

  virtual const char* name() const = 0;
  virtual std::string address() const = 0;
  // Throws Error: INVALID_ARGUMENT for what is no address, PEER where nobody listens.
  virtual PeerId connect(const std::string& address) = 0;
  // The header is copied, the ranges are borrowed until on_sent(token). Throws std::bad_alloc.
  virtual void send(PeerId peer, std::span<const std::byte> header,
                    const std::vector<IoRange>& ranges, uint64_t token) = 0;
  // Breaks a connection off. on_closed() follows, as the proof that neither side of it touches
  // registered memory any more.
  virtual void close(PeerId peer) noexcept = 0;
  // Memory that payloads come from or go to, so that a network card can be told of it.
  virtual void add_memory(std::byte*, size_t) {}
  virtual void remove_memory(std::byte*) noexcept {}

  // Runs the callbacks that are due. Returns whether there were any.
  virtual bool progress(TransferEvents& events) = 0;
  // Nanoseconds of the engine's clock.
  virtual int64_t now() const = 0;
  // A descriptor that is readable when progress() has work.
  virtual int descriptor() const = 0;
  // Waits for work or wake(), at most so long; negative: for ever. Without the transport's lock.
  virtual void wait(int64_t timeout_ns) = 0;
  virtual void wake() noexcept = 0;

  // The one-sided shape.
  virtual bool has_put() const { return false; }
  virtual void put(PeerId, const IoRange& /*from*/, uint64_t /*remote*/, uint64_t /*token*/) {}
};

}  // namespace kvc
