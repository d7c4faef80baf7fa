#include "src/cache/state_file_report.h"

#include <nlohmann/json.hpp>

#include "src/cache/state_file.h"
#include "src/plan/layout_text.h"
#include "src/plan/names.h"

namespace kvc {
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
