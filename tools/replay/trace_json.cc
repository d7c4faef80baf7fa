#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "tools/replay/trace_lines.h"

namespace kvc::replay {
namespace {

using Json = nlohmann::json;

constexpr const char* kTokenFields[] = {"input_tok_ids", "tokens", "prompt_token_ids"};
constexpr size_t kShownCharacters = 40;

Json parsed(std::string_view line) {
  try {
    Json value = Json::parse(line);
    if (!value.is_object())
      throw BadLine(std::string("a JSON object was expected, not ") + value.type_name());
    return value;
  } catch (const Json::exception& error) {
    // "[json.exception.parse_error.101] parse error at line 1, column 7: what": the line is known
    // better here.
    const std::string what = error.what();
    const size_t column = what.find("column "), name_end = what.find("] ");
    const size_t begin = column != std::string::npos     ? column
                         : name_end != std::string::npos ? name_end + 2
                                                         : 0;
    throw BadLine("not JSON, " + what.substr(begin));
  }
}

std::string shown(const Json& value) {
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > kShownCharacters) text.replace(kShownCharacters - 3, std::string::npos, "...");
  return text;
}

[[noreturn]] void not_whole(const std::string& name, const Json& value) {
  throw BadLine(name + " is " + shown(value) + ", not a whole number");
}

int64_t whole_number(const Json& value, const std::string& name, int64_t low, int64_t high) {
  if (!value.is_number_integer()) not_whole(name, value);
  // Read as what it was written as: a large one is unsigned and would wrap.
  const bool fits =
      value.is_number_unsigned() ? value.get<uint64_t>() <= static_cast<uint64_t>(high) : true;
  const int64_t number = fits ? value.get<int64_t>() : high;
  if (!fits || number < low || number > high) {
    throw BadLine(name + " is " + shown(value) + "; it must lie in " + std::to_string(low) + ".." +
                  std::to_string(high));
  }
  return number;
}

int64_t field(const Json& line, const char* name, int64_t low, int64_t high) {
  const auto found = line.find(name);
  if (found == line.end()) throw BadLine(std::string("no ") + name);
  return whole_number(*found, name, low, high);
}

const Json& array(const Json& value, const char* name) {
  if (!value.is_array())
    throw BadLine(std::string(name) + " is " + shown(value) + ", not an array");
  return value;
}

double arrival(const Json& line) {
  const auto unit = [&](const char* name, double scale, double* seconds) {
    const auto found = line.find(name);
    if (found == line.end() || found->is_null()) return false;
    if (!found->is_number())
      throw BadLine(std::string(name) + " is " + shown(*found) + ", not a number");
    *seconds = found->get<double>() * scale;
    return true;
  };
  double seconds = kUnknownTime;
  if (!unit("arrival_time_ns", 1e-9, &seconds)) unit("timestamp", 1e-3, &seconds);
  return seconds;
}

const char* token_field(const Json& line) {
  for (const char* name : kTokenFields) {
    if (line.contains(name)) return name;
  }
  return nullptr;
}

std::vector<uint64_t> block_ids(const Json& line, int64_t prompt_tokens, int64_t block) {
  const auto found = line.find("hash_ids");
  if (found == line.end()) throw BadLine("no hash_ids, which the lines above have");
  const Json& values = array(*found, "hash_ids");
  const auto count = static_cast<int64_t>(values.size());
  const int64_t full = prompt_tokens / block, all = (prompt_tokens + block - 1) / block;
  if (count < full || count > all) {
    throw BadLine("hash_ids has " + std::to_string(count) + " entries, but input_length " +
                  std::to_string(prompt_tokens) + " has " + std::to_string(full) +
                  " full blocks of " + std::to_string(block) + " tokens");
  }
  std::vector<uint64_t> ids;
  ids.reserve(values.size());
  for (const Json& value : values) {
    const std::string name = "hash_ids[" + std::to_string(ids.size()) + "]";
    if (!value.is_number_integer()) not_whole(name, value);
    if (!value.is_number_unsigned())
      throw BadLine(name + " is " + shown(value) + "; it must not be negative");
    ids.push_back(value.get<uint64_t>());
  }
  std::vector<uint64_t> sorted = ids;
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end()) {
    throw BadLine("hash_ids has " + std::to_string(*twice) +
                  " twice; equal ids mean equal prompts up to and with the block");
  }
  return ids;
}

void append_tokens(const Json& values, const char* name, std::vector<int32_t>* tokens) {
  if (array(values, name).size() > static_cast<size_t>(kMaxTokens)) {
    throw BadLine(std::string(name) + " has " + std::to_string(values.size()) +
                  " entries; at most " + std::to_string(kMaxTokens) + " are replayed");
  }
  size_t place = 0;
  for (const Json& value : values) {
    const std::string where = std::string(name) + "[" + std::to_string(place++) + "]";
    tokens->push_back(
        static_cast<int32_t>(whole_number(value, where, 0, std::numeric_limits<int32_t>::max())));
  }
}

int64_t output_length(const Json& line) {
  for (const char* name : {"output_length", "output_toks"}) {
    if (line.contains(name)) return field(line, name, 0, kMaxTokens);
  }
  return 0;
}

}  // namespace

TraceKind kind_of_json(std::string_view line) {
  const Json value = parsed(line);
  if (value.contains("hash_ids")) return TraceKind::kBlockIds;
  if (token_field(value) != nullptr) return TraceKind::kTokenIds;
  throw BadLine(
      "no known trace: JSON lines have hash_ids (Mooncake), or input_tok_ids, tokens or "
      "prompt_token_ids");
}

void add_json_request(std::string_view line, Trace* trace) {
  const Json value = parsed(line);
  TraceRequest request;
  request.seconds = arrival(value);
  if (trace->kind == TraceKind::kBlockIds) {
    request.prompt_tokens = field(value, "input_length", 1, kMaxTokens);
    request.output_tokens = output_length(value);
    const std::vector<uint64_t> ids = block_ids(value, request.prompt_tokens, trace->block_tokens);
    request.first_id = trace->block_ids.size();
    request.num_ids = ids.size();
    trace->block_ids.insert(trace->block_ids.end(), ids.begin(), ids.end());
  } else {
    const char* name = token_field(value);
    if (name == nullptr) throw BadLine("no token ids, which the lines above have");
    std::vector<int32_t> tokens;
    append_tokens(value[name], name, &tokens);
    if (tokens.empty()) throw BadLine(std::string(name) + " is empty");
    request.prompt_tokens = static_cast<int64_t>(tokens.size());
    const auto output = value.find("output_tok_ids");
    if (output != value.end() && !output->is_null()) {
      append_tokens(*output, "output_tok_ids", &tokens);
      request.output_tokens = static_cast<int64_t>(tokens.size()) - request.prompt_tokens;
    } else {
      request.output_tokens = output_length(value);
    }
    request.first_id = trace->token_ids.size();
    request.num_ids = tokens.size();
    trace->token_ids.insert(trace->token_ids.end(), tokens.begin(), tokens.end());
  }
  trace->requests.push_back(request);
}

}  // namespace kvc::replay
