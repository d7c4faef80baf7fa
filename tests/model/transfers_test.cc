// Transfers over a simulated network that loses, delays, repeats, reorders, damages and cuts,
// between sides that stand still for a while, as a stopped process does, or are started again: one
// seed, one course of events. Whatever happens, every transfer ends, on both sides; a sequence that
// arrives is the sender's bit for bit; one that does not leaves the cache as it was; no page is
// leaked, and none that was given to others is written any more.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "src/capi/call.h"
#include "src/transfer/loopback.h"
#include "src/transfer/transport.h"
#include "tests/model/allocation_failures.h"
#include "tests/model/host_tensor.h"
#include "tests/model/random.h"
#include "tests/model/seeds.h"

namespace kvc::test {
namespace {

constexpr int64_t kMilli = 1'000'000;
using Bytes = std::vector<uint8_t>;

// What a run is made of, by its seed.
struct Shape {
  int32_t page_size;
  int32_t k_dim, kv_heads;
  bool has_window, has_state;
  // Tensor-parallel: these heads are a run of the model's. 0: they are all.
  int32_t first_head = 0, all_heads = 0;
};

// What fills a sequence, however forwards are cut: rows follow from the tokens up to theirs, as
// those of a model do, or from `seed` where no ids are given.
struct Content {
  uint64_t seed = 0;
  std::vector<int32_t> ids;

  // Of the rows of this token in this layer.
  uint64_t seed_of(int64_t token, int32_t layer) const {
    uint64_t hash = ids.empty() ? seed : 1;
    for (int64_t i = 0; i <= token && !ids.empty(); ++i)
      hash = hash * 1'000'003 + static_cast<uint64_t>(ids[i]) + 1;
    return hash * 4096 + static_cast<uint64_t>(token * 3 + layer);
  }
};

enum class After { kEnd, kAbort };

class SimulatedCache {
 public:
  SimulatedCache(const Shape& shape, bool is_page_first, int64_t num_pages) {
    std::vector<kvc_layer> layers(2);
    for (kvc_layer& layer : layers) {
      layer.struct_size = sizeof layer;
      layer.num_q_heads = layer.num_kv_heads = shape.kv_heads;
      layer.k_dim = layer.v_dim = shape.k_dim;
      layer.k_dtype = layer.v_dtype = {kDLBfloat, 16, 1};
    }
    if (shape.has_window) layers[1].window = 9;
    int64_t state_shape[] = {3};
    kvc_state_spec state{};
    state.struct_size = sizeof state;
    state.ndim = 1;
    state.shape = state_shape;
    state.dtype = {kDLFloat, 32, 1};
    if (shape.has_state) {
      kvc_layer& layer = layers.emplace_back();
      layer.struct_size = sizeof layer;
      layer.kind = KVC_LAYER_STATE;
      layer.num_states = 1;
      layer.states = &state;
    }
    kvc_config config{};
    (void)kvc_config_init(&config, sizeof config);
    config.page_size = shape.page_size;
    config.num_layers = static_cast<int32_t>(layers.size());
    config.layers = layers.data();
    config.num_pages = num_pages;
    config.num_threads = 1;
    config.pool_layout = is_page_first ? KVC_POOL_PAGE_FIRST : KVC_POOL_LAYER_FIRST;
    kvc_error error{};
    kvc_plan* plan = nullptr;
    if (kvc_plan_create(&config, &plan, &error) != KVC_OK ||
        kvc_cache_create(plan, &cache_, &error) != KVC_OK)
      throw std::runtime_error(error.message);
    kvc_plan_destroy(plan);
    shape_ = shape;
  }
  ~SimulatedCache() { kvc_cache_destroy(cache_); }
  SimulatedCache(const SimulatedCache&) = delete;
  SimulatedCache& operator=(const SimulatedCache&) = delete;

  kvc_cache* get() const { return cache_; }
  kvc::Cache& cache() const { return cache_->cache; }

  // Tokens [begin, begin + count) with their rows.
  struct Tokens {
    Tokens(const SimulatedCache& cache, kvc_seq seq, const Content& content, int64_t begin,
           int64_t count)
        : seq(seq), ids(content.ids.empty() ? nullptr : content.ids.data() + begin), count(count) {
      const Shape& shape = cache.shape_;
      const int32_t all_heads = shape.all_heads != 0 ? shape.all_heads : shape.kv_heads;
      const auto head_bytes = static_cast<size_t>(shape.k_dim) * sizeof(float);
      const size_t row_bytes = static_cast<size_t>(shape.kv_heads) * head_bytes;
      for (int32_t layer = 0; layer < 2; ++layer) {
        const std::vector<int64_t> sizes{count, shape.kv_heads, shape.k_dim};
        auto* to = static_cast<std::byte*>(rows.emplace_back(Elem::kF32, sizes).dl()->data);
        for (int64_t i = 0; i < count; ++i, to += row_bytes) {
          Random random(content.seed_of(begin + i, layer));
          HostTensor row(Elem::kF32, {1, all_heads, shape.k_dim});
          row.fill_random(random);
          const auto* from = static_cast<const std::byte*>(row.dl()->data);
          std::memcpy(to, from + static_cast<size_t>(shape.first_head) * head_bytes, row_bytes);
        }
      }
      Random random(content.seed_of(begin + count - 1, 2));
      state.fill_random(random);
    }

