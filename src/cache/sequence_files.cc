#include "src/cache/sequence_files.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "src/base/error.h"
#include "src/base/math.h"
#include "src/cache/cache_core.h"
#include "src/cache/context_shift.h"
#include "src/cache/page_bytes.h"
#include "src/cache/state_file.h"
#include "src/plan/layout.h"
#include "src/sequences/sequences.h"

namespace kvc {
namespace {

// ---- Saving

// What goes into a file: the image, and where its pages and states lie in the cache.
struct Contents {
  StateFileImage image;
  std::vector<PageId> pages;        // [page of the file]
  std::vector<int64_t> num_tokens;  // [page of the file] Tokens that it holds.
  std::vector<StateSlot> states;    // [state of the file]

  Contents(const CacheCore& core, const std::vector<const Sequence*>& sequences,
           const std::string& model_id);
};

Contents::Contents(const CacheCore& core, const std::vector<const Sequence*>& sequences,
                   const std::string& model_id) {
  const Spec& spec = core.spec();
  image.layout = layout_text(core.spec());
  image.model_id = model_id;
  image.page_bytes = core.plan->layout().group_bytes;
  image.state_bytes = core.plan->layout().state_slot_bytes;
  image.sequences.resize(sequences.size());
  // Numbers are given in the order in which pages are met, group after group.
  std::vector<int32_t> number_of_page(static_cast<size_t>(core.allocator.num_pages()), -1);
  for (size_t group = 0; group < spec.groups.size(); ++group) {
    const int64_t page_size = spec.groups[group].page_size;
    const size_t before = pages.size();
    for (size_t i = 0; i < sequences.size(); ++i) {
      const PageTable& table = sequences[i]->tables[group];
      const int64_t stored = sequences[i]->stored(spec.groups[group]);
      TableImage& out = image.sequences[i].tables.emplace_back();
      out.kept_begin = table.kept_begin;
      out.sink_kept = table.sink_kept;
      out.pages.assign(static_cast<size_t>(table.pages.size()), -1);
      table.pages.for_each([&](int64_t place, PageId page) {
        int32_t& number = number_of_page[page];
        if (number == -1) {
          number = static_cast<int32_t>(pages.size());
          pages.push_back(page);
          num_tokens.push_back(0);
        }
        out.pages[place] = number;
        const int64_t tokens = std::min(page_size, stored - place * page_size);
        num_tokens[number] = std::max(num_tokens[number], tokens);
      });
    }
    image.pages_per_group.push_back(static_cast<int64_t>(pages.size() - before));
  }
  std::vector<int32_t> number_of_state(static_cast<size_t>(core.states.num_slots()), -1);
  const auto number_of = [&](StateSlot slot) {
    if (slot == kInitialState) return -1;
    int32_t& number = number_of_state[slot];
    if (number == -1) {
      number = static_cast<int32_t>(states.size());
      states.push_back(slot);
    }
    return number;
  };
  for (size_t i = 0; i < sequences.size(); ++i) {
    const Sequence& sequence = *sequences[i];
    SequenceImage& out = image.sequences[i];
    out.id = sequence.id;
    out.length = sequence.length;
    out.cross_length = sequence.cross_length;
    out.window = sequence.window;
    out.sink = sequence.sink;
    out.segments = sequence.segments;
    out.lead = sequence.lead;
    out.first_unwritten = sequence.first_unwritten;
    out.history = sequence.history;
    out.state = number_of(sequence.state);
    for (const Checkpoint& checkpoint : sequence.checkpoints)
      out.checkpoints.push_back(
          {checkpoint.position, number_of(checkpoint.slot), checkpoint.is_automatic ? 1 : 0});
  }
  image.num_states = static_cast<int64_t>(states.size());
}

std::vector<const Sequence*> to_save(const CacheCore& core, size_t num_seqs, const kvc_seq* seqs) {
  core.require_storage("kvc_seq_save");
  if (num_seqs == 0) fail(KVC_E_INVALID_ARGUMENT, "n = 0: at least 1 sequence");
  if (seqs == nullptr) fail(KVC_E_INVALID_ARGUMENT, "seqs is NULL with n = %zu", num_seqs);
  std::vector<const Sequence*> sequences;
  std::vector<kvc_seq> ids;
  for (size_t i = 0; i < num_seqs; ++i) {
    sequences.push_back(&core.sequences.get_settled(seqs[i], "save"));
    ids.push_back(seqs[i]);
    if (ids.size() > core.sequences.size()) break;  // No more can be distinct.
  }
  require_distinct(std::move(ids));
  return sequences;
}

// ---- Loading

void check_model(const StateFileImage& image, const std::string& model_id, const char* name) {
  if (!model_id.empty() && model_id != image.model_id) {
    fail(KVC_E_INVALID_ARGUMENT, "desc.model_id = \"%.100s\", %s was saved with \"%.100s\"",
         model_id.c_str(), name, image.model_id.c_str());
  }
}

// Null when the layouts are equal. Throws UNSUPPORTED.
std::unique_ptr<PageConversion> conversion_of(const CacheCore& core, const StateFileImage& image,
                                              bool converts, const char* name) {
  const std::string mine = layout_text(core.spec());
  if (image.layout == mine) return nullptr;
  if (converts) return std::make_unique<PageConversion>(*core.plan, image.layout, name);
  fail(KVC_E_UNSUPPORTED, "%s has pages of another layout: %s", name,
       layout_difference(mine, "this cache", image.layout, "the file").c_str());
}

void check_new_ids(const CacheCore& core, size_t num_seqs, const kvc_seq* seqs, size_t expected) {
  if (num_seqs != expected) {
    fail_with(KVC_E_INVALID_ARGUMENT, static_cast<int64_t>(expected),
              "n = %zu, the file has %zu sequences", num_seqs, expected);
  }
  if (seqs == nullptr && num_seqs != 0)
    fail(KVC_E_INVALID_ARGUMENT, "seqs is NULL with n = %zu", num_seqs);
  for (size_t i = 0; i < num_seqs; ++i) core.sequences.check_new_id(seqs[i], "seq");
  require_distinct({seqs, seqs + num_seqs});
}

// [page of the file] The device page of an equal block of the prefix index, which publishing would
// put into its place anyway; kNoPage: it needs one of its own.
std::vector<PageId> pages_of_index(const CacheCore& core, const StateFileImage& image) {
  std::vector<PageId> known(static_cast<size_t>(image.num_pages()), kNoPage);
  const BlockTree& blocks = core.index.blocks();
  for (const SequenceImage& sequence : image.sequences) {
    NodeId parent = kNoNode;
    const int64_t num_blocks = std::min(static_cast<int64_t>(sequence.history.keys.size()),
                                        sequence.first_unwritten / core.index.block_tokens());
    for (int64_t block = 0; block < num_blocks; ++block) {
      const NodeId node = blocks.find(sequence.history.root, sequence.history.keys[block]);
      if (node == kNoNode || blocks.nodes[node].parent != parent) break;
      parent = node;
      for (size_t group = 0; group < sequence.tables.size(); ++group) {
        const BlockGroup& spec = blocks.shape.groups[group];
        for (int32_t i = 0; i < spec.pages_of(block); ++i) {
          const int32_t page = sequence.tables[group].pages[block * spec.num_pages + i];
          const PageId of_index = blocks.nodes.place(node, spec.first_page + i).device;
          if (page != -1 && of_index != kNoPage) known[page] = of_index;
        }
      }
    }
  }
  return known;
}

// Pages and states that are taken for a file, with a reference of its own to each: what no sequence
// refers to by the end is free again.
class Taken {
 public:
  explicit Taken(CacheCore& core) : core_(core) {}
  ~Taken() {
    for (const PageId page : pages) {
      if (page != kNoPage) core_.allocator.drop_ref(page);
    }
    for (const StateSlot slot : states) core_.states.drop_ref(slot);
  }
  Taken(const Taken&) = delete;
  Taken& operator=(const Taken&) = delete;

