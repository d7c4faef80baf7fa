#include <nlohmann/json.hpp>

#include "tools/demo/block_map.h"
#include "tools/demo/report.h"
#include "tools/demo/terminal.h"

namespace kvc::demo {
namespace {

using Json = nlohmann::ordered_json;

Json difference(const Comparison& c) {
  Json out = {{"tokens_identical", c.identical},
              {"max_logit_difference", c.max_logit_difference},
              {"tokens_compared", c.tokens_compared},
              {"first_difference", nullptr}};
  if (!c.identical) {
    out["first_difference"] = {{"conversation", c.conversation},
                               {"generated_token", c.place},
                               {"expected", c.expected},
                               {"got", c.got}};
  }
  return out;
}

// Answers may be any bytes.
std::string hexadecimal(const std::string& text) {
  std::string out;
  for (const char byte : text) out += format("%02x", static_cast<unsigned char>(byte));
  return out;
}

Json row_json(const DemoRow& row, int root) {
  const ServeResult& r = row.result;
  Json first_token = Json::array();
  for (const Answer& answer : r.answers) first_token.push_back(answer.first_token_seconds);
  Json out = {{"name", row.key},
              {"prompt_tokens_computed", r.prompt_tokens},
              {"reserved_bytes", r.peak.reserved_bytes},
              {"used_bytes", r.peak.used_bytes},
              {"waste", row.waste()},
              {"first_token_seconds",
               {{"p50", r.first_token_percentile(50)},
                {"p95", r.first_token_percentile(95)},
                {"all", first_token}}},
              {"generated_tokens", r.generated_tokens()},
              {"tokens_per_second", row.tokens_per_second()},
              {"seconds", r.seconds},
              {"sequences_that_fit", row.sequences_that_fit},
              {"peak_conversations", r.peak_conversations},
              {"steps", r.steps},
              {"waits", r.waits},
              {"preemptions", r.preemptions},
              {"recomputed_tokens", r.recomputed_tokens}};
  if (row.paged) {
    out["page_bytes"] = row.page_bytes;
    out["num_pages"] = row.num_pages;
    out["pages_copied"] = row.pages_copied;
    out["against_contiguous"] = difference(row.against_first);
    out["against_paged"] = difference(row.against_paged);
    std::string map;
    for (const MapCell& cell : map_cells(r.peak_pages, root)) map += cell_letter(cell);
    out["pages_at_peak"] = map;
  }
  return out;
}

}  // namespace

std::string json_report(const DemoRun& run) {
  Json rows = Json::array();
  for (const DemoRow& row : run.rows) rows.push_back(row_json(row, run.root_sequence()));
  Json conversations = Json::array();
  for (size_t i = 0; i < run.workload.conversations.size(); ++i) {
    const Conversation& c = run.workload.conversations[i];
    Json turns = Json::array();
    for (size_t t = 0; t < c.turns.size(); ++t) {
      Json turn = {{"text", c.turns[t].text},
                   {"prompt_tokens", c.turns[t].tokens.size()},
                   {"answer", run.answers[i][t]},
                   {"answer_hex", hexadecimal(run.answers[i][t])}};
      if (!c.turns[t].expected.empty()) turn["expected"] = c.turns[t].expected;
      turns.push_back(turn);
    }
    conversations.push_back(
        {{"turns", turns}, {"max_new_tokens", c.max_new}, {"arrival_step", c.arrival_step}});
  }
  const Json out = {{"library", kvc_version_string()},
                    {"verified", run.verified},
                    {"verdict", run.verdict},
                    {"machine",
                     {{"threads", run.threads},
                      {"library_isa", run.library_isa},
                      {"demo_kernels", run.demo_kernels}}},
                    {"options",
                     {{"seed", run.options.workload.seed},
                      {"storage", run.options.dtype.name},
                      {"keep_tokens", run.options.dtype.keep_tokens},
                      {"page_size", run.options.page_size},
                      {"tokens_per_step", run.options.tokens_per_step},
                      {"temperature", run.options.temperature},
                      {"contiguous_buffer_tokens", run.max_length}}},
                    {"model",
                     {{"name", run.model_name.empty() ? "random weights" : run.model_name},
                      {"parameters", run.num_parameters},
                      {"layers", run.layers},
                      {"width", run.width},
                      {"vocabulary", run.vocabulary},
                      {"q_heads", run.q_heads},
                      {"kv_heads", run.kv_heads},
                      {"head_dim", run.head_dim},
                      {"kv_bytes_per_token_contiguous", run.bytes_per_token_contiguous},
                      {"kv_bytes_per_token_paged", run.bytes_per_token_paged}}},
                    {"system_prompt_tokens", run.workload.system.size()},
                    {"logit_reference",
                     "row contiguous, float32, at every generated token while the answers agree"},
                    {"pages_at_peak_legend",
                     "one character per page: # shared, a letter per conversation, . free"},
                    {"rows", rows},
                    {"restart",
                     {{"file_bytes", run.restart.file_bytes},
                      {"save_seconds", run.restart.save_seconds},
                      {"load_seconds", run.restart.load_seconds},
                      {"system_prompt_tokens_loaded", run.workload.system.size()},
                      {"prompt_tokens_computed", run.restart.prompt_tokens},
                      {"answer_tokens", run.restart.answer_tokens},
                      {"same_tokens", run.restart.same_tokens},
                      {"problem", run.restart.problem}}},
                    {"same_answers", run.same_answers},
                    {"answers", run.num_answers},
                    {"right", run.right},
                    {"questions", run.questions},
                    {"conversations", conversations}};
  // Texts may be any bytes; what is not UTF-8 is replaced.
  return out.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace kvc::demo