    const kvc_seq seq;
    const int32_t* const ids;
    const int64_t count;
    std::deque<HostTensor> rows;  // [layer]
    HostTensor state{Elem::kF32, {1, 3}};
  };

  // Appends tokens; false: there are no pages. A call that has no memory has changed nothing, and
  // is made again.
  bool append(Tokens& tokens, After after = After::kEnd) {
    kvc_error error{};
    const auto called = [&](auto call) {
      const kvc_status status = call();
      return status == KVC_E_NO_MEMORY ? call() : status;
    };
    kvc_forward_desc desc{};
    desc.struct_size = sizeof desc;
    desc.num_seqs = 1;
    desc.seqs = &tokens.seq;
    desc.append_lengths = &tokens.count;
    desc.tokens = tokens.ids;
    kvc_forward* forward = nullptr;
    const kvc_status begun =
        called([&] { return kvc_forward_begin(cache_, &desc, &forward, &error); });
    if (begun == KVC_E_NO_PAGES) return false;
    require(begun, error);
    for (int32_t layer = 0; layer < 2; ++layer) {
      const DLTensor* rows = tokens.rows[static_cast<size_t>(layer)].dl();
      require(called([&] { return kvc_kv_append(forward, layer, rows, rows, &error); }), error);
    }
    if (shape_.has_state)
      require(called([&] { return kvc_state_set(forward, 2, 0, tokens.state.dl(), &error); }),
              error);
    require(called([&] {
              return after == After::kEnd ? kvc_forward_end(forward, &error)
                                          : kvc_forward_abort(forward, &error);
            }),
            error);
    return true;
  }
  bool append(kvc_seq seq, const Content& content, int64_t begin, int64_t count,
              After after = After::kEnd) {
    (void)kvc_seq_add(cache_, seq, nullptr);
    Tokens tokens(*this, seq, content, begin, count);
    return append(tokens, after);
  }

  Bytes saved(kvc_seq seq) const {
    kvc_save_desc desc{};
    desc.struct_size = sizeof desc;
    uint64_t bytes = 0;
    kvc_error error{};
    require(kvc_seq_save(cache_, 1, &seq, &desc, nullptr, &bytes, &error), error);
    Bytes file(bytes);
    desc.data = file.data();
    desc.size = file.size();
    require(kvc_seq_save(cache_, 1, &seq, &desc, nullptr, &bytes, &error), error);
    return file;
  }

  // Rows visible to the next query, and the state. Pages of another size end elsewhere, so what
  // they have in front of a window may be there or not.
  std::vector<Bytes> visible_rows(kvc_seq seq, int64_t length) const {
    std::vector<Bytes> found;
    for (int32_t layer = 0; layer < 2; ++layer) {
      const int64_t begin = layer == 1 && shape_.has_window ? std::max<int64_t>(0, length - 8) : 0;
      HostTensor k(Elem::kF32, {length - begin, shape_.kv_heads, shape_.k_dim});
      HostTensor v(Elem::kF32, {length - begin, shape_.kv_heads, shape_.k_dim});
      const int64_t row = int64_t{shape_.kv_heads} * shape_.k_dim * 4;
      const auto rows = [&](HostTensor& tensor) {
        return kernels::TokenRows{static_cast<std::byte*>(tensor.dl()->data), row,
                                  int64_t{shape_.k_dim} * 4, kernels::DType::kF32};
      };
      cache().debug.read_tokens(seq, begin, length, {{layer, rows(k), rows(v)}}, kOwnStream);
      for (HostTensor* tensor : {&k, &v}) {
        const auto* bytes = static_cast<const uint8_t*>(tensor->dl()->data);
        found.emplace_back(bytes, bytes + (length - begin) * row);
      }
    }
    if (!shape_.has_state) return found;
    HostTensor state(Elem::kF32, {3});
    kvc_error error{};
    require(kvc_debug_get_state(cache_, seq, 2, 0, state.dl(), nullptr, &error), error);
    const auto* bytes = static_cast<const uint8_t*>(state.dl()->data);
    found.emplace_back(bytes, bytes + 12);
    return found;
  }

  int64_t used() const {
    kvc_stats stats{};
    stats.struct_size = sizeof stats;
    (void)kvc_cache_stats_get(cache_, &stats, nullptr);
    return stats.pages_used;
  }

  void check() const {
    kvc_error error{};
    require(kvc_cache_check(cache_, &error), error);
  }

  static void require(kvc_status status, const kvc_error& error) {
    if (status != KVC_OK) throw std::runtime_error(error.message);
  }

