// kvcache.h, section "Transfers".
#include <cstring>
#include <memory>
#include <string>

#include "src/capi/call.h"
#include "src/capi/guard.h"
#include "src/prefix/keys.h"
#include "src/transfer/loopback.h"
#include "src/transfer/module.h"
#include "src/transfer/transport.h"

struct kvc_transport {
  std::shared_ptr<kvc::Transport> transport;
};

struct kvc_transfer {
  std::vector<std::shared_ptr<kvc::Transfer>> parts;  // Received ones: one for each sender.
  std::shared_ptr<kvc::Transport> transport;
  std::shared_ptr<kvc::TransferLink> cache;
  std::shared_ptr<kvc::EndCallback> callback;  // Null: none.
};

namespace {

using kvc::CacheCall;
using kvc::fail;
using kvc::fail_with;
using kvc::guard;
using kvc::ll;
using kvc::model_id_of;
using kvc::require;
using kvc::TransferReport;
using kvc::TransferState;

void check_flags(uint64_t flags, uint64_t known) {
  if ((flags & ~known) != 0) {
    fail_with(KVC_E_UNSUPPORTED, static_cast<int64_t>(flags & ~known),
              "desc.flags = %llu, known are the bits of %llu",
              static_cast<unsigned long long>(flags), static_cast<unsigned long long>(known));
  }
}

void check_reserved(int32_t reserved) {
  if (reserved != 0)
    fail_with(KVC_E_UNSUPPORTED, reserved, "desc.reserved = %d is not supported: 0 is", reserved);
}

void check_least(int64_t value, int64_t least, const char* name) {
  if (value < least)
    fail_with(KVC_E_INVALID_ARGUMENT, value, "%s = %lld, expected at least %lld", name, ll(value),
              ll(least));
}

kvc::TransportOptions options_of(const kvc_transport_desc& desc) {
  check_flags(desc.flags, KVC_TRANSPORT_MANUAL_PROGRESS);
  check_reserved(desc.reserved);
  kvc::refuse_extensions(desc.ext, "desc");
  kvc::TransportOptions options;
  const auto set = [](int64_t value, const char* name, int64_t* out) {
    check_least(value, 0, name);
    if (value != 0) *out = value;
  };
  set(desc.idle_ns, "desc.idle_ns", &options.limits.idle);
  set(desc.beat_ns, "desc.beat_ns", &options.limits.beat);
  set(desc.drain_ns, "desc.drain_ns", &options.limits.drain);
  set(desc.tombstone_ns, "desc.tombstone_ns", &options.tombstone);
  check_least(desc.resend_rounds, 0, "desc.resend_rounds");
  if (desc.resend_rounds != 0) options.limits.resend_rounds = desc.resend_rounds;
  if (desc.bytes_in_flight != 0) options.limits.bytes_in_flight = desc.bytes_in_flight;
  options.has_thread = (desc.flags & KVC_TRANSPORT_MANUAL_PROGRESS) == 0;
  return options;
}

std::unique_ptr<kvc::TransferEngine> engine_of(const kvc_transport_desc& desc) {
  const std::string name = desc.engine == nullptr ? "loopback" : desc.engine;
  if (name != "loopback" && name != "ucx")
    fail(KVC_E_UNSUPPORTED,
         "desc.engine = \"%.50s\" is not supported: \"loopback\" and \"ucx\" are", name.c_str());
  if (desc.address != nullptr && desc.address[0] == '\0')
    fail(KVC_E_INVALID_ARGUMENT, "desc.address is empty, expected a name or NULL");
  if (name == "ucx") return kvc::open_ucx_engine(desc.address);
  return std::make_unique<kvc::LoopbackEngine>(kvc::LoopbackNetwork::of_process(),
                                               desc.address == nullptr ? "" : desc.address);
}

void require_manual(const kvc_transport* transport, const char* function) {
  require(transport, "transport");
  if (!transport->transport->has_thread()) return;
  fail(KVC_E_INVALID_STATE,
       "%s: the transport has a thread of its own (flags = 0), expected MANUAL_PROGRESS (1)",
       function);
}

void copy_text(const std::string& text, char (&out)[256]) {
  const size_t size = std::min(text.size(), sizeof out - 1);
  std::memcpy(out, text.data(), size);
  out[size] = '\0';
}

kvc_transfer_state state_of(TransferState state) {
  switch (state) {
    case TransferState::kWaiting: return KVC_TRANSFER_WAITING;
    case TransferState::kRunning: return KVC_TRANSFER_RUNNING;
    case TransferState::kArrived: return KVC_TRANSFER_ARRIVED;
    case TransferState::kEnding: return KVC_TRANSFER_ENDING;
    case TransferState::kDone: return KVC_TRANSFER_DONE;
    case TransferState::kFailed: return KVC_TRANSFER_FAILED;
  }
  return KVC_TRANSFER_FAILED;
}

TransferReport report_of(const kvc_transfer& transfer) {
  return transfer.transport->report(transfer.parts);
}

// The function of a desc for a transfer of so many parts; empty: there is none.
kvc::EndCallbacks callback_of(kvc_transfer_fn fn, void* user, size_t num_parts,
                              kvc_transfer* transfer) {
  kvc::EndCallbacks made;
  if (fn == nullptr) return made;
  made.push_back(std::make_shared<kvc::EndCallback>(fn, user, transfer, num_parts));
  transfer->callback = made.front();
  return made;
}

// The transfer has begun: its handle is the caller's, whose function may run from here on.
void hand_out(std::unique_ptr<kvc_transfer> made, kvc::EndCallbacks callback, kvc_transfer** out) {
  const std::shared_ptr<kvc::Transport> transport = made->transport;
  const std::vector<std::shared_ptr<kvc::Transfer>>& parts = made->parts;
  *out = made.release();
  if (!callback.empty()) transport->call_at_end(std::move(callback), parts);
}

// Tensor-parallel ranks of a desc; 0: `fallback`.
int32_t size_of_ranks(int32_t given, int32_t fallback, const char* name) {
  check_least(given, 0, name);
  return given == 0 ? fallback : given;
}

}  // namespace

