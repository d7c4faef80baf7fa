// Headers and tickets of transfers: what is written is read, and what is damaged is refused.
#include "tests/support/transfer_messages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "src/base/digest.h"
#include "src/base/error.h"
#include "src/transfer/message.h"

namespace kvc {
namespace {

using test::message_of;
using test::ticket_of;

using Bytes = std::vector<std::byte>;

template <typename Read>
kvc_status status_of(const Read& read, const Bytes& bytes) {
  try {
    (void)read(bytes);
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()), "");
    return error.status();
  }
  return KVC_OK;
}

// Whether every flipped bit, every truncation and every other version of a frame is refused.
template <typename Read>
void expect_guarded(const Read& read, const Bytes& frame) {
  ASSERT_EQ(status_of(read, frame), KVC_OK);
  for (size_t bit = 0; bit < 8 * frame.size(); ++bit) {
    Bytes damaged = frame;
    damaged[bit / 8] ^= std::byte{1} << (bit % 8);
    const kvc_status status = status_of(read, damaged);
    ASSERT_TRUE(status == KVC_E_CORRUPT || status == KVC_E_INVALID_ARGUMENT) << "bit " << bit;
  }
  for (size_t size = 0; size < frame.size(); ++size)
    ASSERT_NE(status_of(read, Bytes(frame.begin(), frame.begin() + static_cast<long>(size))),
              KVC_OK)
        << size << " bytes";
  Bytes longer = frame;
  longer.push_back({});
  EXPECT_EQ(status_of(read, longer), KVC_E_CORRUPT);
  constexpr size_t kVersion = 7, kDigest = sizeof(uint64_t);
  Bytes later = frame;
  later[kVersion] = std::byte{'2'};
  const uint64_t digest = digest_of(later.data(), later.size() - kDigest);
  std::memcpy(later.data() + later.size() - kDigest, &digest, kDigest);
  EXPECT_EQ(status_of(read, later), KVC_E_VERSION);
  // As a machine of the other byte order writes it.
  Bytes turned = frame;
  std::reverse(turned.end() - kDigest, turned.end());
  EXPECT_EQ(status_of(read, turned), KVC_E_CORRUPT);
}

TEST(TransferMessages, WhatIsWrittenIsReadAndWhatIsDamagedIsRefused) {
  const auto read = [](const Bytes& bytes) { return decode_message(bytes); };
  for (int kind = 1; kind <= static_cast<int>(MessageKind::kCancelled); ++kind) {
    const Message message = message_of(static_cast<MessageKind>(kind));
    SCOPED_TRACE(message_name(message.kind));
    const Bytes header = encode(message);
    EXPECT_LE(header.size(), kMostHeaderBytes);
    const Message found = read(header);
    EXPECT_EQ(found.kind, message.kind);
    EXPECT_EQ(found.id, message.id);
    EXPECT_EQ(found.from_epoch, message.from_epoch);
    EXPECT_EQ(found.to_epoch, message.to_epoch);
    EXPECT_EQ(found.is_for_receiver, message.is_for_receiver);
    EXPECT_EQ(found.payload_bytes, message.payload_bytes);
    EXPECT_EQ(found.digest, message.digest);
    EXPECT_EQ(found.chunk, message.chunk);
    EXPECT_EQ(found.status, message.status);
    EXPECT_EQ(found.text, message.text);
    EXPECT_EQ(found.chunks, message.chunks);
    expect_guarded(read, header);
  }
  EXPECT_EQ(status_of(read, Bytes(kMostHeaderBytes + 1)), KVC_E_CORRUPT);
}

TEST(TransferMessages, TicketsAreReadAndGuarded) {
  const Ticket ticket = ticket_of();
  const auto read = [](const Bytes& bytes) { return decode_ticket(bytes); };
  const Bytes written = encode(ticket);
  const Ticket found = read(written);
  EXPECT_EQ(found.id, ticket.id);
  EXPECT_EQ(found.epoch, ticket.epoch);
  EXPECT_EQ(found.engine, ticket.engine);
  EXPECT_EQ(found.address, ticket.address);
  EXPECT_EQ(found.fingerprint, ticket.fingerprint);
  EXPECT_EQ(found.ranks.rank, 1);
  EXPECT_EQ(found.ranks.num_parts(), 2);
  EXPECT_EQ(found.shape.length, 100);
  EXPECT_EQ(found.shape.page_sizes, ticket.shape.page_sizes);
  expect_guarded(read, written);
}

// The digest of such a ticket is right.
TEST(TransferMessages, TicketsThatLieAreRefused) {
  const auto read = [](const Bytes& bytes) { return decode_ticket(bytes); };
  const auto lies = [&](auto change) {
    Ticket ticket = ticket_of();
    change(ticket);
    return status_of(read, encode(ticket));
  };
  EXPECT_EQ(lies([](Ticket&) {}), KVC_OK);
  for (const auto& change : std::vector<void (*)(Ticket&)>{
           [](Ticket& t) { t.shape.begin = t.shape.length + 1; },
           [](Ticket& t) { t.shape.begin = -1; },
           [](Ticket& t) { t.shape.length = INT64_MAX; },
           [](Ticket& t) { t.shape.cross_length = INT64_MAX; },
           [](Ticket& t) { t.shape.page_sizes.push_back(16); },
           [](Ticket& t) { t.shape.page_sizes[0] = 0; },
           [](Ticket& t) { t.shape.page_sizes[1] = INT32_MAX; },
           [](Ticket& t) {
             t.shape.groups[0] = {-1, 0};
           },
           [](Ticket& t) {
             t.shape.groups[1] = {5, 4};
           },
           [](Ticket& t) {
             t.shape.groups[1] = {0, INT64_MAX};
           },
           [](Ticket& t) { t.ranks.rank = 2; },
           [](Ticket& t) { t.ranks.num_ranks = 0; },
           [](Ticket& t) {
             t.ranks = {0, 2, 3};
           },
           [](Ticket& t) {
             t.ranks = {0, 1, INT32_MAX};
           },
       })
    EXPECT_EQ(lies(change), KVC_E_CORRUPT);
}

}  // namespace
}  // namespace kvc