 private:
  kvc_cache* cache_ = nullptr;
  Shape shape_{};
};

class TransferRun {
 public:
  explicit TransferRun(uint64_t seed)
      : random_(seed),
        faults_(random_faults()),
        network_(std::make_shared<LoopbackNetwork>(seed * 977 + 5, faults_)),
        from_shape_(random_shape()),
        shape_(from_shape_),
        pages_(200) {
    if (below(3) == 0) shape_.page_size = random_shape().page_size;
    sender_ = std::make_unique<SimulatedCache>(from_shape_, false, pages_);
    receiver_ = std::make_unique<SimulatedCache>(shape_, below(2) == 0, pages_);
    open(&from_, "prefill");
    open(&to_, "decode");
    for (kvc_seq seq = 0; seq < 4; ++seq) {
      const auto count = static_cast<int64_t>(1 + below(60));
      Content content = random_content(count);
      if (!sender_->append(seq, content, 0, count)) break;
      contents_.push_back(std::move(content));
      lengths_.push_back(count);
    }
    // A sequence of its own, whose rows a late payload would spoil.
    (void)receiver_->append(1000, {random_.next() >> 20, {}}, 0, 20);
    own_ = receiver_->saved(1000);
  }

  int64_t run(int64_t operations) {
    for (int64_t i = 0; i < operations; ++i) step();
    frozen_ = nullptr;
    // Everything comes to its end: the longest is a deadline.
    for (int i = 0; i < 8000 && is_running(); ++i) advance();
    if (is_running()) throw std::runtime_error("transfers never ended");
    network_->set_faults({});
    (void)kvc_cache_trim(sender_->get(), nullptr, nullptr);
    (void)kvc_cache_trim(receiver_->get(), nullptr, nullptr);
    check();
    for (kvc_seq seq = 0; seq < static_cast<kvc_seq>(lengths_.size()); ++seq)
      (void)kvc_seq_remove(sender_->get(), seq, nullptr);
    (void)kvc_cache_trim(sender_->get(), nullptr, nullptr);
    if (sender_->used() != 0) throw std::runtime_error("the sender has leaked pages");
    for (Transport* transport : {from_.get(), to_.get()}) transport->progress(0);
    for (const Told& one : told_) {
      if (one.num_times != 1) throw std::runtime_error("the end of a transfer was not told once");
    }
    count_damage(*to_);
    return operations;
  }

  std::string describe() const {
    return std::to_string(num_arrived_) + " arrived, " + std::to_string(num_failed_) +
           " failed, faults: drop " + std::to_string(faults_.drop) + " delay " +
           std::to_string(faults_.delay) + " duplicate " + std::to_string(faults_.duplicate) +
           " corrupt " + std::to_string(faults_.corrupt) + " truncate " +
           std::to_string(faults_.truncate) + " reset " + std::to_string(faults_.reset);
  }
  const Coverage& coverage() const { return coverage_; }

 private:
  bool is_running() const {
    return !open_.empty() || from_->num_open() != 0 || to_->num_open() != 0;
  }

  struct One {
    kvc_seq from, to;
    std::shared_ptr<Transfer> receiving, sending;  // sending: null once it is over
    Content content;
    int64_t length;
    bool publishes;
    int64_t computed = 0;  // Tokens that the sender has.
    bool is_lost = false;  // What it had computed is gone.
  };

  // What the host program was told of the end of a transfer.
  struct Told {
    Transport* transport;
    std::vector<std::shared_ptr<Transfer>> parts;
    int32_t num_times = 0;
  };

  void tell_end_of(Transport* transport, const std::shared_ptr<Transfer>& transfer) {
    Told& told = told_.emplace_back(Told{transport, {transfer}});
    const auto fn = [](void* user, kvc_transfer*, kvc_status status) {
      Told& one = *static_cast<Told*>(user);
      const TransferReport report = one.transport->report(one.parts);
      const bool has_ended =
          report.state >= TransferState::kArrived && report.state != TransferState::kEnding;
      one.num_times += has_ended && report.end.status == status ? 1 : 100;
    };
    EndCallbacks callback{std::make_shared<EndCallback>(fn, &told, nullptr, 1)};
    transport->call_at_end(std::move(callback), told.parts);
  }

  size_t below(size_t count) {
    return static_cast<size_t>(random_.range(0, static_cast<int64_t>(count) - 1));
  }

  Content random_content(int64_t count) {
    Content content{random_.next() >> 20, {}};
    if (below(2) == 0)
      for (int64_t i = 0; i < count; ++i) content.ids.push_back(static_cast<int32_t>(below(5)));
    return content;
  }

