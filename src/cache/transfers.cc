#include "src/cache/transfers.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <utility>

#include "src/base/error.h"
#include "src/base/math.h"
#include "src/cache/cache_core.h"
#include "src/cache/cache_forward.h"
#include "src/cache/context_shift.h"
#include "src/cache/page_bytes.h"
#include "src/cache/state_file.h"
#include "src/cache/transfer_chunks.h"
#include "src/plan/layout.h"
#include "src/sequences/sequences.h"

namespace kvc {
namespace {

// A sequence with windows is reserved so many tokens at a time: a window gives back what it has
// passed before the next ones need pages.
constexpr int64_t kReservedAtOnce = 1024;

void require_cpu(const CacheCore& core, const char* function) {
  core.require_storage(function);
  if (core.spec().is_on_gpu())
    fail(KVC_E_UNSUPPORTED, "%s: the pool is on a device of type CUDA (2), expected CPU (1)",
         function);
}

TransferShape shape_of(const CacheCore& core, const Sequence& sequence, int64_t begin) {
  TransferShape shape{begin, sequence.length, sequence.cross_length, {}, {}};
  for (size_t group = 0; group < core.spec().groups.size(); ++group) {
    const PageTable& table = sequence.tables[group];
    shape.groups.push_back({table.sink_kept, table.kept_begin});
    shape.page_sizes.push_back(core.group(group).page_size);
  }
  return shape;
}

std::vector<PageId> pages_of(const PageTable& table) {
  std::vector<PageId> pages(static_cast<size_t>(table.pages.size()), kNoPage);
  table.pages.for_each([&](int64_t place, PageId page) { pages[place] = page; });
  return pages;
}

void check_equal(int64_t theirs, int64_t mine, const char* what) {
  if (theirs == mine) return;
  fail_with(KVC_E_INVALID_ARGUMENT, theirs, "the sender has %lld %s, the receiver expects %lld",
            ll(theirs), what, ll(mine));
}

// While it lives, forwards count as none: the host program has not made them.
class UncountedForwards {
 public:
  explicit UncountedForwards(CacheCounters& counters) : counters_(counters), before_(counters) {}
  ~UncountedForwards() {
    counters_.forwards = before_.forwards;
    counters_.tokens_appended = before_.tokens_appended;
    counters_.no_pages = before_.no_pages;
    counters_.step_bytes = before_.step_bytes;
    counters_.step_copies = before_.step_copies;
  }
  UncountedForwards(const UncountedForwards&) = delete;
  UncountedForwards& operator=(const UncountedForwards&) = delete;

 private:
  CacheCounters& counters_;
  const CacheCounters before_;
};

void note_news(TransferLink& link) noexcept { link.news.fetch_add(1, std::memory_order_release); }

}  // namespace

// ---- What a machine reads and writes

class ReceiveTransfer final : public Transfer, public ReceiveTarget {
 public:
  // The `part`-th of those that have this ticket's id.
  ReceiveTransfer(const TransferId& id, int32_t part, CacheCore& core,
                  std::shared_ptr<TransferLink> link, const Sequence& sequence,
                  const ReceiveRequest& request)
      : Transfer(id_of_part(id, part)),
        ticket_id(id),
        part(part),
        request(request),
        shape(shape_of(core, sequence, request.begin)),
        plan_(core.plan),
        pool_(core.pool),
        link_(std::move(link)) {
    for (const PageTable& table : sequence.tables) pages_.push_back(pages_of(table));
    keys_ = sequence.history.keys;
  }

  std::string layout() const { return page_format_text(plan_->spec(), request.ranks.num_ranks); }
  // Throws UNSUPPORTED for heads that the senders cannot share.
  void check_heads() const { (void)TransferChunks(*plan_, shape, shape, options(false)); }
  // Both parts are of one sequence.
  bool agrees_with(const ReceiveTransfer& other) const {
    const SequenceImage &a = image, &b = other.image;
    const auto is_same = [](const PositionSegment& one, const PositionSegment& two) {
      return one.begin == two.begin && one.offset == two.offset;
    };
    return a.history.keys == b.history.keys && a.history.ids == b.history.ids &&
           a.window == b.window && a.sink == b.sink && a.lead.begin == b.lead.begin &&
           a.lead.ahead == b.lead.ahead &&
           std::equal(a.segments.begin(), a.segments.end(), b.segments.begin(), b.segments.end(),
                      is_same);
  }

  const TransferId ticket_id;
  const int32_t part;
  const ReceiveRequest request;
  const TransferShape shape;
  std::byte* state = nullptr;   // Memory of the state slot.
  std::vector<KeptRange> kept;  // [layer group] By both sides; set by begin().
  SequenceImage image;          // Set by finish().

 private:
  ReceiveTarget* target() override { return this; }
  const ReceiveTarget* target() const override { return this; }
  void on_news() noexcept override { note_news(*link_); }

  void begin(const Hello& hello) override {
    if (!hello.layout.empty()) {
      fail(KVC_E_UNSUPPORTED, "the sender has another layout: %s",
           layout_difference(layout(), "the receiver", hello.layout, "the sender").c_str());
    }
    if (!request.model_id.empty() && hello.model_id != request.model_id) {
      fail(KVC_E_INVALID_ARGUMENT, "the receiver waits for model_id \"%.100s\", not \"%.100s\"",
           request.model_id.c_str(), hello.model_id.c_str());
    }
    check_equal(hello.shape.length, shape.length, "tokens");
    check_equal(hello.shape.cross_length, shape.cross_length, "encoder tokens");
    check_equal(static_cast<int64_t>(hello.shape.groups.size()),
                static_cast<int64_t>(shape.groups.size()), "layer groups");
    kept.clear();
    for (size_t group = 0; group < shape.groups.size(); ++group)
      kept.push_back(kept_by_both(shape.groups[group], hello.shape.groups[group]));
    chunks_ =
        std::make_unique<TransferChunks>(*plan_, shape, hello.shape, options(hello.is_by_layer));
    prefix_block_ = hello.prefix_block;
  }