// ---- Transports

kvc_status kvc_transport_open(const kvc_transport_desc* desc, kvc_transport** out,
                              kvc_error* err) noexcept {
  return guard(err, [&] {
    require(out, "out");
    const kvc_transport_desc read = kvc::read_struct(desc, "desc");
    const kvc::TransportOptions options = options_of(read);
    auto made = std::make_unique<kvc_transport>();
    made->transport = kvc::Transport::open(engine_of(read), options);
    *out = made.release();
  });
}

kvc_status kvc_transport_address(const kvc_transport* transport, char* buf, size_t* len,
                                 kvc_error* err) noexcept {
  return guard(err, [&] {
    require(transport, "transport");
    require(len, "len");
    const std::string address = transport->transport->address();
    kvc::write_array(address.c_str(), address.size() + 1, buf, len, "buf");
  });
}

kvc_status kvc_transport_fd(const kvc_transport* transport, int32_t* out_fd,
                            kvc_error* err) noexcept {
  return guard(err, [&] {
    require_manual(transport, "kvc_transport_fd");
    require(out_fd, "out_fd");
    *out_fd = transport->transport->descriptor();
  });
}

kvc_status kvc_transport_progress(kvc_transport* transport, int64_t timeout_ns,
                                  kvc_error* err) noexcept {
  return guard(err, [&] {
    require_manual(transport, "kvc_transport_progress");
    transport->transport->progress(timeout_ns);
  });
}

kvc_status kvc_transport_stats_get(const kvc_transport* transport, kvc_transport_stats* out,
                                   kvc_error* err) noexcept {
  return guard(err, [&] {
    require(transport, "transport");
    kvc::check_output(out, "out");
    const kvc::TransportCounters counters = transport->transport->counters();
    kvc_transport_stats stats{};
    stats.transfers_open = transport->transport->num_open();
    stats.transfers_done = counters.transfers_done;
    stats.transfers_failed = counters.transfers_failed;
    stats.messages_sent = counters.messages_sent;
    stats.messages_received = counters.messages_received;
    stats.bytes_sent = counters.bytes_sent;
    stats.bytes_received = counters.bytes_received;
    stats.messages_refused = counters.messages_refused;
    stats.messages_damaged = counters.messages_damaged;
    stats.payloads_damaged = counters.payloads_damaged;
    kvc::write_struct(out, stats);
  });
}

kvc_status kvc_transport_close(kvc_transport* transport, int64_t timeout_ns,
                               kvc_error* err) noexcept {
  return guard(err, [&] {
    require(transport, "transport");
    if (!transport->transport->close(timeout_ns))
      fail(KVC_E_TIMEOUT, "transfers were open after timeout_ns = %lld, and were cancelled",
           ll(timeout_ns));
  });
}

void kvc_transport_destroy(kvc_transport* transport) noexcept {
  if (transport == nullptr) return;
  transport->transport->shut_down();
  delete transport;
}