  LoopbackFaults random_faults() {
    LoopbackFaults faults;
    faults.latency = static_cast<int64_t>(below(3)) * kMilli;
    faults.most_delay = static_cast<int64_t>(1 + below(3000)) * kMilli;
    const auto maybe = [&](int32_t most) {
      return below(2) == 0 ? 0 : static_cast<int32_t>(below(most));
    };
    faults.drop = maybe(300);
    faults.delay = maybe(500);
    faults.duplicate = maybe(300);
    faults.corrupt = maybe(200);
    faults.truncate = maybe(100);
    faults.reset = maybe(30);
    return faults;
  }

  Shape random_shape() {
    const int32_t page_sizes[] = {1, 4, 16, 48};
    return {page_sizes[below(4)], below(2) == 0 ? 8 : 5, static_cast<int32_t>(1 + below(3)),
            below(2) == 0, below(2) == 0};
  }

  void open(std::shared_ptr<Transport>* out, const char* name) {
    TransportOptions options;
    options.has_thread = false;
    if (below(3) == 0) options.limits.bytes_in_flight = 1;
    if (below(3) == 0) options.tombstone = 1;
    *out = Transport::open(std::make_unique<LoopbackEngine>(network_, name), options);
  }

  void step() {
    if (frozen_ != nullptr || below(16) == 0) {
      freeze();
      return;
    }
    switch (below(11)) {
      case 0:
      case 1: start(); break;
      case 8:
      case 9:
      case 10: compute(); break;
      case 2: cancel(); break;
      case 3: use_sender(); break;
      case 4: use_receiver(); break;
      case 5: restart(); break;
      default: advance();
    }
    check();
  }

