// libkvcache_transport_ucx.so: an engine between processes and machines, on UCX.
//
// A message without a payload is an active message of its own id, sent eagerly. One with a payload
// is a rendezvous: the receiver names the memory when it has the header, or refuses before a byte
// has moved. Both sides give lists of ranges, so that pages are not copied together. Where UCX has
// to copy them anyhow, into what it sends over TCP, a PayloadCopy does it.
//
// Endpoints are in peer error mode: requests come back whatever happens to the other side, and
// after a forced close nothing is written for its peer any more. That mode leaves shared memory
// out: processes of one host talk over TCP.
//
// Callbacks of UCX note what has happened in nodes made beforehand; progress() then tells it.
#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <ucp/api/ucp.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstring>
#include <ctime>
#include <exception>
#include <list>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "src/base/digest.h"
#include "src/base/thread.h"
#include "src/transfer/module.h"
#include "src/transfer/ucx/address.h"
#include "src/transfer/ucx/payload_copy.h"

namespace kvc {
namespace {

constexpr unsigned kWords = 1, kPayload = 2;  // Ids of active messages.
constexpr int64_t kMilli = 1'000'000;
constexpr int64_t kLooksFor = 100'000;  // Nanoseconds, before a wait sleeps.

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

bool refuse(TransferFailure* failure, const char* what, ucs_status_t status) noexcept {
  failure->status = status == UCS_ERR_NO_MEMORY ? KVC_E_NO_MEMORY : KVC_E_IO;
  failure->set("UCX: %s: %s", what, ucs_status_string(status));
  return false;
}

class UcxEngine final : public ModuleEngine {
 public:
  explicit UcxEngine(const DigestTable* digests) : digests_(digests) {}
  ~UcxEngine() override;
  // Once. False with a failure.
  bool open(const char* address, TransferFailure* failure);

  const char* address() const noexcept override { return address_.c_str(); }
  PeerId connect(const char* address, TransferFailure* failure) noexcept override;
  bool send(PeerId peer, std::span<const std::byte> header, std::span<const IoRange> ranges,
            uint64_t token) noexcept override;
  void close(PeerId peer) noexcept override;
  bool progress(ModuleEvents& events) noexcept override;
  int descriptor() const noexcept override { return epoll_; }
  void wait(int64_t timeout_ns) noexcept override;
  void wake() noexcept override;

 private:
  struct Peer {
    UcxEngine* engine = nullptr;
    PeerId id = 0;
    ucp_ep_h endpoint = nullptr;  // Null: it is being closed, or is.
    void* closing = nullptr;      // Request of the close; null: none is open.
    bool is_ending = false;       // It broke, or is to be closed.
    size_t num_requests = 0;      // Sends and landings that have not been told.
  };
  // A request to UCX, from its start until its end is told.
  struct Request {
    UcxEngine* engine = nullptr;
    Peer* peer = nullptr;
    uint64_t token = 0;
    bool is_landing = false;
    bool is_whole = false;
    uint64_t bytes = 0;
    std::vector<std::byte> header;      // UCX reads it until the end.
    std::vector<ucp_dt_iov_t> ranges;   // Likewise.
    std::unique_ptr<PayloadCopy> copy;  // Null: UCX has the ranges.
    std::list<Request>::iterator self;
  };

  static ucs_status_t on_words(void* arg, const void* header, size_t header_bytes, void* data,
                               size_t bytes, const ucp_am_recv_param_t* param);
  static ucs_status_t on_payload(void* arg, const void* header, size_t header_bytes, void* data,
                                 size_t bytes, const ucp_am_recv_param_t* param);
  // The datatype of a payload that is copied: its buffer is the request.
  static void* start_pack(void* engine, const void* request, size_t count);
  static void* start_unpack(void* engine, void* request, size_t count);
  static size_t packed_size(void* request);
  static size_t pack(void* request, size_t offset, void* to, size_t most);
  static ucs_status_t unpack(void* request, size_t offset, const void* from, size_t bytes);
  static void finish_copy(void* /*request*/) {}
  // Throws std::bad_alloc.
  void set_payload(std::span<const IoRange> ranges, Request* request) const;
  struct Memory;

  static void on_connection(ucp_conn_request_h connection, void* arg);
  static void on_broken(void* arg, ucp_ep_h endpoint, ucs_status_t status);
  static void on_send_done(void* request, ucs_status_t status, void* arg);
  static void on_landing_done(void* request, ucs_status_t status, size_t bytes, void* arg);