  // Room for so many; throws std::bad_alloc.
  void reserve(int64_t num_pages, int64_t num_states) {
    pages.reserve(static_cast<size_t>(num_pages));
    states.reserve(static_cast<size_t>(num_states));
  }
  // Refers to the pages that are known, so that no eviction takes them.
  void share(const std::vector<PageId>& known) noexcept {
    pages.assign(known.begin(), known.end());  // Within what was reserved.
    for (const PageId page : known) {
      if (page != kNoPage) core_.allocator.add_ref(page);
    }
  }
  // Takes the others.
  void take(int64_t num_pages, int64_t num_states) noexcept {
    PageId before = kNoPage;
    for (PageId& page : pages) {
      if (page == kNoPage) page = before = core_.allocator.take(before, --num_pages);
    }
    for (int64_t i = 0; i < num_states; ++i) states.push_back(core_.states.take());
  }

  std::vector<PageId> pages;
  std::vector<StateSlot> states;

 private:
  CacheCore& core_;
};

std::unique_ptr<Sequence> make_sequence(CacheCore& core, kvc_seq id, size_t num_seqs,
                                        const SequenceImage& image) {
  const Spec& spec = core.spec();
  std::unique_ptr<Sequence> sequence = core.sequences.make(id, num_seqs);
  sequence->length = image.length;
  sequence->cross_length = image.cross_length;
  sequence->window = image.window;
  sequence->sink = image.sink;
  sequence->segments = image.segments;
  sequence->lead = image.lead;
  sequence->first_unwritten = image.first_unwritten;
  sequence->history = image.history;
  sequence->history.num_published = 0;
  sequence->state = image.state;
  for (const CheckpointImage& checkpoint : image.checkpoints)
    sequence->checkpoints.push_back(
        {checkpoint.position, checkpoint.state, checkpoint.is_automatic != 0});
  sequence->tables.resize(image.tables.size());
  for (size_t group = 0; group < image.tables.size(); ++group) {
    PageTable& table = sequence->tables[group];
    table.kept_begin = image.tables[group].kept_begin;
    table.sink_kept = image.tables[group].sink_kept;
    const std::vector<int32_t>& pages = image.tables[group].pages;
    table.pages.assign_dropped(static_cast<int64_t>(pages.size()));
    for (size_t place = 0; place < pages.size(); ++place) table.pages.set(place, pages[place]);
    table.close_up(spec.groups[group].page_size);
  }
  return sequence;
}

// From numbers in the file to pages and slots of the cache.
void renumber(Sequence& sequence, const Taken& taken) noexcept {
  for (PageTable& table : sequence.tables) {
    table.pages.map_pages([&](PageId number) { return taken.pages[number]; });
  }
  if (sequence.state != kInitialState) sequence.state = taken.states[sequence.state];
  for (Checkpoint& checkpoint : sequence.checkpoints) {
    if (checkpoint.slot != kInitialState) checkpoint.slot = taken.states[checkpoint.slot];
  }
}

}  // namespace

uint64_t SequenceFiles::measure(size_t num_seqs, const kvc_seq* seqs,
                                const std::string& model_id) const {
  const Contents contents(core_, to_save(core_, num_seqs, seqs), model_id);
  uint64_t num_chunks = 1;
  for_each_page_chunk(contents.image, [&](int64_t, int64_t, int64_t, size_t) { ++num_chunks; });
  for_each_state_chunk(contents.image, [&](int64_t, int64_t) { ++num_chunks; });
  return ChunkWriter::file_bytes(num_chunks,
                                 encode(contents.image).size() + contents.image.payload_bytes());
}

void SequenceFiles::save(size_t num_seqs, const kvc_seq* seqs, const std::string& model_id,
                         ByteSink& sink, CallStream stream) const {
  const Contents contents(core_, to_save(core_, num_seqs, seqs), model_id);
  const StateFileImage& image = contents.image;
  const Staging staging(core_.found_gpu, largest_chunk(image, core_.plan->layout()));
  const UnusedBytes unused(*core_.plan);
  ChunkWriter writer(&sink);
  writer.write(kDescription, 0, image.sequences.size(), encode(image));
  for_each_page_chunk(image, [&](int64_t first, int64_t count, int64_t bytes, size_t group) {
    core_.device->read_pages(contents.pages.data() + first, count, bytes, staging.data(), stream);
    for (int64_t i = 0; i < count; ++i)
      unused.clear_page(group, contents.num_tokens[first + i], staging.data() + i * bytes);
    writer.write(kPagesTag, static_cast<uint64_t>(first), static_cast<uint64_t>(count),
                 {staging.data(), static_cast<size_t>(count * bytes)});
  });
  for_each_state_chunk(image, [&](int64_t first, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      std::byte* state = staging.data() + i * image.state_bytes;
      core_.device->read_bytes(state, core_.states.memory().slot(contents.states[first + i]),
                               image.state_bytes, stream);
      unused.clear_state(state);
    }
    writer.write(kStatesTag, static_cast<uint64_t>(first), static_cast<uint64_t>(count),
                 {staging.data(), static_cast<size_t>(count * image.state_bytes)});
  });
  writer.finish();
}

