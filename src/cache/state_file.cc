#include "src/cache/state_file.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "src/base/error.h"
#include "src/base/wire.h"
#include "src/plan/layout.h"
#include "src/plan/spec.h"

namespace kvc {
namespace {

enum FileTag : uint32_t {
  kLayout = 1,
  kModelId,
  kPagesPerGroup,
  kPageBytes,
  kNumStates,
  kStateBytes,
  kSequence,
};

enum SequenceTag : uint32_t {
  kId = 1,
  kLength,
  kCrossLength,
  kWindow,
  kSink,
  kSegments,
  kTable,
  kState,
  kCheckpoints,
  kFirstUnwritten,
  kHistory,
  kLeadBegin,
  kLeadAhead,
};

enum TableTag : uint32_t { kKeptBegin = 1, kSinkKept, kPages };

enum HistoryTag : uint32_t {
  kRoot = 1,
  kExtra,
  kKeys,
  kTokens,
  kTokensBegin,
  kNumKnown,
  kPriority,
  kHasDiverged,
  kNumGiven,
};

enum ExtraTag : uint32_t { kType = 1, kOffset, kData };

// ---- Writing

WireWriter written(const TableImage& table) {
  WireWriter out;
  out.integer(kKeptBegin, table.kept_begin);
  out.integer(kSinkKept, table.sink_kept);
  out.array(kPages, table.pages);
  return out;
}

WireWriter written(const TokenHistory& history) {
  WireWriter out;
  out.bytes(kRoot, history.root.bytes.data(), history.root.bytes.size());
  if (history.extra != nullptr) {
    for (const ExtraKey& key : *history.extra) {
      WireWriter extra;
      extra.integer(kType, key.type);
      extra.integer(kOffset, key.offset);
      extra.text(kData, key.data);
      out.record(kExtra, extra);
    }
  }
  out.array(kKeys, history.keys);
  out.array(kTokens, history.ids);
  out.integer(kTokensBegin, history.ids_begin);
  out.integer(kNumKnown, history.num_known);
  out.integer(kPriority, history.priority);
  out.integer(kHasDiverged, history.has_diverged ? 1 : 0);
  if (history.num_given != 0) out.integer(kNumGiven, history.num_given);
  return out;
}

WireWriter written(const SequenceImage& sequence) {
  WireWriter out;
  out.integer(kId, sequence.id);
  out.integer(kLength, sequence.length);
  out.integer(kCrossLength, sequence.cross_length);
  out.integer(kWindow, sequence.window);
  out.integer(kSink, sequence.sink);
  out.array(kSegments, sequence.segments);
  if (sequence.lead.ahead != 0) {
    out.integer(kLeadBegin, sequence.lead.begin);
    out.integer(kLeadAhead, sequence.lead.ahead);
  }
  for (const TableImage& table : sequence.tables) out.record(kTable, written(table));
  out.integer(kState, sequence.state);
  out.array(kCheckpoints, sequence.checkpoints);
  out.integer(kFirstUnwritten, sequence.first_unwritten);
  out.record(kHistory, written(sequence.history));
  return out;
}

// ---- Reading

TableImage read_table(WireReader in) {
  TableImage table;
  while (in.next()) {
    switch (in.tag()) {
      case kKeptBegin: table.kept_begin = in.integer(0, kMaxSequenceLength); break;
      case kSinkKept: table.sink_kept = in.integer(0, kMaxSequenceLength); break;
      case kPages: table.pages = in.array<int32_t>(); break;
      default: in.skip();
    }
  }
  return table;
}

ExtraKey read_extra(WireReader in) {
  ExtraKey key;
  while (in.next()) {
    switch (in.tag()) {
      case kType: key.type = static_cast<kvc_prefix_key_type>(in.integer(0, INT32_MAX)); break;
      case kOffset: key.offset = in.integer(0, kMaxSequenceLength); break;
      case kData: key.data = in.text(); break;
      default: in.skip();
    }
  }
  return key;
}

TokenHistory read_history(WireReader in) {
  TokenHistory history;
  std::vector<ExtraKey> extra;
  while (in.next()) {
    switch (in.tag()) {
      case kRoot: history.root = in.value<BlockKey>(); break;
      case kExtra: extra.push_back(read_extra(in.record("an extra key"))); break;
      case kKeys: history.keys = in.array<BlockKey>(); break;
      case kTokens: history.ids = in.array<int32_t>(); break;
      case kTokensBegin: history.ids_begin = in.integer(0, kMaxSequenceLength); break;
      case kNumKnown: history.num_known = in.integer(0, kMaxSequenceLength); break;
      case kPriority:
        history.priority = static_cast<int32_t>(in.integer(-kMaxPriority, kMaxPriority));
        break;
      case kHasDiverged: history.has_diverged = in.integer(0, 1) != 0; break;
      case kNumGiven: history.num_given = in.integer(0, kMaxSequenceLength); break;
      default: in.skip();
    }
  }
  if (!extra.empty())
    history.extra = std::make_shared<const std::vector<ExtraKey>>(std::move(extra));
  return history;
}

SequenceImage read_sequence(WireReader in) {
  SequenceImage sequence;
  while (in.next()) {
    switch (in.tag()) {
      case kId: sequence.id = in.integer(0, INT64_MAX); break;
      case kLength: sequence.length = in.integer(0, kMaxSequenceLength); break;
      case kCrossLength: sequence.cross_length = in.integer(0, kMaxSequenceLength); break;
      case kWindow: sequence.window = in.integer(0, INT64_MAX); break;
      case kSink: sequence.sink = in.integer(0, INT64_MAX); break;
      case kSegments: sequence.segments = in.array<PositionSegment>(); break;
      case kLeadBegin: sequence.lead.begin = in.integer(0, kMaxSequenceLength); break;
      case kLeadAhead: sequence.lead.ahead = in.integer(-kMostAhead, kMostAhead); break;
      case kTable: sequence.tables.push_back(read_table(in.record("a page table"))); break;
      case kState: sequence.state = static_cast<int32_t>(in.integer(-1, INT32_MAX)); break;
      case kCheckpoints: sequence.checkpoints = in.array<CheckpointImage>(); break;
      case kFirstUnwritten: sequence.first_unwritten = in.integer(0, kAllWritten); break;
      case kHistory: sequence.history = read_history(in.record("a token history")); break;
      default: in.skip();
    }
  }
  return sequence;
}

// ---- Checks

[[noreturn]] void fail_sequence(const SequenceImage& sequence, const char* what) {
  fail_with(KVC_E_CORRUPT, sequence.id, "sequence %lld of the state file %s", ll(sequence.id),
            what);
}

// `last_user`: by page, the last sequence that has named it; -1: none.
void check_tables(const SequenceImage& sequence, int32_t number, const StateFileImage& image,
                  const Spec& spec, std::vector<int32_t>& last_user) {
  if (sequence.tables.size() != spec.groups.size())
    fail_sequence(sequence, "has page tables for another number of layer groups");
  int64_t group_begin = 0;
  for (size_t group = 0; group < spec.groups.size(); ++group) {
    const TableImage& table = sequence.tables[group];
    const int64_t page_size = spec.groups[group].page_size;
    const int64_t stored = spec.groups[group].is_cross
                               ? sequence.cross_length
                               : spec.groups[group].tokens_of(sequence.length);
    const int64_t group_end = group_begin + image.pages_per_group[group];
    if (static_cast<int64_t>(table.pages.size()) != spec.groups[group].pages_for(stored) ||
        table.kept_begin > (spec.groups[group].may_drop() ? stored : 0) ||
        table.sink_kept > table.kept_begin)
      fail_sequence(sequence, "has a page table of another length");
    for (size_t entry = 0; entry < table.pages.size(); ++entry) {
      const int64_t page = table.pages[entry], first = static_cast<int64_t>(entry) * page_size;
      const bool is_kept = first < table.sink_kept || first + page_size > table.kept_begin;
      if (is_kept != (page != -1)) {
        fail_sequence(sequence,
                      is_kept ? "lacks a page that it keeps" : "has a page that it does not keep");
      }
      if (page == -1) continue;
      if (page < group_begin || page >= group_end)
        fail_sequence(sequence, "names a page of another layer group");
      // Sequences may share a page at different positions: one that was shifted moves pages of rows
      // that no position has rotated.
      if (last_user[page] == number) fail_sequence(sequence, "names a page twice");
      last_user[page] = number;
    }
    group_begin = group_end;
  }
}

void check_history(const SequenceImage& sequence, const Spec& spec) {
  const TokenHistory& history = sequence.history;
  const int64_t block = spec.prefix_block();
  if (history.num_known == 0 && history.keys.empty() && history.ids.empty()) return;
  const bool fits =
      !history.has_diverged && history.num_known <= sequence.length &&
      history.ids_begin <= history.num_known && history.ids_begin % block == 0 &&
      static_cast<int64_t>(history.ids.size()) == history.num_known - history.ids_begin &&
      static_cast<int64_t>(history.keys.size()) == history.num_known / block &&
      history.num_given <= history.num_known / block;
  if (!fits) fail_sequence(sequence, "has a token history of another length");
  // The keys of tokens that are known follow from them, where the caller did not give the keys.
  for (int64_t i = std::max(history.ids_begin / block, history.num_given);
       i < static_cast<int64_t>(history.keys.size()); ++i) {
    const BlockKey key =
        block_key(i == 0 ? history.root : history.keys[i - 1],
                  history.extra == nullptr ? no_extra_keys : *history.extra, i * block,
                  history.block_ids(i, static_cast<int32_t>(block)), static_cast<int32_t>(block));
    if (key != history.keys[i]) fail_sequence(sequence, "has a key that is not its tokens'");
  }
}

void check_states(const SequenceImage& sequence, const StateFileImage& image, const Spec& spec) {
  // -1 is the initial state.
  const auto is_state = [&](int32_t state) { return state >= -1 && state < image.num_states; };
  if (!is_state(sequence.state)) fail_sequence(sequence, "names a state that is not there");
  if (!spec.has_states() && (sequence.state != -1 || !sequence.checkpoints.empty()))
    fail_sequence(sequence, "has states, the layers have none");
  int64_t before = -1;
  for (const CheckpointImage& checkpoint : sequence.checkpoints) {
    if (checkpoint.position <= before || checkpoint.position > sequence.length ||
        !is_state(checkpoint.state))
      fail_sequence(sequence, "has a checkpoint out of order");
    before = checkpoint.position;
  }
}

void check_positions(const SequenceImage& sequence) {
  const bool has_window = sequence.window != 0;
  if ((has_window && sequence.sink >= sequence.window) || (!has_window && sequence.sink != 0))
    fail_sequence(sequence, "has a window without room beside its sink tokens");
  if (sequence.lead.ahead != 0 && sequence.lead.begin >= sequence.length)
    fail_sequence(sequence, "has rows ahead of tokens that it has not");
  int64_t before = -1;
  for (const PositionSegment& segment : sequence.segments) {
    const bool fits = segment.begin > before && segment.begin <= sequence.length &&
                      std::abs(segment.offset) <= kMaxSequenceLength;
    if (!fits) fail_sequence(sequence, "has positions out of order");
    before = segment.begin;
  }
}

}  // namespace

int64_t StateFileImage::num_pages() const {
  return std::accumulate(pages_per_group.begin(), pages_per_group.end(), int64_t{0});
}

uint64_t StateFileImage::payload_bytes() const {
  uint64_t bytes = static_cast<uint64_t>(num_states) * static_cast<uint64_t>(state_bytes);
  for (size_t group = 0; group < pages_per_group.size(); ++group) {
    bytes +=
        static_cast<uint64_t>(pages_per_group[group]) * static_cast<uint64_t>(page_bytes[group]);
  }
  return bytes;
}

std::vector<std::byte> encode(const StateFileImage& image) {
  WireWriter out;
  out.text(kLayout, image.layout);
  out.text(kModelId, image.model_id);
  out.array(kPagesPerGroup, image.pages_per_group);
  out.array(kPageBytes, image.page_bytes);
  out.integer(kNumStates, image.num_states);
  out.integer(kStateBytes, image.state_bytes);
  for (const SequenceImage& sequence : image.sequences) out.record(kSequence, written(sequence));
  return out.data();
}

StateFileImage decode_state_file(std::span<const std::byte> bytes) {
  constexpr int64_t kMostBytes = int64_t{1} << 48;
  StateFileImage image;
  WireReader in(bytes, "the description in the state file");
  while (in.next()) {
    switch (in.tag()) {
      case kLayout: image.layout = in.text(); break;
      case kModelId: image.model_id = in.text(); break;
      case kPagesPerGroup: image.pages_per_group = in.array<int64_t>(); break;
      case kPageBytes: image.page_bytes = in.array<int64_t>(); break;
      case kNumStates: image.num_states = in.integer(0, INT32_MAX); break;
      case kStateBytes: image.state_bytes = in.integer(0, kMostBytes); break;
      case kSequence: image.sequences.push_back(read_sequence(in.record("a sequence"))); break;
      default: in.skip();
    }
  }
  if (image.pages_per_group.size() != image.page_bytes.size())
    fail(KVC_E_CORRUPT, "the state file has pages of %zu layer groups and page sizes of %zu",
         image.pages_per_group.size(), image.page_bytes.size());
  int64_t pages = 0;
  for (size_t group = 0; group < image.pages_per_group.size(); ++group) {
    const int64_t count = image.pages_per_group[group], size = image.page_bytes[group];
    if (count < 0 || count > INT32_MAX || size < 0 || size > kMostBytes ||
        (pages += count) > INT32_MAX)
      fail(KVC_E_CORRUPT, "layer group %zu of the state file has %lld pages of %lld bytes", group,
           ll(count), ll(size));
  }
  return image;
}

void check_sequence(const SequenceImage& sequence, const Spec& spec) {
  check_positions(sequence);
  check_history(sequence, spec);
}

void check_image(const StateFileImage& image, const Spec& spec, const Layout& layout) {
  const bool fits =
      image.page_bytes == layout.group_bytes && image.state_bytes == layout.state_slot_bytes;
  if (!fits)
    fail(KVC_E_CORRUPT, "the state file has pages or states of other bytes than its layout");
  int64_t num_entries = 0;
  for (const SequenceImage& sequence : image.sequences) {
    for (const TableImage& table : sequence.tables)
      num_entries += static_cast<int64_t>(table.pages.size());
  }
  const bool is_used = image.num_pages() <= num_entries;
  std::vector<int32_t> last_user(static_cast<size_t>(is_used ? image.num_pages() : 0), -1);
  if (!is_used) fail(KVC_E_CORRUPT, "the state file has a page that no sequence uses");
  for (size_t i = 0; i < image.sequences.size(); ++i) {
    const SequenceImage& sequence = image.sequences[i];
    check_tables(sequence, static_cast<int32_t>(i), image, spec, last_user);
    check_states(sequence, image, spec);
    check_sequence(sequence, spec);
  }
  if (std::find(last_user.begin(), last_user.end(), -1) != last_user.end())
    fail(KVC_E_CORRUPT, "the state file has a page that no sequence uses");
}

int64_t largest_chunk(const StateFileImage& image, const Layout& layout) {
  int64_t bytes = items_per_chunk(image.state_bytes) * image.state_bytes;
  bytes = std::max(bytes, layout.state_slot_bytes);
  for (size_t group = 0; group < image.page_bytes.size(); ++group) {
    bytes = std::max(bytes, items_per_chunk(image.page_bytes[group]) *
                                std::max(image.page_bytes[group], layout.group_bytes[group]));
  }
  return std::max<int64_t>(bytes, 1);
}

void expect_chunk(ChunkReader& reader, const ChunkHead* head, uint32_t tag, int64_t first,
                  int64_t count, int64_t bytes) {
  if (head == nullptr) reader.fail_chunk("is the end: pages or states are missing");
  const bool fits = head->tag == tag && head->first == static_cast<uint64_t>(first) &&
                    head->count == static_cast<uint64_t>(count) &&
                    head->bytes == static_cast<uint64_t>(bytes);
  if (!fits) reader.fail_chunk("is not the one that the description announces");
}

StateFileImage read_description(ChunkReader& reader) {
  const ChunkHead* head = reader.next();
  if (head == nullptr || head->tag != kDescription)
    reader.fail_chunk("is not the description of the sequences");
  return decode_state_file(reader.payload());
}

void check_contents(ChunkReader& reader, const StateFileImage& image) {
  read_contents(
      reader, image, [](int64_t, int64_t, size_t, std::span<const std::byte>) {},
      [](int64_t, int64_t, std::span<const std::byte>) {});
}

namespace {

using Json = nlohmann::ordered_json;

std::string hexadecimal(const BlockKey& key) {
  std::string text;
  for (const uint8_t byte : key.bytes) append_format(text, "%02x", byte);
  return text;
}

Json layout_of(const std::string& text) {
  Json fields = Json::object();
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    const size_t equals = line.find(" = ");
    if (equals != std::string::npos) fields[line.substr(0, equals)] = line.substr(equals + 3);
    begin = end + 1;
  }
  return fields;
}

Json described(const SequenceImage& sequence) {
  return {{"id", sequence.id},
          {"length", sequence.length},
          {"cross_length", sequence.cross_length},
          {"num_known_tokens", sequence.history.num_known},
          {"num_checkpoints", sequence.checkpoints.size()},
          {"window", sequence.window},
          {"sink", sequence.sink},
          {"k_ahead", sequence.lead.ahead},
          {"k_ahead_begin", sequence.lead.begin},
          {"namespace", hexadecimal(sequence.history.root)}};
}

}  // namespace

std::string describe_state_file(ByteSource& source) {
  ChunkReader reader(&source);
  const StateFileImage image = read_description(reader);
  check_contents(reader, image);
  Json report = {{"format", reader.header().version},
                 {"bytes", reader.offset()},
                 {"fingerprint", layout_fingerprint(image.layout)},
                 {"model_id", image.model_id},
                 {"num_pages", image.num_pages()},
                 {"num_states", image.num_states},
                 {"page_bytes", image.page_bytes},
                 {"state_bytes", image.state_bytes},
                 {"sequences", Json::array()},
                 {"layout", layout_of(image.layout)}};
  for (const SequenceImage& sequence : image.sequences)
    report["sequences"].push_back(described(sequence));
  // Names in a damaged file may be no UTF-8.
  return report.dump(1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace kvc