  bool open_worker(const sockaddr_in& address, TransferFailure* failure);
  bool listen(const sockaddr_in& address, TransferFailure* failure);
  Peer* add_peer(ucp_ep_params_t* params, ucs_status_t* status);
  Peer* peer_of(const ucp_am_recv_param_t* param);
  void end(Peer& peer) noexcept;
  void finish(Request& request) noexcept;
  bool accept_connections() noexcept;
  bool tell_requests(ModuleEvents& events) noexcept;
  bool close_peers(ModuleEvents& events) noexcept;
  bool run_ucx(int most_rounds) noexcept;
  bool drain(int64_t for_ns) noexcept;

  const DigestTable* const digests_;  // Null: UCX has the ranges of payloads.
  ucp_datatype_t datatype_ = 0;       // Where it copies.
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  ucp_listener_h listener_ = nullptr;
  int epoll_ = -1, wakes_ = -1;
  std::string address_;
  PeerId last_peer_ = 0;
  std::map<PeerId, Peer> peers_;
  std::unordered_map<ucp_ep_h, Peer*> by_endpoint_;
  size_t num_ending_ = 0;
  std::vector<ucp_conn_request_h> connections_;  // They wait for their endpoints.
  std::list<Request> open_, done_;
  ModuleEvents* events_ = nullptr;     // During progress().
  std::atomic<bool> was_busy_{false};  // The last progress() had work of any kind.
};

// ---- Opening

class UcpConfig {
 public:
  ~UcpConfig() {
    if (config_ != nullptr) ucp_config_release(config_);
  }
  ucs_status_t read() { return ucp_config_read(nullptr, nullptr, &config_); }
  ucp_config_t* get() const { return config_; }