void SequenceFiles::load(size_t num_seqs, const kvc_seq* seqs, const std::string& model_id,
                         const LoadFlags& flags, ByteSource& source, CallStream stream) {
  core_.require_storage("kvc_seq_load");
  core_.require_closed("load");
  ChunkReader reader(&source);
  StateFileImage image = read_description(reader);
  check_model(image, model_id, source.name());
  const std::unique_ptr<PageConversion> conversion =
      conversion_of(core_, image, flags.converts, source.name());
  const Layout& layout = core_.plan->layout();
  check_image(image, core_.spec(), conversion == nullptr ? layout : conversion->layout());
  check_new_ids(core_, num_seqs, seqs, image.sequences.size());
  for (SequenceImage& sequence : image.sequences) {
    if (!flags.publishes) sequence.history.diverge();
  }

  const std::vector<PageId> known = pages_of_index(core_, image);
  std::vector<PageId> shared;  // Distinct.
  std::copy_if(known.begin(), known.end(), std::back_inserter(shared),
               [](PageId page) { return page != kNoPage; });
  const int64_t num_taken = image.num_pages() - static_cast<int64_t>(shared.size());
  std::sort(shared.begin(), shared.end());
  shared.erase(std::unique(shared.begin(), shared.end()), shared.end());
  const int64_t num_cached = std::count_if(
      shared.begin(), shared.end(), [&](PageId page) { return core_.allocator.refs(page) == 0; });
  const int64_t num_pages = num_taken + static_cast<int64_t>(shared.size());
  const int64_t num_states = image.num_states;
  const int64_t of_states = num_states * core_.states.slot_pages();
  const int64_t needed = num_taken + of_states;
  if (num_pages + of_states > core_.allocator.num_pages()) {
    fail_with(KVC_E_NEVER_FITS, num_pages + of_states, "%s has %lld pages, the cache %lld",
              source.name(), ll(num_pages + of_states), ll(core_.allocator.num_pages()));
  }
  // Pages of the index that the sequences share are not evicted for the others.
  const int64_t missing =
      std::max<int64_t>(0, needed + num_cached - core_.allocator.num_available());
  const int64_t missing_states = core_.states.missing(num_states);
  if (missing > 0 || missing_states > 0) {
    fail_with(KVC_E_NO_PAGES, missing + missing_states,
              "%s has %lld pages and %lld states: %lld pages and %lld state slots are missing",
              source.name(), ll(num_pages), ll(num_states), ll(missing), ll(missing_states));
  }
  // A damaged file evicts nothing.
  const bool evicts = needed > core_.allocator.num_free() || core_.states.to_evict(num_states) > 0;
  if (evicts) {
    ChunkReader check(&source);
    (void)read_description(check);
    check_contents(check, image);
  }
  const bool keeps_leads = keeps_key_leads(core_);
  int64_t num_blocks = 0, longest = 0;
  std::vector<std::unique_ptr<Sequence>> sequences;
  for (size_t i = 0; i < num_seqs; ++i) {
    sequences.push_back(make_sequence(core_, seqs[i], num_seqs, image.sequences[i]));
    num_blocks += static_cast<int64_t>(image.sequences[i].history.keys.size());
    if (!keeps_leads && image.sequences[i].lead.ahead != 0)
      longest = std::max(longest, image.sequences[i].length);
  }
  core_.index.reserve(num_blocks + core_.forward.batch().num_new_blocks());
  const Staging staging(core_.found_gpu, largest_chunk(image, layout));
  Taken taken(core_);
  taken.reserve(image.num_pages(), num_states);
  core_.states.prepare(num_states);
  taken.share(known);
  if (needed > core_.allocator.num_free()) core_.index.eviction().evict_for(needed, stream);
  if (core_.states.to_evict(num_states) > 0) core_.index.eviction().evict_states_for(num_states);
  taken.take(num_taken, num_states);
  read_contents(
      reader, image,
      [&](int64_t first, int64_t count, size_t group, std::span<const std::byte> payload) {
        const int64_t bytes = layout.group_bytes[group];
        const std::byte* from = staging.data();
        if (conversion != nullptr) {
          for (int64_t i = 0; i < count; ++i)
            conversion->convert_page(group, payload.data() + i * image.page_bytes[group],
                                     staging.data() + i * bytes);
        } else if (core_.found_gpu.table != nullptr) {
          std::memcpy(staging.data(), payload.data(), payload.size());
        } else {
          from = payload.data();
        }
        for (int64_t i = 0, end = 0; i < count; i = end + 1) {  // Runs between shared pages.
          for (end = i; end < count && known[first + end] == kNoPage;) ++end;
          if (end > i) {
            core_.device->write_pages(taken.pages.data() + first + i, end - i, bytes,
                                      from + i * bytes, stream);
          }
        }
      },
      [&](int64_t first, int64_t count, std::span<const std::byte> payload) {
        for (int64_t i = 0; i < count; ++i) {
          const std::byte* from = payload.data() + i * image.state_bytes;
          if (conversion != nullptr) {
            conversion->convert_state(from, staging.data());
          } else {
            std::memcpy(staging.data(), from, static_cast<size_t>(image.state_bytes));
          }
          core_.device->write_bytes(core_.states.memory().slot(taken.states[first + i]),
                                    staging.data(), layout.state_slot_bytes, stream);
        }
      });
  LeadSettler settler(core_, longest);
  // Nothing throws from here on.
  for (std::unique_ptr<Sequence>& made : sequences) {
    renumber(*made, taken);
    if (!keeps_leads) settler.settle(*made);
    Sequence& sequence = core_.sequences.adopt(std::move(made));
    core_.publisher.publish(sequence, stream);
  }
  core_.note_pages_used();
}

}  // namespace kvc