  void start() {
    if (lengths_.empty() || open_.size() > 3) return;
    One one{};
    const bool as_computed = below(2) == 0;
    if (as_computed) {
      one.from = next_id_++;
      one.length = static_cast<int64_t>(1 + below(60));
      one.content = random_content(one.length);
      one.computed = static_cast<int64_t>(below(static_cast<size_t>(one.length) + 1));
      (void)kvc_seq_add(sender_->get(), one.from, nullptr);
      if (one.computed != 0 && !sender_->append(one.from, one.content, 0, one.computed)) {
        (void)kvc_seq_remove(sender_->get(), one.from, nullptr);
        return;
      }
    } else {
      one.from = static_cast<kvc_seq>(below(lengths_.size()));
      one.length = one.computed = lengths_[one.from];
      one.content = contents_[one.from];
      if (one.length == 0) return;
    }
    one.to = next_id_++;
    ReceiveRequest request;
    request.seq = one.to;
    request.num_tokens = one.length;
    request.publishes = one.publishes = below(2) == 0;
    request.lifetime = static_cast<int64_t>(1 + below(20'000)) * kMilli;
    (void)kvc_cache_trim(receiver_->get(), nullptr, nullptr);  // What has ended is over.
    const int64_t before = receiver_->used();
    try {
      one.receiving = receiver_->cache().transfers.receive(to_, request).front();
    } catch (const Error& error) {
      ++coverage_["receive"][error.status()];
      if (error.status() != KVC_E_NO_PAGES) throw;
      if (receiver_->used() != before) throw std::runtime_error("a refused receive keeps pages");
      if (as_computed) (void)kvc_seq_remove(sender_->get(), one.from, nullptr);
      return;
    }
    tell_end_of(to_.get(), one.receiving);
    const Ticket ticket = decode_ticket(CacheTransfers::ticket_of(*one.receiving, *to_));
    SendRequest send;
    send.seq = one.from;
    send.as_computed = as_computed;
    send.lifetime = request.lifetime;
    try {
      one.sending = sender_->cache().transfers.send(from_, ticket, send);
      tell_end_of(from_.get(), one.sending);
    } catch (const Error& error) {
      ++coverage_["send"][error.status()];
    }
    open_.push_back(std::move(one));
  }

  void cancel() {
    if (open_.empty()) return;
    const One& one = open_[below(open_.size())];
    if (below(2) == 0) {
      to_->cancel(*one.receiving, KVC_E_CANCELLED, "the receiver has had enough");
    } else if (one.sending != nullptr) {
      from_->cancel(*one.sending, KVC_E_CANCELLED, "the sender has had enough");
    }
  }

  // A forward adds to a sequence that is sent as it is computed, or something takes from it.
  void compute() {
    for (One& one : open_) {
      if (one.computed == one.length || one.is_lost || below(2) == 0) continue;
      const auto left = static_cast<size_t>(one.length - one.computed);
      const auto count = static_cast<int64_t>(1 + below(left));
      switch (below(14)) {
        case 0:
          one.is_lost = sender_->append(one.from, one.content, one.computed, count, After::kAbort);
          break;
        case 1:
          one.is_lost = one.computed > 0 &&
                        kvc_seq_pop(sender_->get(), one.from, one.computed, nullptr) == KVC_OK;
          break;
        case 2: one.is_lost = kvc_seq_remove(sender_->get(), one.from, nullptr) == KVC_OK; break;
        case 3: {
          // Others that share its pages take nothing from it.
          const kvc_seq child = next_id_++;
          (void)kvc_seq_fork(sender_->get(), one.from, child, -1, nullptr);
          (void)sender_->append(child, {random_.next() >> 20, {}}, one.computed, 1);
          (void)kvc_seq_remove(sender_->get(), child, nullptr);
          break;
        }
        default:
          if (sender_->append(one.from, one.content, one.computed, count)) one.computed += count;
      }
      sender_->check();
    }
  }

  // The sender's sequences change while they travel.
  void use_sender() {
    if (lengths_.empty()) return;
    const auto seq = static_cast<kvc_seq>(below(lengths_.size()));
    (void)kvc_seq_remove(sender_->get(), seq, nullptr);
    const auto count = static_cast<int64_t>(1 + below(60));
    contents_[seq] = {random_.next() >> 20, {}};
    // Transfers may hold all pages.
    lengths_[seq] = sender_->append(seq, contents_[seq], 0, count) ? count : 0;
  }

  // Pages that were given up go to somebody else at once.
  void use_receiver() {
    const kvc_seq seq = 2000;
    (void)kvc_seq_remove(receiver_->get(), seq, nullptr);
    if (!receiver_->append(seq, {random_.next() >> 20, {}}, 0,
                           static_cast<int64_t>(1 + below(100)))) {
      (void)kvc_seq_remove(receiver_->get(), seq, nullptr);
      other_.clear();
      return;
    }
    other_ = receiver_->saved(seq);
  }

  // A side goes, with all that it had open, and another process has its address.
  void restart() {
    if (below(4) != 0) return;
    const bool is_sender = below(2) == 0;
    std::shared_ptr<Transport>& transport = is_sender ? from_ : to_;
    transport->shut_down();
    if (!is_sender) count_damage(*transport);
    transport.reset();
    for (One& one : open_) {
      if (is_sender) one.sending.reset();
    }
    open(&transport, is_sender ? "prefill" : "decode");
    settle();
  }

  // What digests have found.
  void count_damage(const Transport& receiver) {
    const auto damaged = static_cast<int64_t>(receiver.counters().payloads_damaged);
    if (damaged != 0) coverage_["damaged payloads"][KVC_E_CORRUPT] += damaged;
  }

  // One side stands still for some rounds: it does nothing, and what is sent to it waits.
  void freeze() {
    if (frozen_ == nullptr) {
      frozen_ = below(2) == 0 ? from_.get() : to_.get();
    } else if (below(6) == 0) {
      frozen_ = nullptr;
    }
    advance();
    if (frozen_ == to_.get()) return;
    // The receiver lives on, and gives pages that it has to others.
    use_receiver();
    receiver_->check();
  }

  void advance() {
    // What waits for a side that stands still is due already.
    const int64_t due = frozen_ != nullptr ? INT64_MAX : network_->next_due();
    const int64_t now = network_->now();
    network_->set_now(std::max(now + 1, std::min(due, now + 250 * kMilli)));
    for (Transport* transport : {from_.get(), to_.get()})
      if (transport != frozen_) transport->progress(0);
    if (frozen_ == nullptr) settle();
  }

  // Looks at what has come to its end.
  void settle() {
    (void)kvc_cache_trim(sender_->get(), nullptr, nullptr);
    (void)kvc_cache_trim(receiver_->get(), nullptr, nullptr);
    for (size_t i = 0; i < open_.size();) {
      One& one = open_[i];
      kvc_seq_info info{};
      info.struct_size = sizeof info;
      const kvc_status there = kvc_seq_info_get(receiver_->get(), one.to, &info, nullptr);
      int64_t length = 0;
      const bool is_free = kvc_seq_pop(receiver_->get(), one.to, 0, nullptr) == KVC_OK;
      (void)kvc_seq_length(receiver_->get(), one.to, &length, nullptr);
      if (there == KVC_OK && !is_free) {
        ++i;
        continue;  // on its way
      }
      if (one.computed != one.length || one.is_lost || one.from >= 4)
        (void)kvc_seq_remove(sender_->get(), one.from, nullptr);
      if (is_free) {
        if (one.computed != one.length)
          throw std::runtime_error("a sequence has arrived that was never computed");
        ++num_arrived_;
        ++coverage_["transfer"][KVC_OK];
        ++coverage_[one.from < 4 ? "whole" : "as computed"][KVC_OK];
        compare(one);
        (void)kvc_seq_remove(receiver_->get(), one.to, nullptr);
      } else {
        ++num_failed_;
        ++coverage_["transfer"][to_->report(*one.receiving).end.status];
      }
      open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }

  // The file after a cache has loaded it under another id.
  Bytes reloaded(const Bytes& file, uint64_t flags) const {
    const kvc_seq seq = 7;
    SimulatedCache again(shape_, false, pages_);
    kvc_load_desc desc{};
    desc.struct_size = sizeof desc;
    desc.flags = flags;
    desc.data = file.data();
    desc.size = file.size();
    kvc_error error{};
    SimulatedCache::require(kvc_seq_load(again.get(), &desc, 1, &seq, nullptr, &error), error);
    return again.saved(seq);
  }

  // A cache like the receiver's that has computed the sequence itself.
  void compare(const One& one) {
    SimulatedCache oracle(shape_, false, pages_);
    if (!oracle.append(one.to, one.content, 0, one.length))
      throw std::runtime_error("the oracle has no pages");
    const Bytes arrived = receiver_->saved(one.to), expected = oracle.saved(one.to);
    if (receiver_->visible_rows(one.to, one.length) != oracle.visible_rows(one.to, one.length))
      throw std::runtime_error("sequence " + std::to_string(one.to) + " has other rows");
    if (shape_.has_window && shape_.page_size != from_shape_.page_size) return;
    const bool is_same =
        reloaded(arrived, KVC_LOAD_NO_PUBLISH) == reloaded(expected, KVC_LOAD_NO_PUBLISH) &&
        (!one.publishes || reloaded(arrived, 0) == reloaded(expected, 0));
    if (!is_same)
      throw std::runtime_error("sequence " + std::to_string(one.to) +
                               " is not the one that was sent");
  }

  void check() {
    sender_->check();
    receiver_->check();
    if (receiver_->saved(1000) != own_)
      throw std::runtime_error("a transfer has written pages of another sequence");
    if (!other_.empty() && receiver_->saved(2000) != other_)
      throw std::runtime_error("a transfer has written pages that were given to another sequence");
  }

  Random random_;
  LoopbackFaults faults_;
  std::shared_ptr<LoopbackNetwork> network_;
  Shape from_shape_, shape_;  // Of the sender, of the receiver.
  int64_t pages_;
  std::unique_ptr<SimulatedCache> sender_, receiver_;
  std::deque<Told> told_;  // Transports tell of what is open when they go.
  std::shared_ptr<Transport> from_, to_;
  const Transport* frozen_ = nullptr;
  std::vector<Content> contents_;  // [sequence of the sender]
  std::vector<int64_t> lengths_;
  std::vector<One> open_;
  Bytes own_, other_;
  kvc_seq next_id_ = 10'000;
  int64_t num_arrived_ = 0, num_failed_ = 0;
  Coverage coverage_;
};

// A transfer whose allocations fail, one after the other.
struct FailingCase {
  const char* name;
  Shape to;
  std::vector<Shape> from;  // [sender] Tensor-parallel ranks where there are several.
  TransferRanks ranks;
  bool as_computed;
};

class FailingTransfer {
 public:
  // Calls of which an allocation fails.
  enum Stage { kReceive, kSend, kOnItsWay, kNumStages };
  static constexpr kvc_seq kSent = 0, kOwn = 9;
  static constexpr int64_t kLength = 30, kComputed = 14, kPages = 100;

  explicit FailingTransfer(const FailingCase& what)
      : what_(what), target_(what.to, true, kPages), oracle_(what.to, true, kPages) {
    for (const Shape& shape : what.from) {
      auto& source = sources_.emplace_back(std::make_unique<SimulatedCache>(shape, false, kPages));
      (void)source->append(kSent, content_, 0, kLength);
      sent_.push_back(source->saved(kSent));
      used_.push_back(source->used());
    }
    (void)oracle_.append(kSent, content_, 0, kLength);
    (void)target_.append(kOwn, {2, {}}, 0, 11);
    (void)kvc_prefix_reset(target_.get(), nullptr);  // As behind each transfer.
    own_ = target_.saved(kOwn);
    target_used_ = target_.used();
  }

  // Returns whether the n-th allocation of the stage was there, and failed.
  bool run(Stage stage, int64_t n) {
    prepare();
    const auto network = std::make_shared<LoopbackNetwork>(1, LoopbackFaults{});
    TransportOptions options;
    options.has_thread = false;
    const auto from = Transport::open(std::make_unique<LoopbackEngine>(network, "a"), options);
    const auto to = Transport::open(std::make_unique<LoopbackEngine>(network, "b"), options);
    ReceiveRequest receive;
    receive.seq = kSent;
    receive.num_tokens = kLength;
    receive.publishes = true;
    receive.ranks = what_.ranks;
    bool has_failed = false, is_refused = false;
    std::vector<std::shared_ptr<Transfer>> receiving, sending;
    sending.reserve(sources_.size());
    const auto arm = [&](Stage now) {
      if (now == stage) arm_allocation_failure(n);
    };
    const auto advance = [&](int rounds) {
      for (int i = 0; i < rounds; ++i) {
        network->set_now(network->now() + 200 * kMilli);
        from->progress(0);
        to->progress(0);
        for (const auto& source : sources_) source->cache().transfers.try_settle();
        target_.cache().transfers.try_settle();
      }
    };
    try {
      arm(kReceive);
      receiving = target_.cache().transfers.receive(to, receive);
      has_failed |= disarm_allocation_failure();
      const Ticket ticket = decode_ticket(CacheTransfers::ticket_of(*receiving.front(), *to));
      SendRequest send;
      send.seq = kSent;
      send.as_computed = what_.as_computed;
      send.num_ranks = what_.ranks.num_sender_ranks;
      arm(kSend);
      for (const auto& source : sources_) {
        sending.push_back(source->cache().transfers.send(from, ticket, send));
        ++send.rank;
      }
      has_failed |= disarm_allocation_failure();
      arm(kOnItsWay);
      for (int part = 0; part < 2; ++part) {
        advance(10);
        for (size_t i = 0; what_.as_computed && i < sources_.size(); ++i)
          (void)sources_[i]->append(left_[2 * i + static_cast<size_t>(part)]);
      }
      advance(300);  // Longer than any deadline.
      has_failed |= disarm_allocation_failure();
      EXPECT_EQ(from->num_open() + to->num_open(), 0);
    } catch (const std::bad_alloc&) {
      has_failed |= disarm_allocation_failure();
      is_refused = true;
    }
    from->shut_down();
    to->shut_down();
    check(stage, has_failed, is_refused);
    return has_failed;
  }

 private:
  // With `as_computed` the senders have the first tokens alone.
  void prepare() {
    left_.clear();
    if (!what_.as_computed) return;
    for (const auto& source : sources_) {
      (void)kvc_seq_remove(source->get(), kSent, nullptr);
      (void)kvc_prefix_reset(source->get(), nullptr);
      (void)source->append(kSent, content_, 0, kComputed);
      left_.emplace_back(*source, kSent, content_, kComputed, 9);
      left_.emplace_back(*source, kSent, content_, kComputed + 9, kLength - kComputed - 9);
    }
  }

  void check(Stage stage, bool has_failed, bool is_refused) {
    for (size_t i = 0; i < sources_.size(); ++i) {
      SimulatedCache& source = *sources_[i];
      source.cache().transfers.try_settle();
      source.check();
      int64_t length = 0;
      (void)kvc_seq_length(source.get(), kSent, &length, nullptr);
      if (length < kLength) (void)source.append(kSent, content_, length, kLength - length);
      EXPECT_EQ(source.saved(kSent), sent_[i]);
      EXPECT_EQ(source.used(), used_[i]);
    }
    target_.cache().transfers.try_settle();
    target_.check();
    EXPECT_EQ(target_.saved(kOwn), own_);
    int64_t length = 0;
    const bool is_there = kvc_seq_length(target_.get(), kSent, &length, nullptr) == KVC_OK;
    if (is_there) {
      EXPECT_EQ(target_.visible_rows(kSent, kLength), oracle_.visible_rows(kSent, kLength));
      // Pages of one size keep the same of a window.
      if (what_.from.front().page_size == what_.to.page_size) {
        EXPECT_EQ(target_.saved(kSent), oracle_.saved(kSent));
      }
      ASSERT_EQ(kvc_seq_remove(target_.get(), kSent, nullptr), KVC_OK);
    }
    EXPECT_EQ(target_.used(), target_used_);
    (void)kvc_prefix_reset(target_.get(), nullptr);
    // A send whose first word could not be said has begun, and fails like one on its way.
    EXPECT_TRUE(stage == kSend || is_refused == (has_failed && stage == kReceive));
    EXPECT_TRUE(has_failed || is_there);
  }

  const FailingCase& what_;
  const Content content_{1, std::vector<int32_t>(kLength, 3)};
  SimulatedCache target_, oracle_;
  std::vector<std::unique_ptr<SimulatedCache>> sources_;
  std::deque<SimulatedCache::Tokens> left_;  // [sender][part]
  std::vector<Bytes> sent_;
  std::vector<int64_t> used_;
  Bytes own_;
  int64_t target_used_ = 0;
};

// Every single allocation of a transfer fails once: those of recv and send change nothing then, and
// those on its way let both sides end.
TEST(TransfersWithoutMemory, EndWholeOrNotAtAll) {
  const Shape whole{4, 5, 2, true, true};
  const Shape low{4, 5, 1, true, true, 0, 2}, high{4, 5, 1, true, true, 1, 2};
  const auto in_pages_of = [](int32_t page_size, Shape shape) {
    shape.page_size = page_size;
    return shape;
  };
  const FailingCase cases[] = {
      {"whole", whole, {whole}, {}, false},
      {"to larger pages", in_pages_of(6, whole), {whole}, {}, false},
      {"to smaller pages", in_pages_of(1, whole), {whole}, {}, false},
      {"from two ranks to larger pages", in_pages_of(6, whole), {low, high}, {0, 1, 2}, false},
      {"to the second of two ranks", high, {whole}, {1, 2, 1}, false},
      {"as computed", whole, {whole}, {}, true},
      {"as computed to larger pages", in_pages_of(6, whole), {whole}, {}, true},
      {"as computed from two ranks", whole, {low, high}, {0, 1, 2}, true},
  };
  for (const FailingCase& what : cases) {
    SCOPED_TRACE(what.name);
    FailingTransfer transfer(what);
    int64_t failed[FailingTransfer::kNumStages] = {};
    for (int stage = 0; stage < FailingTransfer::kNumStages; ++stage) {
      for (int64_t n = 1;; ++n) {
        SCOPED_TRACE("stage " + std::to_string(stage) + ", allocation " + std::to_string(n));
        if (!transfer.run(static_cast<FailingTransfer::Stage>(stage), n)) break;
        ++failed[stage];
        ASSERT_FALSE(HasFailure());
      }
      ASSERT_FALSE(HasFailure());
    }
    EXPECT_GT(failed[FailingTransfer::kReceive], 10);
    EXPECT_GT(failed[FailingTransfer::kSend], 10);
    EXPECT_GT(failed[FailingTransfer::kOnItsWay], 50);
  }
}

// Nothing comes through for longer than either side waits. Both end, nothing lands afterwards, and
// the next transfer arrives.
TEST(SilentTransfers, BothSidesEndAndGoOn) {
  const Shape shape{16, 80, 3, false, true};
  int64_t num_cut = 0;
  for (int64_t cut_at = 0; cut_at < 12; ++cut_at) {
    SCOPED_TRACE("cut after " + std::to_string(cut_at) + " rounds");
    SimulatedCache source(shape, false, 100), target(shape, true, 100);
    const Content content{1, {}};
    ASSERT_TRUE(source.append(0, content, 0, 500));
    const auto network = std::make_shared<LoopbackNetwork>(7, LoopbackFaults{.latency = kMilli});
    TransportOptions options;
    options.has_thread = false;
    options.limits.bytes_in_flight = 1;
    const auto from = Transport::open(std::make_unique<LoopbackEngine>(network, "a"), options);
    const auto to = Transport::open(std::make_unique<LoopbackEngine>(network, "b"), options);
    ReceiveRequest receive;
    receive.num_tokens = 500;
    std::shared_ptr<Transfer> receiving, sending;
    const auto begin = [&] {
      receiving = target.cache().transfers.receive(to, receive).front();
      const Ticket ticket = decode_ticket(CacheTransfers::ticket_of(*receiving, *to));
      sending = source.cache().transfers.send(from, ticket, SendRequest{});
    };
    const auto advance = [&](int64_t by) {
      network->set_now(network->now() + by);
      from->progress(0);
      to->progress(0);
      source.cache().transfers.try_settle();
      target.cache().transfers.try_settle();
    };
    begin();
    for (int64_t i = 0; i < cut_at; ++i) advance(kMilli);
    if (to->report(*receiving).state == TransferState::kDone) break;
    ++num_cut;
    network->set_faults({.drop = 1000});
    const int64_t cut = network->now();
    while (from->num_open() + to->num_open() != 0) {
      advance(10 * kMilli);
      // A receiver that no sender has met waits for its deadline of 30 s, others for 5 s of silence
      // and 1 s of what is on its way.
      ASSERT_LT(network->now() - cut, (cut_at < 2 ? 32'000 : 7'000) * kMilli);
    }
    int64_t length = 0;
    if (kvc_seq_length(target.get(), 0, &length, nullptr) == KVC_OK) {
      // All had come, and the sender was not told.
      EXPECT_EQ(target.visible_rows(0, 500), source.visible_rows(0, 500));
      ASSERT_EQ(kvc_seq_remove(target.get(), 0, nullptr), KVC_OK);
    }
    EXPECT_EQ(target.used(), 0);
    ASSERT_TRUE(target.append(5, {77, {}}, 0, 700));  // Pages that the transfer had.
    const Bytes others = target.saved(5);
    network->set_faults({.latency = kMilli});
    for (int i = 0; i < 100; ++i) advance(10 * kMilli);
    EXPECT_EQ(target.saved(5), others) << "late bytes";
    begin();
    for (int i = 0; i < 2000 && from->num_open() + to->num_open() != 0; ++i) advance(kMilli);
    EXPECT_EQ(target.visible_rows(0, 500), source.visible_rows(0, 500));
    EXPECT_EQ(target.saved(5), others);
    source.check();
    target.check();
  }
  EXPECT_GT(num_cut, 5);
}

TEST(RandomTransfers, EveryOneEndsWholeOrNotAtAll) {
  const bool is_release = environment("KVC_RELIABILITY", 0) != 0;
  SeedResult result = run_seeds<TransferRun>("transfers", 1, is_release ? 1'000'000 : 10'000, 25);
  result.expect_met("as computed", {KVC_OK});
  result.expect_met("transfer", {KVC_OK, KVC_E_TIMEOUT, KVC_E_CANCELLED, KVC_E_PEER});
  result.expect_met("damaged payloads", {KVC_E_CORRUPT});
}

}  // namespace
}  // namespace kvc::test
