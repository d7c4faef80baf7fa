// Messages and tickets of strangers. A sequence is being received, and somebody who has its ticket
// says whatever he likes: bytes that are no message, messages whose digests are right and whose
// contents are not, payloads of any length, in any order. Tickets are damaged or forged as well.
// Claims: no access outside memory, no memory beyond what the transfer's own size allows; the
// transfer ends, as an ordinary sequence that the audit finds sound or without a trace.
#include <array>
#include <cstring>
#include <memory>
#include <vector>

#include "kvcache.h"
#include "src/base/error.h"
#include "src/cache/state_file.h"
#include "src/capi/call.h"
#include "src/transfer/loopback.h"
#include "src/transfer/transport.h"
#include "tests/fuzz/cache_state.h"
#include "tests/fuzz/error_box.h"

namespace kvc::fuzz {
namespace {

using Bytes = std::vector<std::byte>;

constexpr int64_t kTokens = 9;
constexpr kvc_seq kArriving = 10;

class Model {
 public:
  Model() {
    for (kvc_layer& layer : layers_) {
      layer.struct_size = sizeof layer;
      if (&layer == &layers_[2]) break;
      layer.num_kv_heads = 1;
      layer.k_dim = 2;
      layer.k_dtype = {kDLFloat, 32, 1};
    }
    layers_[1].window = 4;
    layers_[2].kind = KVC_LAYER_STATE;
    spec_.struct_size = sizeof spec_;
    spec_.ndim = 1;
    spec_.shape = &extent_;
    layers_[2].states = &spec_;
    layers_[2].num_states = 1;
    kvc_config config{};
    config.struct_size = sizeof config;
    config.page_size = 4;
    config.num_layers = 3;
    config.layers = layers_.data();
    config.num_pages = 24;
    config.num_threads = 1;
    KVC_FUZZ_CHECK(kvc_plan_create(&config, &plan_, nullptr) == KVC_OK);
    KVC_FUZZ_CHECK(kvc_cache_create(plan_, &cache_, nullptr) == KVC_OK);
    KVC_FUZZ_CHECK(kvc_seq_add(cache_, 0, nullptr) == KVC_OK);
    KVC_FUZZ_CHECK(kvc_seq_reserve(cache_, 0, kTokens, nullptr) == KVC_OK);
  }

  kvc_cache* handle() const { return cache_; }
  CacheTransfers& transfers() const { return cache_->cache.transfers; }

 private:
  std::array<kvc_layer, 3> layers_{};
  kvc_state_spec spec_{};
  int64_t extent_ = 3;
  kvc_plan* plan_ = nullptr;
  kvc_cache* cache_ = nullptr;
};

// Somebody on the network who keeps what his messages read until the end.
class Stranger final : public TransferEvents {
 public:
  explicit Stranger(const std::shared_ptr<LoopbackNetwork>& network)
      : engine_(network, "stranger") {}

  void connect(const std::string& address) { peer_ = engine_.connect(address); }
  void say(const Bytes& header, Bytes payload) {
    kept_.push_back(std::make_unique<Bytes>(std::move(payload)));
    std::vector<IoRange> ranges;
    if (!kept_.back()->empty()) ranges.push_back({kept_.back()->data(), kept_.back()->size()});
    engine_.send(peer_, header, ranges, 1);
  }
  void progress() { (void)engine_.progress(*this); }

 private:
  bool on_message(PeerId, std::span<const std::byte> header, uint64_t, std::vector<IoRange>*,
                  uint64_t*) override {
    (void)decode_message(header);  // The library says nothing that it does not understand itself.
    return false;
  }
  void on_received(uint64_t, bool, IoDigest) override {}
  void on_sent(uint64_t, IoDigest) override {}
  void on_closed(PeerId) override {}

