// What the two state machines of a transfer share.
//
// A machine is given events (a message, the end of a send or of a payload, a closed connection, the
// time) and answers with Outgoing. It has no thread, no clock and no lock, so that a test can drive
// it through any order of events.
#pragma once

#include <cstdint>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "kvcache.h"
#include "src/transfer/engine.h"
#include "src/transfer/message.h"

namespace kvc {

// Nanoseconds.
struct TransferLimits {
  int64_t idle = 5'000'000'000;   // Without a message of the other side.
  int64_t beat = 1'000'000'000;   // Until what was not answered is said again.
  int64_t drain = 1'000'000'000;  // For requests to come back by themselves when it ends.
  int32_t resend_rounds = 3;
  uint64_t bytes_in_flight = uint64_t{64} << 20;
};

constexpr int64_t kNever = INT64_MAX;
inline int64_t later(int64_t now, int64_t by) { return by > kNever - now ? kNever : now + by; }

struct Outgoing {
  Message message;
  std::vector<IoRange> ranges;  // The payload.
  PeerId to = 0;                // 0: the other side of the transfer.
};

// A sentence, or nothing where there is no memory for it.
inline std::string text_of(const char* text) noexcept {
  try {
    return text;
  } catch (const std::bad_alloc&) {
    return {};
  }
}

// How a transfer ended.
struct TransferEnd {
  kvc_status status = KVC_OK;
  std::string text;       // This side says.
  std::string peer_text;  // The other side says; empty: nothing.
};

struct TransferProgress {
  uint32_t chunks_total = 0, chunks_done = 0;
  uint64_t bytes_total = 0, bytes_done = 0;
  uint32_t resent = 0;
};

}  // namespace kvc
