// Transfers over a simulated network that loses, delays, repeats, reorders, damages and cuts,
// between sides that stand still for a while, as a stopped process does, or are started again: one
// seed, one course of events. Whatever happens, every transfer ends, on both sides; a sequence that
// arrives is the sender's bit for bit; one that does not leaves the cache as it was; no page is
// leaked, and none that was given to others is written any more.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
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

  // Appends tokens [begin, begin + count); false: there are no pages.
  bool append(kvc_seq seq, const Content& content, int64_t begin, int64_t count,
              After after = After::kEnd) {
    (void)kvc_seq_add(cache_, seq, nullptr);
    kvc_forward_desc desc{};
    desc.struct_size = sizeof desc;
    desc.num_seqs = 1;
    desc.seqs = &seq;
    desc.append_lengths = &count;
    desc.tokens = content.ids.empty() ? nullptr : content.ids.data() + begin;
    kvc_forward* forward = nullptr;
    kvc_error error{};
    const kvc_status begun = kvc_forward_begin(cache_, &desc, &forward, &error);
    if (begun == KVC_E_NO_PAGES) return false;
    require(begun, error);
    for (int32_t layer = 0; layer < 2; ++layer) {
      HostTensor rows(Elem::kF32, {count, shape_.kv_heads, shape_.k_dim});
      const auto row_bytes = static_cast<size_t>(shape_.kv_heads * shape_.k_dim) * sizeof(float);
      for (int64_t i = 0; i < count; ++i) {
        Random random(content.seed_of(begin + i, layer));
        HostTensor row(Elem::kF32, {1, shape_.kv_heads, shape_.k_dim});
        row.fill_random(random);
        std::memcpy(static_cast<std::byte*>(rows.dl()->data) + i * static_cast<int64_t>(row_bytes),
                    row.dl()->data, row_bytes);
      }
      require(kvc_kv_append(forward, layer, rows.dl(), rows.dl(), &error), error);
    }
    if (shape_.has_state) {
      Random random(content.seed_of(begin + count - 1, 2));
      HostTensor state(Elem::kF32, {1, 3});
      state.fill_random(random);
      require(kvc_state_set(forward, 2, 0, state.dl(), &error), error);
    }
    require(after == After::kEnd ? kvc_forward_end(forward, &error)
                                 : kvc_forward_abort(forward, &error),
            error);
    return true;
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
    const Ticket ticket = decode_ticket(CacheTransfers::ticket_of(*one.receiving, *to_));
    SendRequest send;
    send.seq = one.from;
    send.as_computed = as_computed;
    send.lifetime = request.lifetime;
    try {
      one.sending = sender_->cache().transfers.send(from_, ticket, send);
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
    transport.reset();
    for (One& one : open_) {
      if (is_sender) one.sending.reset();
    }
    open(&transport, is_sender ? "prefill" : "decode");
    settle();
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

  // Rows that the next query sees, and the state. Pages of another size end elsewhere, so what
  // they have in front of a window may be there or not.
  std::vector<Bytes> seen_of(const SimulatedCache& cache, kvc_seq seq, int64_t length) const {
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
      cache.cache().debug.read_tokens(seq, begin, length, {{layer, rows(k), rows(v)}}, kOwnStream);
      for (HostTensor* tensor : {&k, &v}) {
        const auto* bytes = static_cast<const uint8_t*>(tensor->dl()->data);
        found.emplace_back(bytes, bytes + (length - begin) * row);
      }
    }
    if (!shape_.has_state) return found;
    HostTensor state(Elem::kF32, {3});
    kvc_error error{};
    SimulatedCache::require(
        kvc_debug_get_state(cache.get(), seq, 2, 0, state.dl(), nullptr, &error), error);
    const auto* bytes = static_cast<const uint8_t*>(state.dl()->data);
    found.emplace_back(bytes, bytes + 12);
    return found;
  }

  // A cache like the receiver's that has computed the sequence itself.
  void compare(const One& one) {
    SimulatedCache oracle(shape_, false, pages_);
    if (!oracle.append(one.to, one.content, 0, one.length))
      throw std::runtime_error("the oracle has no pages");
    const Bytes arrived = receiver_->saved(one.to), expected = oracle.saved(one.to);
    if (seen_of(*receiver_, one.to, one.length) != seen_of(oracle, one.to, one.length))
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

// Every single allocation of a transfer fails once: those of recv and send change nothing then, and
// those on its way let both sides end.
TEST(TransfersWithoutMemory, EndWholeOrNotAtAll) {
  const Shape shape{4, 5, 2, true, true};
  SimulatedCache source(shape, false, 100), target(shape, true, 100);
  ASSERT_TRUE(source.append(0, {1, std::vector<int32_t>(30, 3)}, 0, 30));
  (void)target.append(9, {2, {}}, 0, 11);
  ASSERT_EQ(kvc_prefix_reset(target.get(), nullptr), KVC_OK);  // As behind each transfer below.
  const Bytes sent = source.saved(0), own = target.saved(9);
  const int64_t source_used = source.used(), target_used = target.used();
  ReceiveRequest receive;
  receive.num_tokens = 30;
  receive.publishes = true;
  int64_t failed[3] = {};
  for (int stage = 0; stage < 3; ++stage) {
    for (int64_t n = 1;; ++n) {
      SCOPED_TRACE("stage " + std::to_string(stage) + ", allocation " + std::to_string(n));
      const auto network = std::make_shared<LoopbackNetwork>(1, LoopbackFaults{});
      TransportOptions options;
      options.has_thread = false;
      const auto from = Transport::open(std::make_unique<LoopbackEngine>(network, "a"), options);
      const auto to = Transport::open(std::make_unique<LoopbackEngine>(network, "b"), options);
      std::shared_ptr<Transfer> receiving, sending;
      const auto arm = [&](int now) {
        if (now == stage) arm_allocation_failure(n);
      };
      bool has_failed = false, is_refused = false;
      try {
        arm(0);
        receiving = target.cache().transfers.receive(to, receive).front();
        has_failed |= disarm_allocation_failure();
        const Ticket ticket = decode_ticket(CacheTransfers::ticket_of(*receiving, *to));
        arm(1);
        sending = source.cache().transfers.send(from, ticket, SendRequest{});
        has_failed |= disarm_allocation_failure();
        arm(2);
        for (int i = 0; i < 300; ++i) {
          network->set_now(network->now() + 200 * kMilli);
          from->progress(0);
          to->progress(0);
          source.cache().transfers.try_settle();
          target.cache().transfers.try_settle();
        }
        has_failed |= disarm_allocation_failure();
      } catch (const std::bad_alloc&) {
        has_failed |= disarm_allocation_failure();
        is_refused = true;
      }
      from->shut_down();
      to->shut_down();
      source.cache().transfers.try_settle();
      target.cache().transfers.try_settle();
      source.check();
      target.check();
      EXPECT_EQ(source.saved(0), sent);
      EXPECT_EQ(target.saved(9), own);
      EXPECT_EQ(source.used(), source_used);
      int64_t length = 0;
      const bool is_there = kvc_seq_length(target.get(), 0, &length, nullptr) == KVC_OK;
      if (is_there) {
        EXPECT_EQ(target.saved(0), sent);
        ASSERT_EQ(kvc_seq_remove(target.get(), 0, nullptr), KVC_OK);
      }
      EXPECT_EQ(target.used(), target_used);
      (void)kvc_prefix_reset(target.get(), nullptr);
      // A send whose first word could not be said has begun, and fails like one on its way.
      EXPECT_TRUE(stage == 1 || is_refused == (has_failed && stage == 0));
      if (!has_failed) {
        EXPECT_TRUE(is_there);
        break;
      }
      ++failed[stage];
      ASSERT_FALSE(HasFailure());
    }
  }
  EXPECT_GT(failed[0], 10);
  EXPECT_GT(failed[1], 10);
  EXPECT_GT(failed[2], 50);
}

TEST(RandomTransfers, EveryOneEndsWholeOrNotAtAll) {
  SeedResult result = run_seeds<TransferRun>("transfers", 1, 10000, 25);
  result.expect_met("as computed", {KVC_OK});
  result.expect_met("transfer", {KVC_OK, KVC_E_TIMEOUT, KVC_E_CANCELLED, KVC_E_PEER});
}

}  // namespace
}  // namespace kvc::test