  uint32_t num_chunks() const override { return static_cast<uint32_t>(chunks_->chunks().size()); }
  uint64_t chunk_bytes(uint32_t chunk) const override { return chunks_->chunk_bytes(chunk); }

  std::vector<IoRange> chunk_ranges(uint32_t index) override {
    const TransferChunks::Chunk& chunk = chunks_->chunks()[index];
    std::vector<IoRange> ranges;
    if (chunk.lane < 0) {
      ranges.push_back({state + chunk.first, static_cast<size_t>(chunk.count)});
      return ranges;
    }
    const TransferChunks::Lane& lane = chunks_->lanes()[chunk.lane];
    const auto group = static_cast<size_t>(lane.group);
    for (int64_t i = chunk.first; i < chunk.first + chunk.count; ++i)
      chunks_->add_page(pool_, lane, pages_[group][chunks_->places(group)[i]], &ranges);
    return ranges;
  }

  void finish(std::span<const std::byte> description) override {
    StateFileImage sent = decode_state_file(description);
    if (sent.sequences.size() != 1)
      fail(KVC_E_CORRUPT, "the sender describes %zu sequences, expected 1", sent.sequences.size());
    SequenceImage& sequence = sent.sequences.front();
    check_equal(sequence.length, shape.length, "tokens");
    check_equal(sequence.cross_length, shape.cross_length, "encoder tokens");
    cut_anew(sequence.history);
    check_sequence(sequence, plan_->spec());
    const bool may_have_one = state != nullptr && sequence.checkpoints.size() == 1;
    for (const CheckpointImage& checkpoint : sequence.checkpoints) {
      if (!may_have_one || checkpoint.position != shape.length)
        fail_with(KVC_E_CORRUPT, checkpoint.position,
                  "the sender describes a checkpoint at %lld, expected the end (%lld)",
                  ll(checkpoint.position), ll(shape.length));
    }
    // Automatic checkpoints are those of this side's stride.
    if (state != nullptr &&
        (sequence.checkpoints.empty() || sequence.checkpoints.front().is_automatic != 0)) {
      const int64_t stride = plan_->spec().state_stride;
      sequence.checkpoints.clear();
      if (stride != 0 && shape.length % stride == 0)
        sequence.checkpoints.push_back({shape.length, 0, 1});
    }
    // What both know of the tokens that do not travel has to agree.
    const size_t num_keys =
        std::min({keys_.size(), sequence.history.keys.size(),
                  static_cast<size_t>(shape.begin / plan_->spec().prefix_block())});
    for (size_t i = 0; i < num_keys; ++i) {
      if (keys_[i] == sequence.history.keys[i]) continue;
      fail_with(KVC_E_INVALID_ARGUMENT, static_cast<int64_t>(i),
                "block %zu of the %lld tokens that the receiver has is another one than the "
                "sender's",
                i, ll(shape.begin));
    }
    image = std::move(sequence);
  }

  uint64_t most_fin_bytes() const override {
    constexpr uint64_t kFixed = uint64_t{1} << 20;
    constexpr uint64_t kPerToken = 64;  // Ids, keys, positions.
    return kFixed + num_chunks() * sizeof(uint64_t) +
           static_cast<uint64_t>(shape.length) * kPerToken;
  }

  TransferChunks::Options options(bool is_by_layer) const {
    return {is_by_layer, {part, request.ranks.num_parts()}, part == 0};
  }

  // The sender's blocks may have another number of tokens. Tokens whose ids are not known cannot be
  // cut anew: nothing is known of them then.
  void cut_anew(TokenHistory& history) const {
    const int32_t block = plan_->spec().prefix_block();
    if (prefix_block_ == block) return;
    const bool has_all_ids = history.ids_begin == 0 && history.num_given == 0 &&
                             history.num_known == static_cast<int64_t>(history.ids.size());
    const std::vector<int32_t> ids = has_all_ids ? std::move(history.ids) : std::vector<int32_t>();
    history.keys.clear();
    history.ids.clear();
    history.ids_begin = history.num_known = history.num_given = 0;
    (void)history.reserve(static_cast<int64_t>(ids.size()), block);
    history.add(ids.data(), static_cast<int64_t>(ids.size()), block);
  }