  LoopbackEngine engine_;
  PeerId peer_ = 0;
  std::vector<std::unique_ptr<Bytes>> kept_;
};

void edit(Input& input, Bytes* bytes) {
  for (size_t edits = 1 + input.choose(3); edits > 0 && !bytes->empty(); --edits) {
    const size_t at = input.take(4) % bytes->size();
    const auto place = bytes->begin() + static_cast<std::ptrdiff_t>(at);
    switch (input.choose(5)) {
      case 0: bytes->resize(at); break;
      case 1: bytes->insert(place, static_cast<std::byte>(input.take(1))); break;
      case 2: *place = static_cast<std::byte>(static_cast<uint8_t>(*place) + 1); break;
      case 3: {
        const uint64_t number = uint64_t{0} - input.take(1);
        std::memcpy(&*place, &number, std::min<size_t>(8, bytes->size() - at));
        break;
      }
      default: *place = static_cast<std::byte>(input.take(1));
    }
  }
}

// A number that is right, wrong by a little, or very large.
int64_t number_near(Input& input, int64_t right) {
  switch (input.choose(6)) {
    case 1: return right + static_cast<int64_t>(input.choose(5)) - 2;
    case 2: return static_cast<int64_t>(input.take(8));
    default: return right;
  }
}

TransferShape shape_near(Input& input, TransferShape shape) {
  shape.begin = number_near(input, shape.begin);
  shape.length = number_near(input, shape.length);
  shape.cross_length = number_near(input, shape.cross_length);
  for (KeptRange& kept : shape.groups) {
    kept.sink_kept = number_near(input, kept.sink_kept);
    kept.kept_begin = number_near(input, kept.kept_begin);
  }
  if (input.one_in(10)) shape.groups.resize(input.choose(4));
  return shape;
}

Bytes description_near(Input& input) {
  StateFileImage image;
  SequenceImage& sequence = image.sequences.emplace_back();
  sequence.id = 0;
  sequence.length = number_near(input, kTokens);
  sequence.cross_length = number_near(input, 0);
  if (input.one_in(4)) sequence.window = number_near(input, 6);
  if (input.one_in(4)) sequence.sink = number_near(input, 2);
  if (input.one_in(4)) sequence.first_unwritten = number_near(input, 3);
  if (input.one_in(4)) sequence.segments.push_back({number_near(input, 2), number_near(input, 5)});
  if (input.one_in(4)) sequence.lead = {number_near(input, 2), number_near(input, 1)};
  if (input.one_in(3))
    sequence.checkpoints.push_back(
        {number_near(input, kTokens), static_cast<int32_t>(number_near(input, 0)), 1});
  if (input.one_in(4)) {
    sequence.history.num_known = number_near(input, 4);
    sequence.history.ids.assign(input.choose(10), 7);
    sequence.history.keys.resize(input.choose(3));
  }
  if (input.one_in(12)) image.sequences.resize(input.choose(3));
  Bytes bytes = encode(image);
  if (input.one_in(6)) edit(input, &bytes);
  return bytes;
}

// Without what reservations raise for good.
CacheState rest_of(kvc_cache* cache) {
  CacheState state = state_of(cache);
  state.stats.pages_peak = 0;
  return state;
}

void run(Input& input) {
  static Model model;
  const auto network = std::make_shared<LoopbackNetwork>(1, LoopbackFaults{});
  TransportOptions options;
  options.has_thread = false;
  const std::shared_ptr<Transport> transport =
      Transport::open(std::make_unique<LoopbackEngine>(network, "decode"), options);
  const CacheState before = rest_of(model.handle());
  ReceiveRequest request;
  request.seq = kArriving;
  request.num_tokens = kTokens;
  request.publishes = input.one_in(2);
  const std::shared_ptr<Transfer> receiving = model.transfers().receive(transport, request).front();
  Bytes ticket_bytes = CacheTransfers::ticket_of(*receiving, *transport);
  const Ticket ticket = decode_ticket(ticket_bytes);

  if (input.one_in(4)) {
    // A forged ticket, in the hands of a sender that believes it.
    Ticket forged = ticket;
    forged.shape = shape_near(input, forged.shape);
    if (input.one_in(4)) forged.epoch ^= input.take(8);
    if (input.one_in(4)) forged.address = "nobody";
    ticket_bytes = encode(forged);
    if (input.one_in(2)) edit(input, &ticket_bytes);
    SendRequest send;
    send.begin = input.one_in(4) ? 0 : forged.shape.begin;
    try {
      forged = decode_ticket(ticket_bytes);
      (void)model.transfers().send(transport, forged, send);
    } catch (const Error& error) {
      KVC_FUZZ_CHECK(error.status() != KVC_E_INTERNAL && error.what()[0] != '\0');
    }
  }

  Stranger stranger(network);
  stranger.connect("decode");
  uint64_t digests[64] = {};
  for (size_t messages = 1 + input.choose(12); messages > 0; --messages) {
    Message message;
    message.kind = static_cast<MessageKind>(input.one_in(6) ? input.take(1) : 1 + input.choose(9));
    message.id = ticket.id;
    message.is_for_receiver = !input.one_in(8);
    message.from_epoch = input.one_in(8) ? input.take(1) : 77;
    message.to_epoch = input.one_in(8) ? input.take(1) : ticket.epoch;
    Bytes payload;
    if (message.kind == MessageKind::kHello) {
      Hello hello;
      hello.shape = shape_near(input, ticket.shape);
      if (input.one_in(8)) hello.layout = "layers = 1\n";
      payload = encode(hello);
    } else if (message.kind == MessageKind::kData) {
      message.chunk = static_cast<uint32_t>(input.one_in(8) ? input.take(4) : input.choose(3));
      // The sizes of the chunks of this model: two layer groups, a state.
      const size_t sizes[] = {3 * 4 * 4 * 4, 2 * 4 * 4 * 4, 64, 48, 128, 32};
      payload.resize(input.one_in(8) ? input.choose(300) : sizes[input.choose(6)]);
      for (std::byte& byte : payload) byte = static_cast<std::byte>(input.take(1));
    } else if (message.kind == MessageKind::kFin) {
      Fin fin;
      for (size_t i = input.one_in(6) ? input.choose(5) : 3; i > 0; --i)
        fin.digests.push_back(digests[fin.digests.size()]);
      fin.description = description_near(input);
      payload = encode(fin);
    }
    if (input.one_in(10)) edit(input, &payload);
    message.payload_bytes = payload.size();
    message.digest = digest_of(payload.data(), payload.size());
    if (input.one_in(12)) message.digest ^= 1;
    if (message.kind == MessageKind::kData && message.chunk < 64)
      digests[message.chunk] = message.digest;
    if (input.one_in(12)) message.payload_bytes = input.take(8);
    Bytes header;
    header = encode(message);
    if (input.one_in(8)) edit(input, &header);
    stranger.say(header, std::move(payload));
    network->set_now(network->now() + 1);
    transport->progress(0);
    stranger.progress();
  }
  model.transfers().try_settle();
  transport->shut_down();
  model.transfers().try_settle();
  KVC_FUZZ_CHECK(kvc_cache_check(model.handle(), nullptr) == KVC_OK);
  int64_t length = 0;
  if (kvc_seq_length(model.handle(), kArriving, &length, nullptr) == KVC_OK) {
    KVC_FUZZ_CHECK(length == kTokens);
    (void)kvc_seq_reserve(model.handle(), kArriving, 2, nullptr);
    KVC_FUZZ_CHECK(kvc_cache_check(model.handle(), nullptr) == KVC_OK);
    KVC_FUZZ_CHECK(kvc_seq_remove(model.handle(), kArriving, nullptr) == KVC_OK);
    KVC_FUZZ_CHECK(kvc_prefix_reset(model.handle(), nullptr) == KVC_OK);
    const CacheState after = state_of(model.handle());
    KVC_FUZZ_CHECK(after.seqs == before.seqs && after.total_length == before.total_length);
    return;
  }
  KVC_FUZZ_CHECK(rest_of(model.handle()) == before);
}

}  // namespace
}  // namespace kvc::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kvc::fuzz::Input input(data, size);
  kvc::fuzz::run(input);
  return 0;
}
