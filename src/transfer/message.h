// What the two sides of a transfer say to each other, and the ticket that brings them together.
//
//   receiver                     sender
//     ticket  - - (the host program's own way) - ->
//             <---- HELLO                    what it has, and how it is laid out
//     ACCEPT ---->
//             <---- DATA, DATA, …            one chunk each, in any order
//             <---- FIN                      digests of all chunks, what belongs to the sequence
//     NACK   ---->                           chunks to send again
//     ACK    ---->                           everything is here and has been compared
//     BEAT  <----> BEAT                      nothing else was said for a while
//     CANCEL ----> CANCELLED, either way     the end, with a reason
//
// A message is a header, which is small and carries its own digest, and for HELLO, DATA and FIN a
// payload. The header has the payload's length, and its digest for HELLO and FIN. The digest of a
// chunk is in FIN, so that it can be made while the chunk moves. Every message may be lost, come
// twice or come late: both sides repeat what was not answered, and answer again what they have seen
// before.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kvcache.h"

namespace kvc {

// 128 random bits: nobody guesses the id of a transfer that waits for its sender.
struct TransferId {
  std::array<uint8_t, 16> bytes{};
  auto operator<=>(const TransferId&) const = default;
};
TransferId random_transfer_id();  // Throws IO.
// The id of the part that one of several senders has.
TransferId id_of_part(const TransferId& id, int32_t part);

enum class MessageKind : uint8_t {
  kHello = 1,
  kAccept,
  kData,
  kFin,
  kAck,
  kNack,
  kBeat,
  kCancel,
  kCancelled
};
const char* message_name(MessageKind kind);

struct Message {
  MessageKind kind = MessageKind::kBeat;
  TransferId id;
  // The process that sends it, and the one that it is meant for: a process that was started again
  // is another one. 0: not known yet.
  uint64_t from_epoch = 0;
  uint64_t to_epoch = 0;
  bool is_for_receiver = false;  // Both sides may lie in one process.
  uint64_t payload_bytes = 0;
  uint64_t digest = 0;           // HELLO, FIN: digest of the payload.
  uint32_t chunk = 0;            // DATA.
  kvc_status status = KVC_OK;    // CANCEL; NACK: KVC_OK where it names chunks.
  std::string text;              // CANCEL, NACK: a sentence for people.
  std::vector<uint32_t> chunks;  // NACK.
};

// A header has at most so many bytes.
constexpr size_t kMostHeaderBytes = 8192;
// A NACK names at most so many chunks; the next one names others.
constexpr size_t kMostNamedChunks = 1024;

std::vector<std::byte> encode(const Message& message);
// Throws CORRUPT, or VERSION for one of a later version.
Message decode_message(std::span<const std::byte> bytes);

// The part of a sequence's table in one layer group that has pages: tokens [0, sink_kept) and those
// from kept_begin on.
struct KeptRange {
  int64_t sink_kept = 0;
  int64_t kept_begin = 0;
  bool operator==(const KeptRange&) const = default;
};

// Tokens [begin, length) travel.
struct TransferShape {
  int64_t begin = 0;
  int64_t length = 0;
  int64_t cross_length = 0;
  std::vector<KeptRange> groups;    // [layer group]
  std::vector<int32_t> page_sizes;  // [layer group] Tokens per page.
};

// Tensor-parallel ranks of both sides: each keeps the same number of KV heads, ascending.
struct TransferRanks {
  int32_t rank = 0, num_ranks = 1;  // The receiver's.
  int32_t num_sender_ranks = 1;

  bool are_possible() const {
    constexpr int32_t kMostRanks = 1024;
    return num_ranks >= 1 && num_ranks <= kMostRanks && rank >= 0 && rank < num_ranks &&
           num_sender_ranks >= 1 && num_sender_ranks <= kMostRanks &&
           (num_ranks % num_sender_ranks == 0 || num_sender_ranks % num_ranks == 0);
  }
  // Senders of one receiver.
  int32_t num_parts() const {
    return num_sender_ranks > num_ranks ? num_sender_ranks / num_ranks : 1;
  }
  // Receivers of one sender.
  int32_t num_receivers() const {
    return num_ranks > num_sender_ranks ? num_ranks / num_sender_ranks : 1;
  }
};

// What a receiver gives to its sender by way of the host program.
struct Ticket {
  TransferId id;
  uint64_t epoch = 0;       // The receiver's process.
  std::string engine;       // "loopback", "ucx"
  std::string address;      // Where the receiver is.
  std::string fingerprint;  // Fingerprint of page_format_text().
  TransferShape shape;
  TransferRanks ranks;
};

constexpr size_t kMostTicketBytes = 4096;

// Throws UNSUPPORTED where the ticket would be longer.
std::vector<std::byte> encode(const Ticket& ticket);
// Throws CORRUPT, VERSION, or INVALID_ARGUMENT for what is no ticket.
Ticket decode_ticket(std::span<const std::byte> bytes);

// Payload of HELLO.
struct Hello {
  TransferShape shape;  // The sender's sequence.
  std::string layout;   // Text, where the fingerprint is not the ticket's; else empty.
  std::string model_id;
  bool is_by_layer = false;  // A chunk has rows of one layer.
  int32_t prefix_block = 1;  // Tokens per block of the keys in FIN.
};
constexpr uint64_t kMostHelloBytes = uint64_t{1} << 20;

std::vector<std::byte> encode(const Hello& hello);
Hello decode_hello(std::span<const std::byte> bytes);  // Throws CORRUPT, VERSION.

// Payload of FIN.
struct Fin {
  std::vector<uint64_t> digests;       // [chunk]
  std::vector<std::byte> description;  // The sequence without pages and states.
};

std::vector<std::byte> encode(const Fin& fin);
Fin decode_fin(std::span<const std::byte> bytes);  // Throws CORRUPT, VERSION.

}  // namespace kvc