  std::shared_ptr<const Plan> plan_;
  const PagePool& pool_;
  std::shared_ptr<TransferLink> link_;
  std::vector<std::vector<PageId>> pages_;  // [layer group][place]
  std::vector<BlockKey> keys_;              // For the tokens that the receiver has.
  int32_t prefix_block_ = 1;                // Tokens per block of the sender's keys.
  std::unique_ptr<TransferChunks> chunks_;
};

// Pages are held from the moment on when they are full: whatever becomes of the sequence, what has
// been sent of them stays.
class SendTransfer final : public Transfer, public SendSource {
 public:
  // Holds nothing yet. Throws Error, std::bad_alloc.
  // `part`: which of the receiver's senders this is.
  SendTransfer(const Ticket& ticket, int32_t part, CacheCore& core,
               std::shared_ptr<TransferLink> link, const Sequence& sequence,
               const SendRequest& request)
      : Transfer(id_of_part(ticket.id, part)),
        length(ticket.shape.length),
        pool_(core.pool),
        link_(std::move(link)),
        chunks_(*core.plan, ticket.shape, shape_of(core, sequence, ticket.shape.begin),
                {request.as_computed,
                 {ticket.ranks.rank % ticket.ranks.num_receivers(), ticket.ranks.num_receivers()},
                 part == 0}) {
    hello_.shape = shape_of(core, sequence, ticket.shape.begin);
    hello_.shape.length = length;
    hello_.shape.cross_length = ticket.shape.cross_length;
    hello_.model_id = request.model_id;
    hello_.is_by_layer = request.as_computed;
    hello_.prefix_block = core.spec().prefix_block();
    const std::string layout = page_format_text(core.spec(), request.num_ranks);
    if (layout_fingerprint(layout) != ticket.fingerprint) hello_.layout = layout;
    groups_.resize(core.spec().groups.size());
    for (size_t index = 0; index < groups_.size(); ++index) {
      const GroupSpec& spec = core.group(index);
      Group& group = groups_[index];
      group.page_size = spec.page_size;
      group.stored = spec.is_cross ? ticket.shape.cross_length : spec.tokens_of(length);
      const int64_t num_pages = spec.pages_for(group.stored);
      group.pages.resize(static_cast<size_t>(num_pages), kNoPage);
      group.travels.resize(static_cast<size_t>(num_pages), 0);
      const int64_t theirs = chunks_.page_size(index);
      for (const int64_t place : chunks_.places(index)) {
        const int64_t end = std::min((place + 1) * theirs, group.stored);
        for (int64_t own = place * theirs / spec.page_size; own * spec.page_size < end; ++own)
          group.travels[own] = 1;
      }
    }
    next_chunk_.reserve(chunks_.lanes().size());
    for (const TransferChunks::Lane& lane : chunks_.lanes())
      next_chunk_.push_back(lane.first_chunk);
  }

  // Rows of the first `stored` tokens of a layer group are there, in one layer or in all of them
  // (-1). Holds the pages that are full, and returns the chunks that have become ready. Throws
  // std::bad_alloc.
  std::vector<uint32_t> advance(CacheCore& core, const PageTable& table, size_t index,
                                int32_t local_layer, int64_t stored) {
    Group& group = groups_[index];
    stored = std::min(stored, group.stored);
    hold(core, table, group, stored / group.page_size);
    const int64_t full = stored / group.page_size * group.page_size;
    const int64_t theirs = chunks_.page_size(index);
    std::vector<uint32_t> ready;
    for (size_t i = 0; i < chunks_.lanes().size(); ++i) {
      const TransferChunks::Lane& lane = chunks_.lanes()[i];
      if (lane.group != static_cast<int32_t>(index)) continue;
      if (local_layer >= 0 &&
          chunks_.parts(index)[static_cast<size_t>(lane.first_part)].local_layer != local_layer)
        continue;
      for (uint32_t& next = next_chunk_[i]; next < lane.end_chunk; ++next) {
        const TransferChunks::Chunk& chunk = chunks_.chunks()[next];
        if ((chunks_.places(index)[chunk.first + chunk.count - 1] + 1) * theirs > full) break;
        ready.push_back(next);
      }
    }
    return ready;
  }

  // The sequence has all tokens. Throws Error, std::bad_alloc.
  void complete(CacheCore& core, const Sequence& sequence) {
    const Layout& bytes = core.plan->layout();
    const UnusedBytes unused(*core.plan);
    for (size_t index = 0; index < groups_.size(); ++index) {
      Group& group = groups_[index];
      const PageTable& table = sequence.tables[index];
      const int64_t num_full = group.stored / group.page_size;
      hold(core, table, group, num_full);
      if (num_full == static_cast<int64_t>(group.pages.size()) || group.travels[num_full] == 0 ||
          !table.keeps(num_full * group.page_size, group.stored))
        continue;
      // Whoever appends next writes behind the last token: a copy goes, and nothing of others.
      const PageId page = table.pages[num_full];
      group.last.resize(static_cast<size_t>(bytes.group_bytes[index]));
      core.device->read_pages(&page, 1, bytes.group_bytes[index], group.last.data(), kOwnStream);
      unused.clear_page(index, group.stored % group.page_size, group.last.data());
    }
    if (bytes.state_slot_bytes != 0 && sequence.length != 0) {
      state_.resize(static_cast<size_t>(bytes.state_slot_bytes));
      core.device->read_bytes(state_.data(), core.states.memory().slot(sequence.state),
                              bytes.state_slot_bytes, kOwnStream);
      unused.clear_state(state_.data());
    }
    StateFileImage image;
    SequenceImage& out = image.sequences.emplace_back();
    out.id = sequence.id;
    out.length = sequence.length;
    out.cross_length = sequence.cross_length;
    out.window = sequence.window;
    out.sink = sequence.sink;
    out.segments = sequence.segments;
    out.lead = sequence.lead;
    out.first_unwritten = sequence.first_unwritten;
    out.history = sequence.history;
    // A checkpoint at the end is the state that travels.
    if (!sequence.checkpoints.empty() && sequence.checkpoints.back().position == sequence.length)
      out.checkpoints.push_back(
          {sequence.length, 0, sequence.checkpoints.back().is_automatic ? 1 : 0});
    description_ = encode(image);
  }
  std::vector<uint32_t> all_chunks() const {
    std::vector<uint32_t> chunks(num_chunks());
    std::iota(chunks.begin(), chunks.end(), 0u);
    return chunks;
  }

