#include "src/transfer/message.h"

#include <cstring>

#include "src/base/digest.h"
#include "src/base/error.h"
#include "src/base/random.h"
#include "src/base/wire.h"
#include "src/plan/spec.h"

namespace kvc {
namespace {

constexpr char kMessageMagic[8] = {'K', 'V', 'C', 'M', 'S', 'G', '0', '1'};
constexpr char kTicketMagic[8] = {'K', 'V', 'C', 'T', 'K', 'T', '0', '1'};

enum MessageTag : uint32_t {
  kKind = 1,
  kId,
  kFromEpoch,
  kToEpoch,
  kPayloadBytes,
  kDigest,
  kChunk,
  kStatus,
  kText,
  kChunks,
  kForReceiver,
};

enum TicketTag : uint32_t {
  kTicketId = 1,
  kEpoch,
  kEngine,
  kAddress,
  kFingerprint,
  kTicketShape,
  kRanks,
};

enum ShapeTag : uint32_t { kBegin = 1, kLength, kCrossLength, kGroups, kPageSizes };
enum HelloTag : uint32_t { kHelloShape = 1, kLayout, kModelId, kByLayer, kPrefixBlock };
enum FinTag : uint32_t { kDigests = 1, kDescription };

// A magic of 8 bytes, the record, the digest of both.
std::vector<std::byte> framed(const char (&magic)[8], const WireWriter& record) {
  std::vector<std::byte> bytes(sizeof magic + record.data().size() + sizeof(uint64_t));
  std::memcpy(bytes.data(), magic, sizeof magic);
  std::memcpy(bytes.data() + sizeof magic, record.data().data(), record.data().size());
  const size_t covered = bytes.size() - sizeof(uint64_t);
  const uint64_t digest = digest_of(bytes.data(), covered);
  std::memcpy(bytes.data() + covered, &digest, sizeof digest);
  return bytes;
}

std::span<const std::byte> unframed(const char (&magic)[8], std::span<const std::byte> bytes,
                                    kvc_status no_magic, const char* what) {
  // The last two letters are the version: a frame of another one says so.
  constexpr size_t kName = sizeof magic - 2;
  if (bytes.size() < sizeof magic + sizeof(uint64_t) ||
      std::memcmp(bytes.data(), magic, kName) != 0)
    fail_with(no_magic, static_cast<int64_t>(bytes.size()),
              "%s of %zu bytes is none: it begins otherwise", what, bytes.size());
  const size_t covered = bytes.size() - sizeof(uint64_t);
  uint64_t digest = 0;
  std::memcpy(&digest, bytes.data() + covered, sizeof digest);
  if (digest != digest_of(bytes.data(), covered))
    fail(KVC_E_CORRUPT, "%s is damaged: its digest is another", what);
  if (std::memcmp(bytes.data(), magic, sizeof magic) != 0)
    fail(KVC_E_VERSION, "%s has another version than this library, which knows %.2s", what,
         magic + kName);
  return bytes.subspan(sizeof magic, covered - sizeof magic);
}

WireWriter written(const TransferShape& shape) {
  WireWriter out;
  out.integer(kBegin, shape.begin);
  out.integer(kLength, shape.length);
  out.integer(kCrossLength, shape.cross_length);
  out.array(kGroups, shape.groups);
  out.array(kPageSizes, shape.page_sizes);
  return out;
}

TransferShape read_shape(WireReader in) {
  TransferShape shape;
  while (in.next()) {
    switch (in.tag()) {
      case kBegin: shape.begin = in.integer(0, kMaxSequenceLength); break;
      case kLength: shape.length = in.integer(0, kMaxSequenceLength); break;
      case kCrossLength: shape.cross_length = in.integer(0, kMaxSequenceLength); break;
      case kGroups: shape.groups = in.array<KeptRange>(); break;
      case kPageSizes: shape.page_sizes = in.array<int32_t>(); break;
      default: in.skip();
    }
  }
  if (shape.page_sizes.size() != shape.groups.size())
    fail(KVC_E_CORRUPT, "a shape has %zu page sizes for %zu layer groups", shape.page_sizes.size(),
         shape.groups.size());
  for (const int32_t page_size : shape.page_sizes) {
    if (page_size < 1 || page_size > kMaxPageSize)
      fail(KVC_E_CORRUPT, "a shape has pages of %d tokens, expected 1 to %d", page_size,
           kMaxPageSize);
  }
  for (const KeptRange& kept : shape.groups) {
    if (kept.sink_kept < 0 || kept.sink_kept > kept.kept_begin ||
        kept.kept_begin > kMaxSequenceLength)
      fail(KVC_E_CORRUPT, "a shape keeps the first %lld tokens and those from %lld on",
           ll(kept.sink_kept), ll(kept.kept_begin));
  }
  if (shape.begin > shape.length)
    fail(KVC_E_CORRUPT, "a shape begins at token %lld of %lld", ll(shape.begin), ll(shape.length));
  return shape;
}

}  // namespace

TransferId random_transfer_id() {
  TransferId id;
  fill_random(id.bytes.data(), id.bytes.size());
  return id;
}

TransferId id_of_part(const TransferId& id, int32_t part) {
  TransferId made = id;
  uint32_t last = 0;
  std::memcpy(&last, made.bytes.data() + made.bytes.size() - sizeof last, sizeof last);
  last += static_cast<uint32_t>(part);
  std::memcpy(made.bytes.data() + made.bytes.size() - sizeof last, &last, sizeof last);
  return made;
}

const char* message_name(MessageKind kind) {
  switch (kind) {
    case MessageKind::kHello: return "HELLO";
    case MessageKind::kAccept: return "ACCEPT";
    case MessageKind::kData: return "DATA";
    case MessageKind::kFin: return "FIN";
    case MessageKind::kAck: return "ACK";
    case MessageKind::kNack: return "NACK";
    case MessageKind::kBeat: return "BEAT";
    case MessageKind::kCancel: return "CANCEL";
    case MessageKind::kCancelled: return "CANCELLED";
  }
  return "?";
}

std::vector<std::byte> encode(const Message& message) {
  WireWriter out;
  out.integer(kKind, static_cast<int64_t>(message.kind));
  out.bytes(kId, message.id.bytes.data(), message.id.bytes.size());
  out.bytes(kFromEpoch, &message.from_epoch, sizeof message.from_epoch);
  out.bytes(kToEpoch, &message.to_epoch, sizeof message.to_epoch);
  if (message.is_for_receiver) out.integer(kForReceiver, 1);
  if (message.payload_bytes != 0) {
    out.bytes(kPayloadBytes, &message.payload_bytes, sizeof message.payload_bytes);
    out.bytes(kDigest, &message.digest, sizeof message.digest);
  }
  if (message.kind == MessageKind::kData) out.integer(kChunk, message.chunk);
  if (message.status != KVC_OK) out.integer(kStatus, message.status);
  if (!message.text.empty()) out.text(kText, message.text);
  if (!message.chunks.empty()) out.array(kChunks, message.chunks);
  return framed(kMessageMagic, out);
}

Message decode_message(std::span<const std::byte> bytes) {
  if (bytes.size() > kMostHeaderBytes)
    fail(KVC_E_CORRUPT, "a message has a header of %zu bytes, at most %zu", bytes.size(),
         kMostHeaderBytes);
  Message message;
  WireReader in(unframed(kMessageMagic, bytes, KVC_E_CORRUPT, "a message"), "a message");
  int64_t kind = 0;
  while (in.next()) {
    switch (in.tag()) {
      case kKind: kind = in.integer(0, UINT8_MAX); break;
      case kId: message.id = in.value<TransferId>(); break;
      case kFromEpoch: message.from_epoch = in.value<uint64_t>(); break;
      case kToEpoch: message.to_epoch = in.value<uint64_t>(); break;
      case kPayloadBytes: message.payload_bytes = in.value<uint64_t>(); break;
      case kDigest: message.digest = in.value<uint64_t>(); break;
      case kChunk: message.chunk = static_cast<uint32_t>(in.integer(0, UINT32_MAX)); break;
      case kStatus: message.status = static_cast<kvc_status>(in.integer(0, INT32_MAX)); break;
      case kText: message.text = in.text(); break;
      case kForReceiver: message.is_for_receiver = in.integer(0, 1) != 0; break;
      case kChunks: message.chunks = in.array<uint32_t>(); break;
      default: in.skip();
    }
  }
  if (kind < static_cast<int64_t>(MessageKind::kHello) ||
      kind > static_cast<int64_t>(MessageKind::kCancelled))
    fail_with(KVC_E_CORRUPT, kind, "a message is of kind %lld", ll(kind));
  message.kind = static_cast<MessageKind>(kind);
  return message;
}

std::vector<std::byte> encode(const Ticket& ticket) {
  WireWriter out;
  out.bytes(kTicketId, ticket.id.bytes.data(), ticket.id.bytes.size());
  out.bytes(kEpoch, &ticket.epoch, sizeof ticket.epoch);
  out.text(kEngine, ticket.engine);
  out.text(kAddress, ticket.address);
  out.text(kFingerprint, ticket.fingerprint);
  out.record(kTicketShape, written(ticket.shape));
  out.bytes(kRanks, &ticket.ranks, sizeof ticket.ranks);
  std::vector<std::byte> bytes = framed(kTicketMagic, out);
  if (bytes.size() > kMostTicketBytes)
    fail(KVC_E_UNSUPPORTED, "a ticket of %zu bytes, at most %zu: %zu layer groups", bytes.size(),
         kMostTicketBytes, ticket.shape.groups.size());
  return bytes;
}

Ticket decode_ticket(std::span<const std::byte> bytes) {
  Ticket ticket;
  WireReader in(unframed(kTicketMagic, bytes, KVC_E_INVALID_ARGUMENT, "the ticket"), "the ticket");
  while (in.next()) {
    switch (in.tag()) {
      case kTicketId: ticket.id = in.value<TransferId>(); break;
      case kEpoch: ticket.epoch = in.value<uint64_t>(); break;
      case kEngine: ticket.engine = in.text(); break;
      case kAddress: ticket.address = in.text(); break;
      case kFingerprint: ticket.fingerprint = in.text(); break;
      case kTicketShape: ticket.shape = read_shape(in.record("the shape of the ticket")); break;
      case kRanks: ticket.ranks = in.value<TransferRanks>(); break;
      default: in.skip();
    }
  }
  const TransferRanks& ranks = ticket.ranks;
  if (!ranks.are_possible())
    fail(KVC_E_CORRUPT, "a ticket is of rank %d of %d, for %d senders", ranks.rank, ranks.num_ranks,
         ranks.num_sender_ranks);
  return ticket;
}

std::vector<std::byte> encode(const Hello& hello) {
  WireWriter out;
  out.record(kHelloShape, written(hello.shape));
  out.text(kLayout, hello.layout);
  out.text(kModelId, hello.model_id);
  if (hello.is_by_layer) out.integer(kByLayer, 1);
  out.integer(kPrefixBlock, hello.prefix_block);
  return out.data();
}

Hello decode_hello(std::span<const std::byte> bytes) {
  Hello hello;
  WireReader in(bytes, "HELLO");
  while (in.next()) {
    switch (in.tag()) {
      case kHelloShape: hello.shape = read_shape(in.record("the shape of HELLO")); break;
      case kLayout: hello.layout = in.text(); break;
      case kModelId: hello.model_id = in.text(); break;
      case kByLayer: hello.is_by_layer = in.integer(0, 1) != 0; break;
      case kPrefixBlock: hello.prefix_block = static_cast<int32_t>(in.integer(1, INT32_MAX)); break;
      default: in.skip();
    }
  }
  return hello;
}

std::vector<std::byte> encode(const Fin& fin) {
  WireWriter out;
  out.array(kDigests, fin.digests);
  out.bytes(kDescription, fin.description.data(), fin.description.size());
  return out.data();
}

Fin decode_fin(std::span<const std::byte> bytes) {
  Fin fin;
  WireReader in(bytes, "FIN");
  while (in.next()) {
    switch (in.tag()) {
      case kDigests: fin.digests = in.array<uint64_t>(); break;
      case kDescription: fin.description.assign(in.field().begin(), in.field().end()); break;
      default: in.skip();
    }
  }
  return fin;
}

}  // namespace kvc
