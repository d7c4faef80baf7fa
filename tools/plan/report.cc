#include "tools/plan/report.h"

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "tools/plan/size.h"

namespace kvc::plan_tool {
namespace {

using Json = nlohmann::ordered_json;

[[gnu::format(printf, 2, 3)]] void append(std::string& text, const char* format, ...) {
  char line[512];
  va_list args;
  va_start(args, format);
  std::vsnprintf(line, sizeof line, format, args);
  va_end(args);
  text += line;
}

using Writer = kvc_status (*)(const kvc_plan*, char*, size_t*, kvc_error*);

std::string library_text(const Stage& stage, Writer write) {
  size_t size = 0;
  kvc_error error{};
  if (write(stage.plan.get(), nullptr, &size, &error) != KVC_OK) throw Failure(error.message);
  std::string text(size, '\0');
  if (write(stage.plan.get(), text.data(), &size, &error) != KVC_OK) throw Failure(error.message);
  text.resize(size - 1);
  return text;
}

kvc_group_info group_info(const Stage& stage, int32_t group) {
  kvc_group_info info{};
  info.struct_size = sizeof info;
  kvc_error error{};
  if (kvc_plan_group_get(stage.plan.get(), group, &info, &error) != KVC_OK)
    throw Failure(error.message);
  return info;
}

int64_t num_ranks(const Capacity& capacity) {
  return static_cast<int64_t>(capacity.stages.size()) * capacity.tensor_ranks;
}

// One line per pipeline stage; its tensor parallel ranks are alike.
void append_ranks(const Capacity& capacity, std::string& text) {
  append(text, "\n%-9s %-13s %12s %12s\n", "ranks", "layers", "bytes/page", "pages");
  for (size_t i = 0; i < capacity.stages.size(); ++i) {
    const Stage& stage = capacity.stages[i];
    const auto first = static_cast<int32_t>(i) * capacity.tensor_ranks,
               last = first + capacity.tensor_ranks - 1;
    const std::string ranks =
        first == last ? std::to_string(first) : std::to_string(first) + "-" + std::to_string(last);
    const std::string layers =
        std::to_string(stage.slice.begin) + "-" + std::to_string(stage.slice.end - 1);
    append(text, "%-9s %-13s %12llu %12lld\n", ranks.c_str(), layers.c_str(),
           static_cast<unsigned long long>(stage.info.page_bytes),
           static_cast<long long>(stage.info.num_pages));
  }
  append(text, "The ranks share page ids, so each uses the fewest that any has: %s pages.\n",
         grouped(capacity.num_pages).c_str());
}

void append_lengths(const Capacity& capacity, std::string& text) {
  if (capacity.by_length.empty()) return;
  text += "Requests at once by length:";
  for (const Requests& requests : capacity.by_length) {
    append(text, "%s %s tokens: %s", &requests == &capacity.by_length.front() ? "" : ";",
           grouped(requests.tokens).c_str(),
           grouped(static_cast<int64_t>(std::floor(requests.count))).c_str());
  }
  text += ".\n";
}

void append_drafting(const Capacity& capacity, std::string& text) {
  const int32_t draft = capacity.num_layers - capacity.num_draft_layers;
  const int32_t mtp = draft - capacity.num_mtp_layers;
  const auto say = [&](int32_t begin, int32_t count, const char* one, const char* many) {
    if (count == 1) append(text, "Layer %d %s.\n", begin, one);
    if (count > 1) append(text, "Layers %d to %d %s.\n", begin, begin + count - 1, many);
  };
  say(mtp, capacity.num_mtp_layers, "predicts further tokens (MTP)",
      "predict further tokens (MTP)");
  say(draft, capacity.num_draft_layers, "is the draft model's", "are the draft model's");
}

void append_host_memory(const Capacity& capacity, std::string& text) {
  const kvc_plan_info& info = capacity.reported().info;
  std::string bounds;
  for (const HostBytes& host : capacity.host) {
    if (host.bytes <= info.pool_bytes) continue;
    if (!bounds.empty()) bounds += ", ";
    bounds += size_text(host.bytes - info.pool_bytes) + " with " + grouped(host.sequences) +
              (host.sequences == 1 ? " request at once" : " requests at once");
  }
  if (bounds.empty()) return;
  append(text, "Host memory of a cache on a CPU, beside %s: at most %s%s%s.\n",
         num_ranks(capacity) > 1 ? "the pool of a rank" : "its pool", bounds.c_str(),
         info.num_host_pages != 0 ? "; host pages included" : "",
         info.state_slot_pages != 0 ? "; states included, which take the place of pages" : "");
}

void append_summary(const Capacity& capacity, std::string& text) {
  const kvc_plan_info& info = capacity.reported().info;
  const bool several = num_ranks(capacity) > 1;
  append(text, "\n%s%s %s %s pages.\n", size_text(capacity.memory).c_str(),
         several ? " on each rank" : "", "hold", grouped(capacity.num_pages).c_str());
  append(text, "Requests of %s tokens at once: %.2f, of %s pages each.\n",
         grouped(capacity.longest.tokens).c_str(), capacity.longest.count,
         grouped(capacity.longest.pages).c_str());
  // A sequence has at most so many tokens, whatever the memory.
  const bool is_unlimited = capacity.longest_request == INT32_MAX;
  append(
      text, "Longest single request: %s%s.\n",
      is_unlimited ? "no limit" : (grouped(capacity.longest_request) + " tokens").c_str(),
      !is_unlimited && capacity.planned_len != 0 && capacity.longest_request > capacity.planned_len
          ? " by memory, more than a request may have"
          : "");
  append_lengths(capacity, text);
  append_drafting(capacity, text);
  if (capacity.max_tokens_per_forward != 0) {
    append(text,
           "A forward has at most %s new tokens (--max-tokens-per-forward): longer prompts come in "
           "chunks.\n",
           grouped(capacity.max_tokens_per_forward).c_str());
  } else {
    text += "A prompt comes in one forward, whatever its length (--max-tokens-per-forward 0).\n";
  }
  append(text,
         "Waste: %.2f %% of such a request's pages is padding or lies behind its last token.\n",
         100 * info.waste);
  const int64_t more = capacity.pages_with_one_more_gib - capacity.num_pages;
  if (capacity.longest.pages != 0) {
    append(text, "One GiB more%s: %s pages, %.2f requests of %s tokens.\n",
           several ? " on each rank" : "", grouped(more).c_str(),
           requests_in(capacity, capacity.pages_with_one_more_gib, capacity.longest.pages) -
               capacity.longest.count,
           grouped(capacity.longest.tokens).c_str());
  }
  if (capacity.leaves_out_encoder)
    text += "Encoder tokens are not counted: give --max-cross-len.\n";
  if (info.num_host_pages != 0)
    append(text, "Host memory: %s pages.\n", grouped(info.num_host_pages).c_str());
  append_host_memory(capacity, text);
}

Json ranks_json(const Capacity& capacity) {
  Json ranks = Json::array();
  for (size_t i = 0; i < capacity.stages.size(); ++i) {
    const Stage& stage = capacity.stages[i];
    for (int32_t k = 0; k < capacity.tensor_ranks; ++k) {
      ranks.push_back({{"rank", static_cast<int64_t>(ranks.size())},
                       {"stage", i},
                       {"tensor_rank", k},
                       {"context_rank", k % std::max(1, capacity.context_ranks)},
                       {"layer_begin", stage.slice.begin},
                       {"layer_end", stage.slice.end},
                       {"num_pages", stage.info.num_pages},
                       {"page_bytes", stage.info.page_bytes},
                       {"bytes_per_token", stage.info.bytes_per_token},
                       {"state_slot_bytes", stage.info.state_slot_bytes}});
    }
  }
  return ranks;
}

Json requests_json(const Requests& requests) {
  return {{"tokens", requests.tokens}, {"pages", requests.pages}, {"requests", requests.count}};
}

}  // namespace

std::string warning_of(const Capacity& capacity) {
  if (capacity.fits()) return "";
  const int64_t needed = request_pages(capacity, capacity.max_len);
  std::string text = "a request of " + grouped(capacity.max_len) + " tokens needs " +
                     grouped(needed) + " pages, there are " + grouped(capacity.num_pages) +
                     ": this is the plan for --max-len " + std::to_string(capacity.planned_len);
  if (capacity.max_tokens_per_forward == 0 && capacity.drops_behind_windows)
    text +=
        ". Prompts in chunks (--max-tokens-per-forward) need fewer pages: layers with a window "
        "drop theirs";
  return text;
}

std::string text_report(const Capacity& capacity) {
  std::string text = library_text(capacity.reported(), kvc_plan_describe);
  if (!text.empty() && text.back() != '\n') text += '\n';
  if (num_ranks(capacity) > 1) append_ranks(capacity, text);
  append_summary(capacity, text);
  return text;
}

std::string json_report(const Capacity& capacity) {
  const Stage& stage = capacity.reported();
  Json json = Json::parse(library_text(stage, kvc_plan_to_json));
  json["memory_bytes"] = capacity.memory;
  json["num_pages"] = capacity.num_pages;
  json["page_size"] = stage.info.num_groups > 0 ? group_info(stage, 0).page_size : 0;
  json["max_tokens"] = stage.info.max_tokens;
  json["concurrency"] = capacity.longest.count;
  json["waste"] = stage.info.waste;
  json["host_bytes"] = capacity.host.back().bytes;
  json["host_bytes_by_requests"] = Json::array();
  for (const HostBytes& host : capacity.host)
    json["host_bytes_by_requests"].push_back(
        {{"requests", host.sequences}, {"host_bytes", host.bytes}});
  json["max_len"] = capacity.max_len;
  json["fits"] = capacity.fits();
  json["planned_len"] = capacity.planned_len;
  json["max_tokens_per_forward"] = capacity.max_tokens_per_forward;
  json["longest_request"] = capacity.longest_request;
  json["request_pages"] = capacity.longest.pages;
  json["requests_by_length"] = Json::array();
  for (const Requests& requests : capacity.by_length)
    json["requests_by_length"].push_back(requests_json(requests));
  json["mtp_layers"] = capacity.num_mtp_layers;
  json["draft_layers"] = capacity.num_draft_layers;
  json["num_pages_with_one_more_gib"] = capacity.pages_with_one_more_gib;
  if (num_ranks(capacity) > 1) json["ranks"] = ranks_json(capacity);
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace kvc::plan_tool
