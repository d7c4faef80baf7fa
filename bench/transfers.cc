// A sequence on its way to another cache, over UCX on TCP, against a plain socket between two
// threads that moves the same pages, and inside the process.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bench/benches.h"
#include "bench/rates.h"
#include "bench/sequence_filler.h"
#include "src/transfer/module.h"

namespace kvc::bench {
namespace {

constexpr kvc_seq kSent = 0, kReceived = 1000;
constexpr uint64_t kMebibyte = uint64_t{1} << 20;

[[noreturn]] void fail_with_errno(const char* what) {
  throw std::runtime_error(std::string(what) + ": " + std::strerror(errno));
}

// CPU time of all threads.
double process_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

std::vector<IoRange> pages_of(Cache& cache, kvc_seq seq) {
  kvc_forward* forward = cache.begin({seq}, {1});
  std::vector<int32_t> ids = page_ids_of(forward);
  cache.abort(forward);
  ids.pop_back();  // The page of the new token.
  std::vector<IoRange> pages;
  for (const std::byte* page : page_addresses(cache, 0, ids)) {
    pages.push_back(
        {const_cast<std::byte*>(page), static_cast<size_t>(cache.shape().page_layer_bytes())});
  }
  return pages;
}

// ---- The limit: a plain socket

class Socket {
 public:
  Socket() {
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in here{};
    here.sin_family = AF_INET;
    here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof here;
    auto* address = reinterpret_cast<sockaddr*>(&here);
    if (listener < 0 || bind(listener, address, size) != 0 || listen(listener, 1) != 0 ||
        getsockname(listener, address, &size) != 0)
      fail_with_errno("no socket");
    ends_[0] = socket(AF_INET, SOCK_STREAM, 0);
    if (ends_[0] < 0 || connect(ends_[0], address, size) != 0) fail_with_errno("no connection");
    ends_[1] = accept(listener, nullptr, nullptr);
    if (ends_[1] < 0) fail_with_errno("no connection");
    close(listener);
    const int on = 1;
    for (const int end : ends_) (void)setsockopt(end, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
  ~Socket() {
    for (const int end : ends_) close(end);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  // Until the receiver has said that it has everything. Returns seconds.
  double move(const std::vector<IoRange>& from, const std::vector<IoRange>& to) {
    char word = 0;
    const double begin = now_seconds();
    std::thread receiver([&] {
      run(to, [&](const iovec* ranges, int count) { return readv(ends_[1], ranges, count); });
      (void)!write(ends_[1], &word, 1);
    });
    run(from, [&](const iovec* ranges, int count) { return writev(ends_[0], ranges, count); });
    const bool is_good = read(ends_[0], &word, 1) == 1;
    receiver.join();
    const double seconds = now_seconds() - begin;
    if (!is_good) throw std::runtime_error("the plain socket is broken");
    return seconds;
  }

 private:
  template <typename Call>
  static void run(const std::vector<IoRange>& ranges, const Call& call) {
    constexpr size_t kMost = 64;
    size_t next = 0, done = 0;  // `done` bytes of the first range.
    while (next < ranges.size()) {
      iovec part[kMost];
      const size_t count = std::min(kMost, ranges.size() - next);
      for (size_t i = 0; i < count; ++i) part[i] = {ranges[next + i].data, ranges[next + i].size};
      part[0] = {ranges[next].data + done, ranges[next].size - done};
      const ssize_t moved = call(part, static_cast<int>(count));
      if (moved <= 0) return;
      for (done += static_cast<size_t>(moved); next < ranges.size() && done >= ranges[next].size;)
        done -= ranges[next++].size;
    }
  }

  int ends_[2] = {-1, -1};
};

// ---- The engine alone: the same pages in chunks, without digests and state machines

class Chunks final : private TransferEvents {
 public:
  explicit Chunks(uint64_t in_flight)
      : in_flight_(in_flight),
        engine_(open_ucx_engine(nullptr, false)),
        other_(open_ucx_engine(nullptr, false)),
        peer_(engine_->connect(other_->address())) {}

  double move(const std::vector<IoRange>& from, const std::vector<IoRange>& to) {
    to_ = &to;
    num_landed_ = 0;
    const size_t chunk = std::max<size_t>(1, kMebibyte / from.front().size);
    num_chunks_ = (from.size() + chunk - 1) / chunk;
    pages_per_chunk_ = chunk;
    const double begin = now_seconds();
    std::thread receiver([&] {
      while (num_landed_ < num_chunks_) {
        if (!other_->progress(*this) && num_landed_ < num_chunks_) other_->wait(1'000'000'000);
      }
      engine_->wake();
    });
    Sender sender;
    size_t next = 0;
    // What has come back may still lie in a buffer of UCX, which leaves as progress() is called.
    const auto is_done = [&] {
      return sender.num_back == num_chunks_ && num_landed_ == num_chunks_;
    };
    while (!is_done()) {
      while (next < num_chunks_ &&
             (next == sender.num_back ||
              (next - sender.num_back + 1) * chunk * from.front().size <= in_flight_)) {
        const auto first = from.begin() + static_cast<std::ptrdiff_t>(next * chunk);
        const auto count = std::min(chunk, from.size() - next * chunk);
        const std::vector<IoRange> ranges(first, first + static_cast<std::ptrdiff_t>(count));
        std::byte header[sizeof next];
        std::memcpy(header, &next, sizeof next);
        engine_->send(peer_, header, ranges, ++next);
      }
      if (!engine_->progress(sender) && !is_done()) engine_->wait(1'000'000'000);
    }
    receiver.join();
    return now_seconds() - begin;
  }

 private:
  struct Sender final : TransferEvents {
    bool on_message(PeerId, std::span<const std::byte>, uint64_t, std::vector<IoRange>*,
                    uint64_t*) override {
      return false;
    }
    void on_received(uint64_t, bool, IoDigest) override {}
    void on_sent(uint64_t, IoDigest) override { ++num_back; }
    void on_closed(PeerId) override { throw std::runtime_error("the engine is broken"); }

    size_t num_back = 0;
  };

  bool on_message(PeerId, std::span<const std::byte> header, uint64_t, std::vector<IoRange>* into,
                  uint64_t* token) override {
    size_t index = 0;
    std::memcpy(&index, header.data(), sizeof index);
    const size_t begin = index * pages_per_chunk_;
    const size_t end = std::min(begin + pages_per_chunk_, to_->size());
    into->assign(to_->begin() + static_cast<std::ptrdiff_t>(begin),
                 to_->begin() + static_cast<std::ptrdiff_t>(end));
    *token = index;
    return true;
  }
  void on_received(uint64_t, bool, IoDigest) override { ++num_landed_; }
  void on_sent(uint64_t, IoDigest) override {}
  void on_closed(PeerId) override {}

  const uint64_t in_flight_;
  std::unique_ptr<TransferEngine> engine_, other_;
  const PeerId peer_;
  const std::vector<IoRange>* to_ = nullptr;
  size_t num_chunks_ = 0, pages_per_chunk_ = 1;
  std::atomic<size_t> num_landed_{0};
};

// ---- Transfers

class Transports {
 public:
  Transports(const char* engine, uint64_t in_flight) {
    kvc_transport_desc desc{};
    desc.struct_size = sizeof desc;
    desc.engine = engine;
    desc.bytes_in_flight = in_flight;
    kvc_error error{};
    for (kvc_transport*& end : ends_) check(kvc_transport_open(&desc, &end, &error), error);
  }
  ~Transports() {
    for (kvc_transport* end : ends_) kvc_transport_destroy(end);
  }
  Transports(const Transports&) = delete;
  Transports& operator=(const Transports&) = delete;

  // From the reservation until both sides know that all is there. Returns seconds. With `compute`,
  // which computes the tokens, they are sent as computed.
  double move(Cache& from, Cache& to, int64_t tokens,
              const std::function<void()>& compute = nullptr) {
    kvc_error error{};
    kvc_transfer *receiving = nullptr, *sending = nullptr;
    const double begin = now_seconds();
    kvc_recv_desc recv{};
    recv.struct_size = sizeof recv;
    recv.seq = kReceived;
    recv.num_tokens = tokens;
    check(kvc_transfer_recv(to.get(), ends_[1], &recv, &receiving, &error), error);
    std::vector<std::byte> ticket(4096);
    size_t len = ticket.size();
    check(kvc_transfer_ticket(receiving, ticket.data(), &len, &error), error);
    kvc_send_desc send{};
    send.struct_size = sizeof send;
    send.seq = kSent;
    send.ticket = ticket.data();
    send.ticket_len = len;
    send.mode = compute != nullptr ? KVC_SEND_AS_COMPUTED : KVC_SEND_NOW;
    check(kvc_transfer_send(from.get(), ends_[0], &send, &sending, &error), error);
    if (compute != nullptr) compute();
    check(kvc_transfer_wait(receiving, -1, &error), error);
    check(kvc_transfer_wait(sending, -1, &error), error);
    const double seconds = now_seconds() - begin;
    kvc_transfer_destroy(sending);
    kvc_transfer_destroy(receiving);
    return seconds;
  }

 private:
  kvc_transport* ends_[2] = {};
};

void require_ucx() {
  if (kvc_has_feature("transport.ucx") == 0)
    throw std::runtime_error("there is no libkvcache_transport_ucx.so here");
}

}  // namespace

Report run_transfer(const TransferOptions& options) {
  Report report = model_report("transfer", options.model, options.common);
  CacheShape shape = shape_of(options.model, options.common);
  shape.layers = 1;
  if (options.tokens % shape.page_size != 0)
    throw std::runtime_error("--tokens: expected a multiple of the page size");
  const int64_t pages = options.tokens / shape.page_size;
  const int64_t bytes = pages * shape.page_layer_bytes();
  if (4 * bytes > kLargestPoolBytes)
    throw std::runtime_error("the pools would be too large: fewer --tokens");
  // Two sequences take turns with the pages at random places: one of them goes, so that what
  // arrives finds its pages at random places too. One page more for pages_of().
  shape.num_pages = 2 * pages;
  Cache from(shape), to(shape);
  for (Cache* cache : {&from, &to}) {
    fill(*cache, 2, options.tokens, Placement::kScattered);
    cache->remove(1);
  }
  to.remove(0);
  to.add(1);
  SequenceFiller(to).grow(1, options.tokens);
  const std::vector<IoRange> sent = pages_of(from, kSent), landing = pages_of(to, 1);
  to.remove(1);

  require_ucx();
  const uint64_t in_flight = static_cast<uint64_t>(options.in_flight) * kMebibyte;
  Socket plain;
  Chunks engine(in_flight);
  Transports ucx("ucx", in_flight), loopback("loopback", in_flight);
  const auto through = [&](Transports& transports) {
    const double seconds = transports.move(from, to, options.tokens);
    to.remove(kReceived);
    return seconds;
  };
  Rates whole, alone, inside;
  std::vector<double> digest_costs, cpu[4];
  for (int round = 0; round <= options.rounds; ++round) {
    auto each = [&, way = size_t{0}](const auto& move) mutable {
      const double before = process_seconds();
      const double rate = static_cast<double>(bytes) / move();
      if (round > 0) cpu[way].push_back(process_seconds() - before);
      ++way;
      return rate;
    };
    const double limit = each([&] { return plain.move(sent, landing); });
    const double with = each([&] { return through(ucx); });
    const double without = each([&] { return engine.move(sent, landing); });
    const double in_process = each([&] { return through(loopback); });
    if (round == 0) continue;  // Warms up.
    whole.add(with, limit);
    alone.add(without, limit);
    inside.add(in_process, limit);
    digest_costs.push_back(without / with - 1);
  }
  const Spread cost = spread_of(digest_costs);
  report["pages"] = pages;
  report["page_bytes"] = shape.page_layer_bytes();
  report["bytes"] = bytes;
  report["in_flight_mib"] = options.in_flight;
  report["rounds"] = options.rounds;
  report["ucx"] = whole.report("raw_socket_gbps");
  report["engine"] = alone.report("raw_socket_gbps");
  report["loopback"] = inside.report("raw_socket_gbps");
  // Of all threads together, which a busy machine does not change much.
  const char* const ways[] = {"raw_socket", "ucx", "engine", "loopback"};
  for (size_t way = 0; way < 4; ++way) {
    report["cpu_ms_per_gb"][ways[way]] =
        rounded(1e3 * spread_of(cpu[way]).median / (static_cast<double>(bytes) / 1e9));
  }
  report["digest_cost"] = rounded(cost.median);
  report["digest_cost_min"] = rounded(cost.min);
  report["digest_cost_max"] = rounded(cost.max);
  return report;
}

Report run_overlap(const OverlapOptions& options) {
  Report report = model_report("overlap", options.model, options.common);
  CacheShape shape = shape_of(options.model, options.common);
  shape.layers = options.layers;
  const int64_t tokens = options.tokens;
  shape.num_pages = (tokens + shape.page_size - 1) / shape.page_size;
  const int64_t bytes = tokens * shape.layers * shape.bytes_per_token_layer();
  if (2 * bytes > kLargestPoolBytes)
    throw std::runtime_error("the pools would be too large: fewer --tokens or --layers");
  require_ucx();
  Cache from(shape), to(shape);
  Activations k(shape.storage, tokens, shape.kv_heads, shape.head_dim, 2);
  Activations v(shape.storage, tokens, shape.kv_heads, shape.head_dim, 3);
  Transports ucx("ucx", static_cast<uint64_t>(options.in_flight) * kMebibyte);

  // One forward. The layers' own work is a pause, as for a host whose device computes.
  const auto prefill = [&](double seconds) {
    using Clock = std::chrono::steady_clock;
    const Clock::time_point begin = Clock::now();
    kvc_forward* forward = from.begin({kSent}, {tokens});
    for (int layer = 0; layer < shape.layers; ++layer) {
      from.append_kv(forward, layer, k.tensor(), v.tensor());
      std::this_thread::sleep_until(
          begin + std::chrono::duration_cast<Clock::duration>(
                      std::chrono::duration<double>(seconds * (layer + 1) / shape.layers)));
    }
    from.end(forward);
  };
  std::vector<double> transfers, prefills, together, hidden;
  for (int round = 0; round <= options.rounds; ++round) {
    from.add(kSent);
    prefill(0);
    const double transfer = ucx.move(from, to, tokens);
    from.remove(kSent);
    to.remove(kReceived);
    from.add(kSent);
    double begin = now_seconds();
    prefill(options.prefill * transfer);
    const double alone = now_seconds() - begin;
    from.remove(kSent);
    from.add(kSent);
    const double with = ucx.move(from, to, tokens, [&] { prefill(options.prefill * transfer); });
    from.remove(kSent);
    to.remove(kReceived);
    if (round == 0) continue;  // Warms up.
    transfers.push_back(transfer);
    prefills.push_back(alone);
    together.push_back(with);
    hidden.push_back(1 - (with - alone) / transfer);
  }
  report["tokens"] = tokens;
  report["layers"] = shape.layers;
  report["bytes"] = bytes;
  report["in_flight_mib"] = options.in_flight;
  report["rounds"] = options.rounds;
  report["prefill_factor"] = options.prefill;
  for (const auto& [name, seconds] :
       {std::pair("transfer_ms", &transfers), {"prefill_ms", &prefills}, {"both_ms", &together}})
    report[name] = rounded(1e3 * spread_of(*seconds).median);
  const Spread share = spread_of(hidden);
  report["hidden"] = rounded(share.median);
  report["hidden_min"] = rounded(share.min);
  report["hidden_max"] = rounded(share.max);
  return report;
}

}  // namespace kvc::bench