// ---- Transfers

kvc_status kvc_transfer_recv(kvc_cache* cache, kvc_transport* transport, const kvc_recv_desc* desc,
                             kvc_transfer** out, kvc_error* err) noexcept {
  return guard(err, [&] {
    CacheCall call(cache);
    require(transport, "transport");
    require(out, "out");
    const kvc_recv_desc read = kvc::read_struct(desc, "desc");
    check_flags(read.flags, KVC_TRANSFER_PUBLISH);
    check_reserved(read.reserved);
    kvc::refuse_extensions(read.ext, "desc");
    check_least(read.begin, 0, "desc.begin");
    check_least(read.num_tokens, 1, "desc.num_tokens");
    check_least(read.cross_length, 0, "desc.cross_length");
    if (read.priority < 0 || read.priority > kvc::kMaxPriority) {
      fail_with(KVC_E_OUT_OF_RANGE, read.priority, "desc.priority = %d out of range: 0 to %d",
                read.priority, kvc::kMaxPriority);
    }
    kvc::ReceiveRequest request;
    request.seq = read.seq;
    request.begin = read.begin;
    request.num_tokens = read.num_tokens;
    request.cross_length = read.cross_length;
    request.publishes = (read.flags & KVC_TRANSFER_PUBLISH) != 0;
    request.priority = read.priority;
    request.ranks.rank = read.tp_rank;
    request.ranks.num_ranks = size_of_ranks(read.tp_size, 1, "desc.tp_size");
    request.ranks.num_sender_ranks =
        size_of_ranks(read.sender_tp_size, request.ranks.num_ranks, "desc.sender_tp_size");
    if (!request.ranks.are_possible()) {
      fail_with(KVC_E_INVALID_ARGUMENT, read.tp_rank,
                "desc.tp_rank = %d, desc.tp_size = %d, desc.sender_tp_size = %d: expected a rank "
                "below its size, at most 1,024 ranks, and one size that divides the other",
                request.ranks.rank, request.ranks.num_ranks, request.ranks.num_sender_ranks);
    }
    request.model_id = model_id_of(read.model_id);
    request.lifetime = read.deadline_ns;
    request.idle = read.idle_ns;
    auto made = std::make_unique<kvc_transfer>();
    made->transport = transport->transport;
    made->cache = call->transfers.link();
    kvc::EndCallbacks callback = callback_of(
        read.on_done, read.user, static_cast<size_t>(request.ranks.num_parts()), made.get());
    made->parts = call->transfers.receive(made->transport, request);
    hand_out(std::move(made), std::move(callback), out);
  });
}

kvc_status kvc_transfer_ticket(const kvc_transfer* transfer, void* buf, size_t* len,
                               kvc_error* err) noexcept {
  return guard(err, [&] {
    require(transfer, "transfer");
    require(len, "len");
    const std::vector<std::byte> ticket =
        kvc::CacheTransfers::ticket_of(*transfer->parts.front(), *transfer->transport);
    kvc::write_array(ticket.data(), ticket.size(), static_cast<std::byte*>(buf), len, "buf");
  });
}

kvc_status kvc_transfer_send(kvc_cache* cache, kvc_transport* transport, const kvc_send_desc* desc,
                             kvc_transfer** out, kvc_error* err) noexcept {
  return guard(err, [&] {
    CacheCall call(cache);
    require(transport, "transport");
    require(out, "out");
    const kvc_send_desc read = kvc::read_struct(desc, "desc");
    check_flags(read.flags, 0);
    check_reserved(read.reserved);
    kvc::refuse_extensions(read.ext, "desc");
    require(read.ticket, "desc.ticket");
    if (read.mode != KVC_SEND_NOW && read.mode != KVC_SEND_AS_COMPUTED)
      fail_with(KVC_E_INVALID_ARGUMENT, read.mode,
                "desc.mode = %d, expected NOW (0) or AS_COMPUTED (1)", read.mode);
    if (read.ticket_len > kvc::kMostTicketBytes) {
      fail_with(KVC_E_INVALID_ARGUMENT, static_cast<int64_t>(read.ticket_len),
                "desc.ticket_len = %zu, a ticket has at most %zu bytes", read.ticket_len,
                kvc::kMostTicketBytes);
    }
    const kvc::Ticket ticket =
        kvc::decode_ticket({static_cast<const std::byte*>(read.ticket), read.ticket_len});
    kvc::SendRequest request;
    request.seq = read.seq;
    request.begin = read.begin;
    request.rank = read.tp_rank;
    request.num_ranks = size_of_ranks(read.tp_size, 1, "desc.tp_size");
    request.as_computed = read.mode == KVC_SEND_AS_COMPUTED;
    request.model_id = model_id_of(read.model_id);
    request.lifetime = read.deadline_ns;
    request.idle = read.idle_ns;
    auto made = std::make_unique<kvc_transfer>();
    made->transport = transport->transport;
    made->cache = call->transfers.link();
    made->parts.reserve(1);
    kvc::EndCallbacks callback = callback_of(read.on_done, read.user, 1, made.get());
    made->parts.push_back(call->transfers.send(made->transport, ticket, request));
    hand_out(std::move(made), std::move(callback), out);
  });
}