  const int64_t length;  // The ticket's.
  HeldPages held;        // One reference each.

 private:
  struct Group {
    int64_t page_size = 0;
    int64_t stored = 0;            // Tokens at the end.
    std::vector<PageId> pages;     // [place] kNoPage: not full, or not there.
    std::vector<uint8_t> travels;  // [place]
    std::vector<std::byte> last;   // A copy of the page that is not full at the end.
    int64_t num_held = 0;          // Leading places that have been looked at.
  };

  SendSource* source() override { return this; }
  void on_news() noexcept override { note_news(*link_); }

  void hold(CacheCore& core, const PageTable& table, Group& group, int64_t num_full) {
    if (num_full <= group.num_held) return;
    held.pages.reserve(held.pages.size() + static_cast<size_t>(num_full - group.num_held));
    table.pages.for_each([&](int64_t place, PageId page) {
      if (place < group.num_held || place >= num_full || group.travels[place] == 0) return;
      group.pages[place] = page;
      held.pages.push_back(page);
      core.allocator.add_ref(page);
    });
    group.num_held = num_full;
  }

  uint32_t num_chunks() const override { return static_cast<uint32_t>(chunks_.chunks().size()); }
  uint64_t chunk_bytes(uint32_t chunk) const override { return chunks_.chunk_bytes(chunk); }

  std::vector<IoRange> chunk_ranges(uint32_t index) override {
    const TransferChunks::Chunk& chunk = chunks_.chunks()[index];
    std::vector<IoRange> ranges;
    if (chunk.lane < 0) {
      ranges.push_back({state_.data() + chunk.first, static_cast<size_t>(chunk.count)});
      return ranges;
    }
    const TransferChunks::Lane& lane = chunks_.lanes()[chunk.lane];
    const auto at = static_cast<size_t>(lane.group);
    Group& group = groups_[at];
    if (!lies_in_pages(chunk, group, at)) {
      std::vector<std::byte>& bytes = recut_[index];
      if (bytes.empty()) recut(chunk, lane, &bytes);
      ranges.push_back({bytes.data(), bytes.size()});
      return ranges;
    }
    for (int64_t i = chunk.first; i < chunk.first + chunk.count; ++i) {
      const int64_t place = chunks_.places(at)[i];
      if (group.pages[place] == kNoPage) {
        chunks_.add_packed(group.last.data(), lane, &ranges);
      } else {
        chunks_.add_page(pool_, lane, group.pages[place], &ranges);
      }
    }
    return ranges;
  }
  void release(uint32_t chunk) noexcept override { recut_.erase(chunk); }

  // Each page of the chunk is one of this side.
  bool lies_in_pages(const TransferChunks::Chunk& chunk, const Group& group, size_t index) const {
    if (group.page_size != chunks_.page_size(index)) return false;
    for (int64_t i = chunk.first; i < chunk.first + chunk.count; ++i) {
      const int64_t place = chunks_.places(index)[i];
      const bool is_last = (place + 1) * group.page_size > group.stored;
      if (group.pages[place] == kNoPage && !(is_last && !group.last.empty())) return false;
    }
    return true;
  }

  // The rows of pages of another size. Those that are not kept here are zero.
  void recut(const TransferChunks::Chunk& chunk, const TransferChunks::Lane& lane,
             std::vector<std::byte>* out) const {
    const auto index = static_cast<size_t>(lane.group);
    const Group& group = groups_[index];
    const int64_t theirs = chunks_.page_size(index);
    out->resize(static_cast<size_t>(chunk.count * lane.page_bytes));
    std::byte* to = out->data();
    for (int64_t i = chunk.first; i < chunk.first + chunk.count; ++i) {
      const int64_t begin = chunks_.places(index)[i] * theirs;
      for (int32_t p = lane.first_part; p < lane.end_part; ++p) {
        const TransferChunks::Part& part = chunks_.parts(index)[p];
        for (int64_t head = 0; head < part.num_heads; ++head) {
          copy_rows(group, part, head, begin, std::min(begin + theirs, group.stored), to);
          to += theirs * part.row_bytes;
        }
      }
    }
  }
  // Rows of tokens [begin, end) of one head.
  void copy_rows(const Group& group, const TransferChunks::Part& part, int64_t head, int64_t begin,
                 int64_t end, std::byte* to) const {
    const LayerPages pool = pool_.layer(part.local_layer);
    for (int64_t token = begin; token < end;) {
      const int64_t place = token / group.page_size;
      const int64_t next = std::min(end, (place + 1) * group.page_size);
      const int64_t row = head * group.page_size + token % group.page_size;
      const std::byte* from = nullptr;
      if (group.pages[place] != kNoPage) {
        from = pool.base + group.pages[place] * pool.page_stride + part.offset;
      } else if ((place + 1) * group.page_size > group.stored && !group.last.empty()) {
        from = group.last.data() + part.packed;
      }
      const auto bytes = static_cast<size_t>((next - token) * part.row_bytes);
      if (from != nullptr) std::memcpy(to, from + row * part.row_bytes, bytes);
      to += bytes;
      token = next;
    }
  }

  std::vector<std::byte> hello() override { return encode(hello_); }
  std::vector<std::byte> description() override { return description_; }