 private:
  ucp_config_t* config_ = nullptr;
};

// Larger segments make scattered messages over TCP three to five times as fast: two for a chunk of
// a mebibyte, each with room for what UCX puts before it, else a third follows with a few bytes.
// Still larger ones fall out of the caches. A dead peer is noticed within seconds, and does not
// take this process with it.
std::vector<std::pair<std::string, const char*>> settings_of(unsigned minor) {
  constexpr unsigned kNewProtocols = 16, kHasPrefixes = 17, kHasUserTimeout = 22;
  constexpr unsigned kNeedsNoCache = 22;
  std::vector<std::pair<std::string, const char*>> settings{{"KEEPALIVE_INTERVAL", "1s"}};
  const std::string tcp = minor >= kHasPrefixes ? "TCP_" : "";
  for (const auto& [name, value] : {std::pair("TX_SEG_SIZE", "516K"),
                                    {"RX_SEG_SIZE", "1032K"},
                                    {"KEEPIDLE", "1s"},
                                    {"KEEPINTVL", "1s"},
                                    {"KEEPCNT", "3"}})
    settings.emplace_back(tcp + name, value);
  if (minor >= kHasUserTimeout) settings.emplace_back(tcp + "USER_TIMEOUT", "3s");
  if (minor < kNewProtocols) {
    // A request that is given up may still be in the hands of the TCP transport, which ends the
    // process when it returns it (uct_iface.h, comp->count > 0; tcp_ep.c, PUT_TX_WAITING_ACK): once
    // in a thousand peers that are killed in a transfer. What was copied is in nobody's hands, and
    // as fast over TCP.
    settings.emplace_back("ZCOPY_THRESH", "inf");
    settings.emplace_back("PUT_ENABLE", "n");
  }
  // UCX 1.16 to 1.21 reads its registration cache when a request is given up, whether there is one
  // or not: where UCX_MEM_EVENTS=n leaves it without, the transport is refused. Later ones and
  // earlier ones do as well without it.
  const bool needs_cache = minor >= kNewProtocols && minor < kNeedsNoCache;
  settings.emplace_back("RCACHE_ENABLE", needs_cache ? "y" : "n");
  return settings;
}

bool UcxEngine::open_worker(const sockaddr_in& address, TransferFailure* failure) {
  unsigned major = 0, minor = 0, release = 0;
  ucp_get_version(&major, &minor, &release);
  if (major != UCP_API_MAJOR || minor < UCP_API_MINOR) {
    failure->status = KVC_E_UNSUPPORTED;
    failure->set("desc.engine = \"ucx\": UCX %u.%u.%u is installed, expected %d.%d or later", major,
                 minor, release, UCP_API_MAJOR, UCP_API_MINOR);
    return false;
  }
  UcpConfig config;
  ucs_status_t status = config.read();
  if (status != UCS_OK) return refuse(failure, "its settings cannot be read", status);
  std::vector<std::pair<std::string, const char*>> settings = settings_of(minor);
  // UCX listens on every device that it may use. What is bound to this host stays on it.
  if (is_loopback(address)) settings.emplace_back("NET_DEVICES", "lo");
  for (const auto& [name, value] : settings) {
    status = ucp_config_modify(config.get(), name.c_str(), value);
    if (status != UCS_OK) return refuse(failure, name.c_str(), status);
  }
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  params.name = "kvcache";
  const SignalsBlocked blocked;  // UCX starts a thread.
  status = ucp_init(&params, config.get(), &context_);
  if (status != UCS_OK) return refuse(failure, "it cannot be started", status);
  ucp_worker_params_t worker{};
  worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  status = ucp_worker_create(context_, &worker, &worker_);
  if (status != UCS_OK) return refuse(failure, "no worker", status);
  if (digests_ != nullptr) {
    constexpr ucp_generic_dt_ops_t kOps{start_pack, start_unpack, packed_size,
                                        pack,       unpack,       finish_copy};
    status = ucp_dt_create_generic(&kOps, this, &datatype_);
    if (status != UCS_OK) return refuse(failure, "no datatype", status);
  }
  for (const auto& [id, callback] : {std::pair(kWords, &on_words), {kPayload, &on_payload}}) {
    ucp_am_handler_param_t handler{};
    handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                         UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
    handler.id = id;
    handler.flags = UCP_AM_FLAG_WHOLE_MSG;
    handler.cb = callback;
    handler.arg = this;
    status = ucp_worker_set_am_recv_handler(worker_, &handler);
    if (status != UCS_OK) return refuse(failure, "no handler of messages", status);
  }
  return true;
}

bool UcxEngine::listen(const sockaddr_in& address, TransferFailure* failure) {
  ucp_listener_params_t params{};
  params.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
  params.sockaddr = {generic(address), sizeof address};
  params.conn_handler = {on_connection, this};
  const SignalsBlocked blocked;
  ucs_status_t status = ucp_listener_create(worker_, &params, &listener_);
  if (status != UCS_OK) return refuse(failure, "desc.address cannot be listened at", status);
  ucp_listener_attr_t attr{};
  attr.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
  status = ucp_listener_query(listener_, &attr);
  if (status != UCS_OK) return refuse(failure, "its listener has no address", status);
  sockaddr_in found{};
  std::memcpy(&found, &attr.sockaddr, sizeof found);
  address_ = format_address(found);
  return true;
}

bool UcxEngine::open(const char* text, TransferFailure* failure) {
  sockaddr_in address{};
  if (!parse_address(text, "desc.address", &address, failure)) return false;
  if (!can_bind(address, text, failure)) return false;
  if (!open_worker(address, failure) || !listen(address, failure)) return false;
  int events = -1;
  const ucs_status_t status = ucp_worker_get_efd(worker_, &events);
  if (status != UCS_OK) return refuse(failure, "its worker has no descriptor", status);
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  wakes_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  bool is_good = epoll_ >= 0 && wakes_ >= 0;
  for (const int descriptor : {events, wakes_}) {
    epoll_event entry{};
    entry.events = EPOLLIN;
    is_good = is_good && epoll_ctl(epoll_, EPOLL_CTL_ADD, descriptor, &entry) == 0;
  }
  if (!is_good) {
    failure->status = KVC_E_IO;
    failure->sys_code = errno;
    failure->set("no descriptors for a transport: error %d of the system", errno);
    return false;
  }
  wake();  // The first progress() arms the worker.
  return true;
}

// ---- Connections

// Null with a status. Throws std::bad_alloc.
UcxEngine::Peer* UcxEngine::add_peer(ucp_ep_params_t* params, ucs_status_t* status) {
  const auto added = peers_.emplace(last_peer_ + 1, Peer{}).first;
  Peer& peer = added->second;
  peer.engine = this;
  peer.id = added->first;
  params->field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params->err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params->err_handler = {on_broken, &peer};
  *status = ucp_ep_create(worker_, params, &peer.endpoint);
  if (*status != UCS_OK) {
    peers_.erase(added);
    return nullptr;
  }
  ++last_peer_;
  try {
    by_endpoint_.emplace(peer.endpoint, &peer);
  } catch (const std::bad_alloc&) {
    end(peer);
  }
  return &peer;
}

PeerId UcxEngine::connect(const char* text, TransferFailure* failure) noexcept {
  try {
    sockaddr_in address{};
    if (!parse_address(text, "the address in the ticket", &address, failure)) return 0;
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR;
    params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
    params.sockaddr = {generic(address), sizeof address};
    ucs_status_t status = UCS_OK;
    const Peer* peer = add_peer(&params, &status);
    if (events_ == nullptr) wake();
    if (peer != nullptr) return peer->id;
    failure->status = status == UCS_ERR_NO_MEMORY ? KVC_E_NO_MEMORY : KVC_E_PEER;
    failure->set("nobody is reached at \"%.63s\": %s", text, ucs_status_string(status));
  } catch (const std::bad_alloc&) {
    failure->status = KVC_E_NO_MEMORY;
    failure->set("%s", "no memory for a connection");
  }
  return 0;
}

void UcxEngine::on_connection(ucp_conn_request_h connection, void* arg) {
  auto* engine = static_cast<UcxEngine*>(arg);
  try {
    engine->connections_.push_back(connection);
  } catch (const std::bad_alloc&) {
    (void)ucp_listener_reject(engine->listener_, connection);
  }
}

bool UcxEngine::accept_connections() noexcept {
  const bool any = !connections_.empty();
  while (!connections_.empty()) {
    const ucp_conn_request_h connection = connections_.back();
    connections_.pop_back();
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST;
    params.conn_request = connection;
    try {
      ucs_status_t status = UCS_OK;
      (void)add_peer(&params, &status);  // Null: it has gone again.
    } catch (const std::bad_alloc&) {
      (void)ucp_listener_reject(listener_, connection);
    }
  }
  return any;
}

void UcxEngine::end(Peer& peer) noexcept {
  if (peer.is_ending) return;
  peer.is_ending = true;
  ++num_ending_;
}

void UcxEngine::on_broken(void* arg, ucp_ep_h, ucs_status_t) {
  auto* peer = static_cast<Peer*>(arg);
  peer->engine->end(*peer);
}

void UcxEngine::close(PeerId id) noexcept {
  const auto found = peers_.find(id);
  if (found == peers_.end()) return;
  end(found->second);
  if (events_ == nullptr) wake();
}

// Breaks endpoints off, and tells of those that are done with.
bool UcxEngine::close_peers(ModuleEvents& events) noexcept {
  bool any = false;
  for (auto next = peers_.begin(); num_ending_ > 0 && next != peers_.end();) {
    const auto found = next++;
    Peer& peer = found->second;
    if (!peer.is_ending) continue;
    if (peer.endpoint != nullptr) {
      ucp_request_param_t params{};
      params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
      params.flags = UCP_EP_CLOSE_FLAG_FORCE;
      by_endpoint_.erase(peer.endpoint);
      const ucs_status_ptr_t request =
          ucp_ep_close_nbx(std::exchange(peer.endpoint, nullptr), &params);
      // An error says that there is nothing to close.
      if (UCS_PTR_IS_PTR(request)) peer.closing = request;
      any = true;
    }
    if (peer.closing != nullptr && ucp_request_check_status(peer.closing) != UCS_INPROGRESS) {
      ucp_request_free(std::exchange(peer.closing, nullptr));
      any = true;
    }
    if (peer.closing != nullptr || peer.num_requests != 0) continue;
    const PeerId id = peer.id;
    peers_.erase(found);
    --num_ending_;
    events.on_closed(id);
    any = true;
    next = peers_.upper_bound(id);  // It may have connected to others.
  }
  return any;
}

// ---- Messages

void UcxEngine::finish(Request& request) noexcept {
  done_.splice(done_.end(), open_, request.self);
}

void UcxEngine::on_send_done(void* request, ucs_status_t, void* arg) {
  ucp_request_free(request);
  auto* sent = static_cast<Request*>(arg);
  sent->engine->finish(*sent);
}

void UcxEngine::on_landing_done(void* request, ucs_status_t status, size_t bytes, void* arg) {
  ucp_request_free(request);
  auto* landing = static_cast<Request*>(arg);
  landing->is_whole = status == UCS_OK && bytes == landing->bytes;
  landing->engine->finish(*landing);
}

// Neighbours become one range.
void set_ranges(std::span<const IoRange> ranges, std::vector<ucp_dt_iov_t>* out) {
  out->reserve(ranges.size());
  for (const IoRange& range : ranges) {
    if (range.size == 0) continue;
    if (!out->empty() &&
        static_cast<std::byte*>(out->back().buffer) + out->back().length == range.data) {
      out->back().length += range.size;
    } else {
      out->push_back({range.data, range.size});
    }
  }
}

void UcxEngine::set_payload(std::span<const IoRange> ranges, Request* request) const {
  if (digests_ == nullptr) {
    set_ranges(ranges, &request->ranges);
  } else {
    request->copy = std::make_unique<PayloadCopy>(*digests_, ranges);
  }
}

void* UcxEngine::start_pack(void*, const void* request, size_t) {
  return const_cast<void*>(request);
}

void* UcxEngine::start_unpack(void*, void* request, size_t) { return request; }

size_t UcxEngine::packed_size(void* request) { return static_cast<Request*>(request)->bytes; }

size_t UcxEngine::pack(void* request, size_t offset, void* to, size_t most) {
  return static_cast<Request*>(request)->copy->read(offset, to, most);
}

ucs_status_t UcxEngine::unpack(void* request, size_t offset, const void* from, size_t bytes) {
  const size_t written = static_cast<Request*>(request)->copy->write(offset, from, bytes);
  return written == bytes ? UCS_OK : UCS_ERR_MESSAGE_TRUNCATED;
}

// How UCX is told of a payload. One range is given as such: then UCX copies nothing.
struct UcxEngine::Memory {
  Memory(Request& request, ucp_request_param_t* params)
      : buffer(request.ranges.data()), count(request.ranges.size()) {
    params->op_attr_mask |= UCP_OP_ATTR_FIELD_DATATYPE;
    if (request.copy != nullptr) {
      buffer = &request, count = 1;
      params->datatype = request.engine->datatype_;
    } else if (request.ranges.size() == 1) {
      buffer = request.ranges.front().buffer, count = request.ranges.front().length;
      params->datatype = ucp_dt_make_contig(1);
    } else {
      params->datatype = ucp_dt_make_iov();
    }
  }