kvc_status kvc_transfer_query(const kvc_transfer* transfer, kvc_transfer_info* out,
                              kvc_error* err) noexcept {
  return guard(err, [&] {
    require(transfer, "transfer");
    kvc::check_output(out, "out");
    const TransferReport report = report_of(*transfer);
    kvc_transfer_info info{};
    info.state = state_of(report.state);
    info.status = report.end.status;
    info.is_receiving = transfer->parts.front()->is_receiving() ? 1 : 0;
    info.chunks_total = report.progress.chunks_total;
    info.chunks_done = report.progress.chunks_done;
    info.chunks_resent = report.progress.resent;
    info.bytes_total = report.progress.bytes_total;
    info.bytes_done = report.progress.bytes_done;
    copy_text(report.end.text, info.message);
    copy_text(report.end.peer_text, info.peer_message);
    kvc::write_struct(out, info);
  });
}

kvc_status kvc_transfer_wait(kvc_transfer* transfer, int64_t timeout_ns, kvc_error* err) noexcept {
  return guard(err, [&] {
    require(transfer, "transfer");
    kvc::Transport& transport = *transfer->transport;
    (void)transport.wait(transfer->parts, timeout_ns);
    TransferReport report = report_of(*transfer);
    if (transfer->parts.front()->is_receiving() && transfer->cache->owner != nullptr) {
      transfer->cache->owner->settle();
      report = report_of(*transfer);
    }
    switch (report.state) {
      case TransferState::kDone: return;
      case TransferState::kArrived:
        if (transfer->cache->owner == nullptr)
          fail(KVC_E_INVALID_STATE, "the transfer has arrived, and its cache is gone");
        fail(KVC_E_BUSY, "the transfer has arrived, and a forward is open: end or abort it first");
      case TransferState::kFailed:
        fail(report.end.status, "%s%s%s", report.end.text.c_str(),
             report.end.peer_text.empty() ? "" : ": ", report.end.peer_text.c_str());
      case TransferState::kWaiting:
      case TransferState::kRunning:
      case TransferState::kEnding:
        fail_with(KVC_E_TIMEOUT, report.progress.chunks_done,
                  "the transfer is not over after timeout_ns = %lld: %u of %u chunks",
                  ll(timeout_ns), report.progress.chunks_done, report.progress.chunks_total);
    }
  });
}

kvc_status kvc_transfer_fence(const kvc_transfer* transfer, kvc_fence** out,
                              kvc_error* err) noexcept {
  return guard(err, [&] {
    require(transfer, "transfer");
    require(out, "out");
    auto fence = std::make_unique<kvc_fence>();
    fence->is_open = [transport = transfer->transport, parts = transfer->parts] {
      const TransferState state = transport->state(parts);
      return state < TransferState::kArrived || state == TransferState::kEnding;
    };
    *out = fence.release();
  });
}

kvc_status kvc_transfer_cancel(kvc_transfer* transfer, kvc_error* err) noexcept {
  return guard(err, [&] {
    require(transfer, "transfer");
    for (const auto& part : transfer->parts)
      transfer->transport->cancel(*part, KVC_E_CANCELLED, "the transfer was cancelled");
  });
}

void kvc_transfer_destroy(kvc_transfer* transfer) noexcept {
  if (transfer == nullptr) return;
  kvc::Transport& transport = *transfer->transport;
  const bool calls = transfer->callback != nullptr && transport.take_over(*transfer->callback);
  if (transport.state(transfer->parts) != TransferState::kArrived) {
    for (const auto& part : transfer->parts)
      transport.cancel(*part, KVC_E_CANCELLED, "its handle was destroyed");
  }
  if (calls) transport.call_now(*transfer->callback);
  delete transfer;
}