  // What the transport reads of a chunk has its final value when the chunk is ready.
  const PagePool& pool_;
  std::shared_ptr<TransferLink> link_;
  TransferChunks chunks_;
  Hello hello_;
  std::vector<Group> groups_;
  std::vector<uint32_t> next_chunk_;  // [lane] The first that is not ready.
  std::vector<std::byte> state_;
  std::vector<std::byte> description_;
  std::map<uint32_t, std::vector<std::byte>> recut_;  // Chunks on their way.
};

// ---- The cache's side

struct CacheTransfers::Receiving {
  std::vector<std::shared_ptr<ReceiveTransfer>> parts;  // One for each sender.
  std::shared_ptr<Transport> transport;
  std::unique_ptr<Sequence> before;  // The sequence as it was; null: it did not exist.
  HeldPages held;                    // Those of `before`, and the new state.
};

struct CacheTransfers::Sending {
  std::shared_ptr<SendTransfer> transfer;
  std::shared_ptr<Transport> transport;
  kvc_seq seq = 0;
  uint64_t followed = 0;  // Sequence::followed of its rows that are still computed; 0: all are.
};

CacheTransfers::CacheTransfers(CacheCore& core, CacheForward& forward)
    : core_(core), forward_(forward), link_(std::make_shared<TransferLink>()) {
  link_->owner = this;
}

CacheTransfers::~CacheTransfers() {
  for (const std::unique_ptr<Receiving>& one : receiving_) {
    for (const auto& part : one->parts) one->transport->quiesce(*part);
  }
  for (const std::unique_ptr<Sending>& one : sending_) one->transport->quiesce(*one->transfer);
  core_.observer = nullptr;
  link_->owner = nullptr;
}

void CacheTransfers::require_none(const char* action) const {
  const auto count = static_cast<int64_t>(receiving_.size() + sending_.size());
  if (count != 0)
    fail_with(KVC_E_BUSY, count, "cannot %s: %lld transfers are open, expected 0", action,
              ll(count));
}

void CacheTransfers::drop(HeldPages& held) noexcept {
  std::erase(core_.holds, &held);
  for (const PageId page : held.pages) core_.allocator.drop_ref(page);
  for (const StateSlot slot : held.states) core_.states.drop_ref(slot);
  held = {};
}

// Appends the tokens without content, as kvc_seq_reserve does.
void CacheTransfers::reserve(const ReceiveRequest& request, bool is_new) {
  const UncountedForwards uncounted(core_.counters);
  if (is_new) core_.sequences.add(request.seq);
  int64_t most = request.num_tokens;
  if (core_.spec().max_tokens_per_forward != 0)
    most = std::min(most, core_.spec().max_tokens_per_forward);
  const Sequence& sequence = core_.sequences.get(request.seq);
  if (core_.spec().has_windows() || sequence.window != 0) most = std::min(most, kReservedAtOnce);
  int64_t cross = request.cross_length;
  for (int64_t left = request.num_tokens; left > 0;) {
    const int64_t count = std::min(most, left);
    const BatchRequest batch{.num_seqs = 1,
                             .seqs = &request.seq,
                             .append_lengths = &count,
                             .cross_lengths = cross == 0 ? nullptr : &cross};
    (void)forward_.begin(batch, {}, {.is_partial = true, .leaves_rows = true}, kOwnStream);
    forward_.end();
    left -= count;
    cross = 0;
  }
}

// The sequence is as it was before the transfer.
void CacheTransfers::undo(kvc_seq id, std::unique_ptr<Sequence> before) noexcept {
  Sequence& sequence = core_.sequences.get(id);
  sequence.is_arriving = false;
  core_.publisher.release(sequence);
  core_.sequences.remove(id);
  if (before != nullptr) core_.sequences.adopt(std::move(before));
}

std::vector<std::shared_ptr<Transfer>> CacheTransfers::receive(
    const std::shared_ptr<Transport>& transport, const ReceiveRequest& request) {
  require_cpu(core_, "kvc_transfer_recv");
  core_.require_closed("receive");
  settle();
  const bool is_new = core_.sequences.find(request.seq) == nullptr;
  if (is_new) {
    if (request.begin != 0) (void)core_.sequences.get(request.seq);
    core_.sequences.check_new_id(request.seq, "desc.seq");
  }
  Sequence* sequence = is_new ? nullptr : &core_.sequences.get_settled(request.seq, "receive");
  if (sequence != nullptr && request.begin != sequence->length) {
    fail_with(KVC_E_OUT_OF_RANGE, request.begin,
              "desc.begin = %lld, sequence %lld has %lld tokens: a transfer appends to them",
              ll(request.begin), ll(request.seq), ll(sequence->length));
  }
  if (request.cross_length != 0 && request.begin != 0) {
    fail_with(KVC_E_INVALID_ARGUMENT, request.cross_length,
              "desc.cross_length = %lld with desc.begin = %lld: encoder tokens come with the first",
              ll(request.cross_length), ll(request.begin));
  }
  auto one = std::make_unique<Receiving>();
  one->transport = transport;
  receiving_.reserve(receiving_.size() + 1);
  core_.holds.reserve(core_.holds.size() + 1);
  if (sequence != nullptr) {
    one->before = core_.sequences.copy_of(*sequence);
    for (const PageTable& table : sequence->tables)
      table.pages.for_each([&](int64_t, PageId page) { one->held.pages.push_back(page); });
    for (const Checkpoint& checkpoint : sequence->checkpoints) {
      if (checkpoint.slot != kInitialState) one->held.states.push_back(checkpoint.slot);
    }
    if (sequence->state != kInitialState) one->held.states.push_back(sequence->state);
  }
  one->held.states.reserve(one->held.states.size() + 1);
  for (const PageId page : one->held.pages) core_.allocator.add_ref(page);
  for (const StateSlot slot : one->held.states) core_.states.add_ref(slot);
  if (sequence != nullptr) {
    sequence->invalidate_tables();
    for (PageTable& table : sequence->tables) table.owns_last = false;
  }
  core_.holds.push_back(&one->held);
  std::vector<std::shared_ptr<Transfer>> made;
  size_t num_begun = 0;
  try {
    reserve(request, is_new);
    StateSlot slot = kInitialState;
    if (core_.states.is_used()) {
      const int64_t pages = core_.states.slot_pages();
      const int64_t missing = std::max<int64_t>(0, pages - core_.allocator.num_available());
      const int64_t missing_states = core_.states.missing(1);
      if (missing + missing_states > 0) {
        fail_with(KVC_E_NO_PAGES, missing + missing_states,
                  "the state of the sequence lacks %lld pages and %lld state slots", ll(missing),
                  ll(missing_states));
      }
      if (pages > core_.allocator.num_free()) core_.index.eviction().evict_for(pages, kOwnStream);
      if (core_.states.to_evict(1) > 0) core_.index.eviction().evict_states_for(1);
      core_.states.prepare(1);
      slot = core_.states.take();
      one->held.states.push_back(slot);
    }
    Sequence& arriving = core_.sequences.get(request.seq);
    const TransferId id = random_transfer_id();
    for (int32_t part = 0; part < request.ranks.num_parts(); ++part) {
      made.push_back(one->parts.emplace_back(
          std::make_shared<ReceiveTransfer>(id, part, core_, link_, arriving, request)));
      one->parts.back()->check_heads();
    }
    if (slot != kInitialState) one->parts.front()->state = core_.states.memory().slot(slot);
    (void)ticket_of(*one->parts.front(), *transport);  // It may be too long.
    for (const auto& part : one->parts) {
      std::vector<std::weak_ptr<Transfer>> siblings;
      for (const auto& other : one->parts)
        if (other != part) siblings.push_back(other);
      part->set_siblings(std::move(siblings));
    }
    for (const auto& part : one->parts) {
      transport->receive(part, request.lifetime, request.idle);
      ++num_begun;
    }
    arriving.is_arriving = true;
  } catch (...) {
    for (size_t part = 0; part < num_begun; ++part) transport->quiesce(*one->parts[part]);
    if (core_.sequences.find(request.seq) != nullptr) undo(request.seq, std::move(one->before));
    drop(one->held);
    throw;
  }
  core_.note_pages_used();
  receiving_.push_back(std::move(one));
  return made;
}

std::vector<std::byte> CacheTransfers::ticket_of(const Transfer& transfer,
                                                 const Transport& transport) {
  const auto* receive = dynamic_cast<const ReceiveTransfer*>(&transfer);
  if (receive == nullptr)
    fail(KVC_E_INVALID_STATE, "the transfer sends: the receiving side has the ticket");
  Ticket ticket;
  ticket.id = receive->ticket_id;
  ticket.ranks = receive->request.ranks;
  ticket.epoch = transport.epoch();
  ticket.engine = transport.engine_name();
  ticket.address = transport.address();
  ticket.fingerprint = layout_fingerprint(receive->layout());
  ticket.shape = receive->shape;
  return encode(ticket);
}

std::shared_ptr<Transfer> CacheTransfers::send(const std::shared_ptr<Transport>& transport,
                                               const Ticket& ticket, const SendRequest& request) {
  require_cpu(core_, "kvc_transfer_send");
  core_.require_closed("send");
  settle();
  Sequence& sequence = core_.sequences.get_settled(request.seq, "send");
  const TransferShape& shape = ticket.shape;
  if (request.begin != shape.begin) {
    fail_with(KVC_E_INVALID_ARGUMENT, request.begin,
              "desc.begin = %lld, the ticket waits for tokens from %lld on", ll(request.begin),
              ll(shape.begin));
  }
  if (request.as_computed ? sequence.length > shape.length : sequence.length != shape.length) {
    fail_with(KVC_E_OUT_OF_RANGE, sequence.length,
              "sequence %lld has %lld tokens, the ticket waits for %lld", ll(request.seq),
              ll(sequence.length), ll(shape.length));
  }
  const bool may_get_cross = request.as_computed && sequence.length == 0;
  if (sequence.cross_length != shape.cross_length && !may_get_cross) {
    fail_with(KVC_E_OUT_OF_RANGE, sequence.cross_length,
              "sequence %lld has %lld encoder tokens, the ticket waits for %lld", ll(request.seq),
              ll(sequence.cross_length), ll(shape.cross_length));
  }
  if (ticket.engine != transport->engine_name()) {
    fail(KVC_E_UNSUPPORTED, "the ticket is for engine \"%.50s\", the transport has \"%s\"",
         ticket.engine.c_str(), transport->engine_name());
  }
  if (shape.groups.size() != core_.spec().groups.size()) {
    fail_with(KVC_E_UNSUPPORTED, static_cast<int64_t>(shape.groups.size()),
              "the receiver has another layout: %zu layer groups, the sender %zu",
              shape.groups.size(), core_.spec().groups.size());
  }
  const TransferRanks& ranks = ticket.ranks;
  if (request.num_ranks != ranks.num_sender_ranks) {
    fail_with(KVC_E_INVALID_ARGUMENT, request.num_ranks,
              "desc.tp_size = %d, the ticket waits for senders of %d ranks", request.num_ranks,
              ranks.num_sender_ranks);
  }
  const int32_t first_rank = ranks.rank * ranks.num_parts() / ranks.num_receivers();
  if (request.rank < first_rank || request.rank >= first_rank + ranks.num_parts()) {
    fail_with(KVC_E_INVALID_ARGUMENT, request.rank,
              "desc.tp_rank = %d, the ticket waits for ranks %d to %d", request.rank, first_rank,
              first_rank + ranks.num_parts() - 1);
  }
  const bool is_whole = sequence.length == shape.length;
  auto one = std::make_unique<Sending>();
  one->transport = transport;
  one->seq = request.seq;
  one->transfer = std::make_shared<SendTransfer>(ticket, request.rank - first_rank, core_, link_,
                                                 sequence, request);
  SendTransfer& transfer = *one->transfer;
  sending_.reserve(sending_.size() + 1);
  core_.holds.reserve(core_.holds.size() + 1);
  core_.holds.push_back(&transfer.held);
  try {
    std::vector<uint32_t> ready;
    if (is_whole) {
      transfer.complete(core_, sequence);
      ready = transfer.all_chunks();
    } else {
      for (size_t group = 0; group < sequence.tables.size(); ++group) {
        const std::vector<uint32_t> more = transfer.advance(
            core_, sequence.tables[group], group, -1, sequence.stored(core_.group(group)));
        ready.insert(ready.end(), more.begin(), more.end());
      }
    }
    transport->send(one->transfer, ticket, request.lifetime, request.idle);
    transport->advance(transfer, ready, is_whole);
  } catch (...) {
    transport->quiesce(transfer);
    drop(transfer.held);
    throw;
  }
  if (!is_whole) {
    if (sequence.followed == 0) sequence.followed = ++last_follow_;
    one->followed = sequence.followed;
    core_.observer = this;
  }
  sequence.invalidate_tables();
  for (PageTable& table : sequence.tables) table.owns_last = false;
  std::shared_ptr<Transfer> made = one->transfer;
  sending_.push_back(std::move(one));
  return made;
}

// ---- Rows that leave as they are computed

bool CacheTransfers::is_followed(const Sending& one, const Sequence* sequence) const noexcept {
  return sequence != nullptr && sequence->followed == one.followed &&
         sequence->length <= one.transfer->length && sequence->tree.size() == 0;
}

void CacheTransfers::stop_following(Sending& one, const char* why) noexcept {
  one.followed = 0;
  if (why == nullptr) return;
  one.transport->cancel(*one.transfer, KVC_E_CANCELLED, text_of(why));
}

// Forwards tell of their rows while somebody follows a sequence.
void CacheTransfers::watch() noexcept {
  const bool follows = std::any_of(sending_.begin(), sending_.end(),
                                   [](const auto& one) { return one->followed != 0; });
  core_.observer = follows ? this : nullptr;
}

void CacheTransfers::on_rows(int32_t local_layer) noexcept {
  if (!core_.forward.written().is_appended(local_layer)) return;
  for (const std::unique_ptr<Sending>& one : sending_) {
    if (one->followed == 0) continue;
    const Sequence* sequence = core_.sequences.find(one->seq);
    if (!is_followed(*one, sequence)) continue;
    const BatchEntry* entry = core_.entry_of(*sequence);
    if (entry == nullptr || entry->is_tree) continue;
    const int32_t kept_rows = core_.layer(local_layer).kept_rows;
    for (const int32_t layer : {local_layer, kept_rows}) {
      if (layer < 0) continue;
      const auto group = static_cast<size_t>(core_.layer(layer).group);
      if (core_.group(group).is_cross) continue;
      try {
        one->transport->advance(*one->transfer,
                                one->transfer->advance(core_, sequence->tables[group], group, layer,
                                                       entry->new_stored(core_.group(group))),
                                false);
      } catch (const std::exception&) {
        stop_following(*one, "no memory to send what was computed");
      }
    }
  }
}

void CacheTransfers::on_abort() noexcept {
  for (const std::unique_ptr<Sending>& one : sending_) {
    if (one->followed == 0) continue;
    const Sequence* sequence = core_.sequences.find(one->seq);
    if (sequence != nullptr && sequence->in_forward())
      stop_following(*one, "a forward that computed rows of the sequence was aborted");
  }
  watch();
}

void CacheTransfers::on_end() noexcept {
  check_followed();
  for (const std::unique_ptr<Sending>& one : sending_) {
    if (one->followed == 0) continue;
    Sequence& sequence = *core_.sequences.find(one->seq);
    const bool is_whole = sequence.length == one->transfer->length;
    try {
      if (is_whole) {
        one->transfer->complete(core_, sequence);
        one->transport->advance(*one->transfer, one->transfer->all_chunks(), true);
        one->followed = 0;
      } else {
        for (size_t group = 0; group < sequence.tables.size(); ++group) {
          one->transport->advance(*one->transfer,
                                  one->transfer->advance(core_, sequence.tables[group], group, -1,
                                                         sequence.stored(core_.group(group))),
                                  false);
        }
      }
    } catch (const std::exception&) {
      stop_following(*one, "no memory to send what was computed");
    }
    sequence.invalidate_tables();
    for (PageTable& table : sequence.tables) table.owns_last = false;
  }
  watch();
}

void CacheTransfers::check_followed() noexcept {
  for (const std::unique_ptr<Sending>& one : sending_) {
    if (one->followed == 0 || is_followed(*one, core_.sequences.find(one->seq))) continue;
    stop_following(*one,
                   "the sequence was removed, cut, moved, grew beyond the ticket or has a "
                   "token tree");
  }
  watch();
}

// ---- Ends

// The state that has arrived is that of the end. Those that the reservation took there, without a
// state, go.
void CacheTransfers::take_state(Receiving& one, Sequence& sequence,
                                const SequenceImage& image) noexcept {
  while (!sequence.checkpoints.empty() &&
         sequence.checkpoints.back().position > one.parts.front()->shape.begin) {
    core_.states.drop_ref(sequence.checkpoints.back().slot);
    sequence.checkpoints.pop_back();
  }
  core_.states.drop_ref(sequence.state);
  sequence.state = one.held.states.back();  // With its reference.
  one.held.states.pop_back();
  for (const CheckpointImage& checkpoint : image.checkpoints) {
    core_.states.add_ref(sequence.state);
    sequence.checkpoints.push_back(
        {checkpoint.position, sequence.state, checkpoint.is_automatic != 0});
  }
}

void CacheTransfers::commit(Receiving& one) {
  ReceiveTransfer& transfer = *one.parts.front();
  Sequence& sequence = core_.sequences.get(transfer.request.seq);
  const BytesRecount recount(core_.sequences, sequence);
  SequenceImage image = transfer.image;
  const bool keeps_leads = keeps_key_leads(core_);
  LeadSettler settler(core_, keeps_leads || image.lead.ahead == 0 ? 0 : image.length);
  core_.index.reserve(static_cast<int64_t>(image.history.keys.size()) +
                      core_.forward.batch().num_new_blocks());
  sequence.checkpoints.reserve(sequence.checkpoints.size() + image.checkpoints.size());
  // Nothing throws from here on.
  sequence.is_arriving = false;
  for (const auto& part : one.parts) {
    for (size_t group = 0; group < sequence.tables.size(); ++group) {
      if (!core_.group(group).is_cross)
        core_.sequences.trimmer().keep_only(sequence, group, part->kept[group].sink_kept,
                                            part->kept[group].kept_begin);
    }
  }
  sequence.window = image.window;
  sequence.sink = image.sink;
  sequence.segments = std::move(image.segments);
  sequence.lead = image.lead;
  sequence.first_unwritten = image.first_unwritten;
  if (transfer.request.publishes) {
    sequence.history = std::move(image.history);
    sequence.history.num_published = 0;
    sequence.history.priority = transfer.request.priority;
  } else if (image.history.has_diverged) {
    sequence.history.diverge();
  }
  if (transfer.state != nullptr) take_state(one, sequence, image);
  sequence.invalidate_tables();
  if (!keeps_leads) settler.settle(sequence);
  core_.publisher.publish(sequence, kOwnStream);
  core_.note_pages_used();
}

// Whether it is over. What one sender fails to send, the others have sent for nothing.
bool CacheTransfers::settle_receiving(Receiving& one) {
  const auto count = [&](TransferState state) {
    return std::count_if(one.parts.begin(), one.parts.end(), [&](const auto& part) {
      return one.transport->report(*part).state == state;
    });
  };
  const auto give_up = [&](kvc_status status, const char* why) {
    for (const auto& part : one.parts) one.transport->cancel(*part, status, text_of(why));
  };
  const auto num_parts = static_cast<std::ptrdiff_t>(one.parts.size());
  if (count(TransferState::kArrived) == num_parts) {
    const bool agree = std::all_of(one.parts.begin(), one.parts.end(), [&](const auto& part) {
      return part->agrees_with(*one.parts.front());
    });
    if (agree) {
      commit(one);
      for (const auto& part : one.parts) one.transport->mark_done(*part);
      return true;
    }
    give_up(KVC_E_INVALID_ARGUMENT, "the senders have sent other tokens or windows");
  } else if (count(TransferState::kFailed) != 0) {
    give_up(KVC_E_CANCELLED, "another sender of the sequence has failed");
  }
  if (count(TransferState::kFailed) != num_parts) return false;
  undo(one.parts.front()->request.seq, std::move(one.before));
  return true;
}

void CacheTransfers::try_settle() noexcept {
  try {
    settle();
  } catch (const std::exception&) {
    // A later call does it.
  }
}

void CacheTransfers::settle() {
  if (core_.observer != nullptr) check_followed();
  if (link_->news.load(std::memory_order_relaxed) == 0 || core_.forward.is_open()) return;
  link_->news.store(0, std::memory_order_relaxed);
  try {
    for (size_t i = 0; i < receiving_.size();) {
      Receiving& one = *receiving_[i];
      if (!settle_receiving(one)) {
        ++i;
        continue;
      }
      drop(one.held);
      receiving_.erase(receiving_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  } catch (...) {
    note_news(*link_);
    throw;
  }
  for (size_t i = 0; i < sending_.size();) {
    Sending& one = *sending_[i];
    const TransferState state = one.transport->report(*one.transfer).state;
    if (state != TransferState::kDone && state != TransferState::kFailed) {
      ++i;
      continue;
    }
    drop(one.transfer->held);
    sending_.erase(sending_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  watch();
}

}  // namespace kvc