  void* buffer;
  size_t count;
};

bool UcxEngine::send(PeerId to, std::span<const std::byte> header, std::span<const IoRange> ranges,
                     uint64_t token) noexcept {
  std::list<Request> made;
  try {
    Request& request = made.emplace_back();
    request.header.assign(header.begin(), header.end());
    for (const IoRange& range : ranges) request.bytes += range.size;
    if (request.bytes != 0) set_payload(ranges, &request);
  } catch (const std::bad_alloc&) {
    return false;
  }
  open_.splice(open_.end(), made, made.begin());
  Request& request = open_.back();
  request.self = std::prev(open_.end());
  request.engine = this;
  request.token = token;
  if (events_ == nullptr) wake();
  const auto found = peers_.find(to);
  if (found == peers_.end() || found->second.is_ending) {
    finish(request);
    return true;
  }
  Peer& peer = found->second;
  request.peer = &peer;
  ++peer.num_requests;
  const bool has_payload = request.bytes != 0;
  ucp_request_param_t params{};
  params.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  params.cb.send = on_send_done;
  params.user_data = &request;
  ucs_status_ptr_t started = nullptr;
  if (has_payload) {
    const Memory memory(request, &params);
    params.flags = UCP_AM_SEND_FLAG_REPLY | UCP_AM_SEND_FLAG_RNDV;
    started = ucp_am_send_nbx(peer.endpoint, kPayload, request.header.data(), request.header.size(),
                              memory.buffer, memory.count, &params);
  } else {
    // As data: a header may be longer than what UCX takes as one.
    params.flags = UCP_AM_SEND_FLAG_REPLY | UCP_AM_SEND_FLAG_EAGER;
    started = ucp_am_send_nbx(peer.endpoint, kWords, nullptr, 0, request.header.data(),
                              request.header.size(), &params);
  }
  if (UCS_PTR_IS_PTR(started)) return true;
  if (UCS_PTR_IS_ERR(started)) end(peer);
  finish(request);
  return true;
}

UcxEngine::Peer* UcxEngine::peer_of(const ucp_am_recv_param_t* param) {
  if (events_ == nullptr || (param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) == 0)
    return nullptr;
  const auto found = by_endpoint_.find(param->reply_ep);
  return found == by_endpoint_.end() || found->second->is_ending ? nullptr : found->second;
}

ucs_status_t UcxEngine::on_words(void* arg, const void*, size_t, void* data, size_t bytes,
                                 const ucp_am_recv_param_t* param) {
  auto* engine = static_cast<UcxEngine*>(arg);
  const Peer* peer = engine->peer_of(param);
  if (peer == nullptr || (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) return UCS_OK;
  std::span<const IoRange> into;
  uint64_t token = 0;
  (void)engine->events_->on_message(peer->id, {static_cast<const std::byte*>(data), bytes}, 0,
                                    &into, &token);
  return UCS_OK;
}

ucs_status_t UcxEngine::on_payload(void* arg, const void* header, size_t header_bytes, void* data,
                                   size_t bytes, const ucp_am_recv_param_t* param) {
  auto* engine = static_cast<UcxEngine*>(arg);
  Peer* peer = engine->peer_of(param);
  if (peer == nullptr) return UCS_OK;
  // Made before it is wanted, so that its end can be told.
  std::list<Request> made;
  try {
    made.emplace_back();
  } catch (const std::bad_alloc&) {
    return UCS_OK;
  }
  std::span<const IoRange> into;
  uint64_t token = 0;
  if (!engine->events_->on_message(peer->id, {static_cast<const std::byte*>(header), header_bytes},
                                   bytes, &into, &token))
    return UCS_OK;  // The sender's request ends, and nothing is moved.
  engine->open_.splice(engine->open_.end(), made, made.begin());
  Request& request = engine->open_.back();
  request.self = std::prev(engine->open_.end());
  request.engine = engine;
  request.peer = peer;
  request.token = token;
  request.is_landing = true;
  request.bytes = bytes;
  ++peer->num_requests;
  const auto* eager = static_cast<const std::byte*>(data);
  if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) == 0) {
    for (const IoRange& range : into) {
      std::memcpy(range.data, eager, std::min(range.size, bytes));
      eager += std::min(range.size, bytes);
      bytes -= std::min(range.size, bytes);
    }
    request.is_whole = bytes == 0;
    engine->finish(request);
    return UCS_OK;
  }
  try {
    engine->set_payload(into, &request);
  } catch (const std::bad_alloc&) {
    engine->finish(request);
    return UCS_OK;
  }
  size_t received = 0;
  ucp_request_param_t params{};
  params.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_RECV_INFO;
  params.cb.recv_am = on_landing_done;
  params.user_data = &request;
  params.recv_info.length = &received;
  const Memory memory(request, &params);
  const ucs_status_ptr_t started =
      ucp_am_recv_data_nbx(engine->worker_, data, memory.buffer, memory.count, &params);
  if (!UCS_PTR_IS_PTR(started)) {
    request.is_whole = started == nullptr && received == request.bytes;
    engine->finish(request);
  }
  return UCS_INPROGRESS;
}

bool UcxEngine::tell_requests(ModuleEvents& events) noexcept {
  const bool any = !done_.empty();
  while (!done_.empty()) {
    std::list<Request> told;
    told.splice(told.end(), done_, done_.begin());
    const Request& request = told.front();
    IoDigest digest;
    if (request.copy != nullptr) digest = request.copy->digest_of_all(request.bytes);
    if (request.is_landing) {
      events.on_received(request.token, request.is_whole, digest);
    } else {
      events.on_sent(request.token, digest);
    }
    if (request.peer != nullptr) --request.peer->num_requests;
  }
  return any;
}

// ---- Progress

bool UcxEngine::run_ucx(int most_rounds) noexcept {
  int round = 0;
  while (round < most_rounds && ucp_worker_progress(worker_) != 0) ++round;
  return round > 0;
}

bool UcxEngine::progress(ModuleEvents& events) noexcept {
  uint64_t wakes = 0;
  (void)!read(wakes_, &wakes, sizeof wakes);
  events_ = &events;
  bool worked = false, is_armed = false, is_busy = false;
  // Not for ever, so that timers get their turn.
  constexpr int kMostRounds = 64, kMostUcxRounds = 256;
  for (int round = 0; round < kMostRounds && !is_armed; ++round) {
    bool any = run_ucx(kMostUcxRounds);
    any = accept_connections() || any;
    is_busy = is_busy || any;
    const bool told = tell_requests(events);
    const bool closed = close_peers(events);
    worked = worked || told || closed;
    if (!any && !told && !closed) is_armed = ucp_worker_arm(worker_) == UCS_OK;
  }
  events_ = nullptr;
  if (!is_armed) wake();
  was_busy_ = is_busy || worked;
  return worked;
}

void UcxEngine::wait(int64_t timeout_ns) noexcept {
  pollfd entry{epoll_, POLLIN, 0};
  // Behind work comes more work: to sleep and to be woken costs both sides more than to look.
  if (was_busy_ && timeout_ns != 0) {
    for (const int64_t until = now_ns() + kLooksFor; now_ns() < until; sched_yield()) {
      if (poll(&entry, 1, 0) != 0) return;
    }
  }
  const int64_t timeout = timeout_ns < 0 ? -1 : std::min<int64_t>(timeout_ns / kMilli + 1, INT_MAX);
  (void)poll(&entry, 1, timeout_ns == 0 ? 0 : static_cast<int>(timeout));
}

void UcxEngine::wake() noexcept {
  const uint64_t one = 1;
  (void)!write(wakes_, &one, sizeof one);
}

// ---- The end

struct NoEvents final : ModuleEvents {
  bool on_message(PeerId, std::span<const std::byte>, uint64_t, std::span<const IoRange>*,
                  uint64_t*) noexcept override {
    return false;
  }
  void on_received(uint64_t, bool, IoDigest) noexcept override {}
  void on_sent(uint64_t, IoDigest) noexcept override {}
  void on_closed(PeerId) noexcept override {}
};

// False: the time is over.
bool UcxEngine::drain(int64_t for_ns) noexcept {
  NoEvents nobody;
  const int64_t until = now_ns() + for_ns;
  do {
    (void)run_ucx(INT_MAX);
    (void)accept_connections();
    (void)tell_requests(nobody);
    (void)close_peers(nobody);
    if (open_.empty() && num_ending_ == 0) return true;
    const timespec pause{0, kMilli / 10};
    (void)nanosleep(&pause, nullptr);
  } while (now_ns() < until);
  return false;
}

UcxEngine::~UcxEngine() {
  bool is_empty = true;
  if (worker_ != nullptr) {
    // Last words leave; then everything is broken off.
    (void)drain(50 * kMilli);
    for (auto& [id, peer] : peers_) end(peer);
    is_empty = drain(1000 * kMilli);
  }
  if (listener_ != nullptr) ucp_listener_destroy(listener_);
  // UCX 1.13 ends the process when a worker goes whose requests are open: then it stays.
  if (worker_ != nullptr && is_empty) {
    ucp_worker_destroy(worker_);
    if (datatype_ != 0) ucp_dt_destroy(datatype_);
    ucp_cleanup(context_);
  } else if (worker_ == nullptr && context_ != nullptr) {
    ucp_cleanup(context_);
  } else if (worker_ != nullptr) {
    // With everything that its requests point to.
    (void)new (std::nothrow) std::map<PeerId, Peer>(std::move(peers_));
    (void)new (std::nothrow) std::list<Request>(std::move(open_));
  }
  if (epoll_ >= 0) ::close(epoll_);
  if (wakes_ >= 0) ::close(wakes_);
}

ModuleEngine* open_engine(const char* address, const DigestTable* digests,
                          TransferFailure* failure) {
  try {
    auto engine = std::make_unique<UcxEngine>(digests);
    if (!engine->open(address == nullptr ? kDefaultAddress : address, failure)) return nullptr;
    return engine.release();
  } catch (const std::exception& error) {
    failure->status = KVC_E_NO_MEMORY;
    failure->set("no memory for a transport: %s", error.what());
    return nullptr;
  }
}

constexpr TransferModule kModule{{sizeof(TransferModule), KVC_LIBRARY_VERSION}, open_engine};

}  // namespace
}  // namespace kvc

extern "C" __attribute__((visibility("default"))) const kvc::ModuleTable* kvc_transport_module();
extern "C" const kvc::ModuleTable* kvc_transport_module() { return &kvc::kModule.table; }
