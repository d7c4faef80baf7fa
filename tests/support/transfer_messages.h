// What the two sides of a transfer could say, with a value in every field.
#pragma once

#include "src/transfer/message.h"

namespace kvc::test {

inline Message message_of(MessageKind kind) {
  Message message;
  message.kind = kind;
  message.id = random_transfer_id();
  message.from_epoch = 0x0123456789ABCDEF;
  message.to_epoch = 77;
  message.is_for_receiver = true;
  message.payload_bytes = 1 << 20;
  message.digest = 0xFEDCBA9876543210;
  message.chunk = kind == MessageKind::kData ? 4711 : 0;
  if (kind == MessageKind::kCancel) {
    message.status = KVC_E_TIMEOUT;
    message.text = "the deadline of the transfer is over";
  }
  if (kind == MessageKind::kNack) message.chunks = {1, 5, 70'000};
  return message;
}

inline Ticket ticket_of() {
  Ticket ticket;
  ticket.id = random_transfer_id();
  ticket.ranks = {1, 2, 4};
  ticket.epoch = 99;
  ticket.engine = "ucx";
  ticket.address = "10.0.0.5:7000";
  ticket.fingerprint = "kvcache-layout-1:0123";
  ticket.shape = {5, 100, 7, {{0, 0}, {4, 32}}, {16, 48}};
  return ticket;
}

}  // namespace kvc::test
