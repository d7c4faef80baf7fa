#include "tests/model/prefix_events.h"

#include <cstring>

#include "tests/model/random_run.h"

namespace kvc::test {
namespace {

std::string text_of(const uint8_t* hash) { return std::string(hash, hash + KVC_HASH_BYTES); }

// A STORED event tells the truth about a block that the test has published.
void check_stored(const kvc_event& event,
                  const std::map<std::string, EventConsumer::Block>& blocks) {
  const auto found = blocks.find(text_of(event.hash));
  if (found == blocks.end()) mismatch("an event stores a block that nobody published");
  const EventConsumer::Block& block = found->second;
  if (event.num_tokens != static_cast<int32_t>(block.tokens.size()))
    mismatch("an event has %d tokens, its block %zu", event.num_tokens, block.tokens.size());
  if (event.tokens != nullptr &&
      std::memcmp(event.tokens, block.tokens.data(), block.tokens.size() * sizeof(int32_t)) != 0)
    mismatch("an event has other tokens than its block");
  if (!block.parent.empty() && text_of(event.parent) != block.parent)
    mismatch("an event names another parent than its block has");
}

}  // namespace

void EventConsumer::apply(const kvc_event& event, const std::map<std::string, Block>& blocks) {
  const std::pair<std::string, int32_t> key{text_of(event.hash), event.group};
  const auto found = held_.find(key);
  switch (event.type) {
    case KVC_EVENT_STORED:
      if (found != held_.end()) mismatch("event %llu stores what is held", event.number + 0ULL);
      check_stored(event, blocks);
      held_[key] = event.tier;
      break;
    case KVC_EVENT_REMOVED:
      if (found == held_.end())
        mismatch("event %llu removes what is not held", event.number + 0ULL);
      if (found->second != event.tier)
        mismatch("event %llu removes from tier %d", event.number + 0ULL, event.tier);
      held_.erase(found);
      break;
    case KVC_EVENT_MOVED:
      if (found == held_.end() || found->second != event.from_tier)
        mismatch("event %llu moves what is not in tier %d", event.number + 0ULL, event.from_tier);
      found->second = event.tier;
      break;
    case KVC_EVENT_CLEARED: held_.clear(); break;
    default: mismatch("event %llu has type %d", event.number + 0ULL, event.type);
  }
}

EventConsumer::Snapshot EventConsumer::take(const kvc_cache* cache,
                                            const std::map<std::string, Block>& blocks) {
  size_t count = 0;
  Snapshot snapshot{};
  if (kvc_events_snapshot(cache, nullptr, &count, &snapshot.number, nullptr) != KVC_OK)
    mismatch("kvc_events_snapshot does not count");
  std::vector<kvc_event> events(count + 1, kvc_event{});
  for (kvc_event& event : events) event.struct_size = sizeof event;
  count = events.size();
  if (kvc_events_snapshot(cache, events.data(), &count, &snapshot.number, nullptr) != KVC_OK)
    mismatch("kvc_events_snapshot does not fill");
  for (size_t i = 0; i < count; ++i) {
    const kvc_event& event = events[i];
    if (event.type != KVC_EVENT_STORED) mismatch("a snapshot has an event of type %d", event.type);
    check_stored(event, blocks);
    const auto [unused, is_new] =
        snapshot.held.emplace(std::pair{text_of(event.hash), event.group}, event.tier);
    if (!is_new) mismatch("a snapshot has a block's group twice");
  }
  return snapshot;
}

void EventConsumer::poll(kvc_cache* cache, Random& random,
                         const std::map<std::string, Block>& blocks, bool all) {
  for (;;) {
    const auto capacity = static_cast<size_t>(random.range(1, random.chance(0.5) ? 3 : 40));
    std::vector<kvc_event> events(capacity, kvc_event{});
    for (kvc_event& event : events) event.struct_size = sizeof event;
    size_t count = capacity;
    const kvc_status status = kvc_events_poll(cache, events.data(), &count, nullptr);
    if (status != KVC_OK) mismatch("kvc_events_poll answered %s", kvc_status_name(status));
    if (count > capacity) mismatch("kvc_events_poll gave %zu events for %zu", count, capacity);
    for (size_t i = 0; i < count; ++i) {
      if (events[i].number <= last_) continue;  // in the snapshot already
      if (events[i].number != last_ + 1) {
        Snapshot snapshot = take(cache, blocks);
        held_ = std::move(snapshot.held);
        last_ = snapshot.number;
        if (last_ < events[i].number) mismatch("a snapshot is older than a polled event");
        continue;
      }
      apply(events[i], blocks);
      last_ = events[i].number;
    }
    if (count == 0 || (!all && count < capacity)) return;
    if (!all) return;
  }
}

void EventConsumer::compare(const kvc_cache* cache,
                            const std::map<std::string, Block>& blocks) const {
  const Snapshot snapshot = take(cache, blocks);
  if (snapshot.number != last_)
    mismatch("everything is polled up to event %llu, the snapshot is of %llu", last_ + 0ULL,
             snapshot.number + 0ULL);
  if (snapshot.held != held_)
    mismatch("events lead to %zu held groups of blocks, the snapshot has %zu, or they differ",
             held_.size(), snapshot.held.size());
}

}  // namespace kvc::test
