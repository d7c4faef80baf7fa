#include "src/plan/layout_text.h"

#include <vector>

#include "src/base/dtype.h"
#include "src/base/error.h"
#include "src/base/print.h"
#include "src/base/sha256.h"
#include "src/plan/names.h"

namespace kvc {
namespace {

// Writes "<prefix><name> = <value>" lines.
class Fields {
 public:
  explicit Fields(std::string* text) : text_(text) {}

  template <typename... Args>
  void begin(const char* format, Args... args) {
    prefix_.clear();
    append_format(prefix_, format, args...);
  }
  void text(const char* name, const std::string& value) {
    *text_ += prefix_ + name + " = " + value + "\n";
  }
  void number(const char* name, int64_t value) { text(name, std::to_string(value)); }
  void set_number(const char* name, int64_t value) {
    if (value != 0) number(name, value);
  }
  // Six digits: machines compute the same number with different last bits.
  void real(const char* name, double value) {
    std::string digits;
    append_real(digits, value, 6);
    text(name, digits);
  }
  void reals(const char* name, const std::vector<double>& values) {
    if (values.empty()) return;
    std::string list;
    for (const double value : values) {
      if (!list.empty()) list += ' ';
      append_real(list, value, 6);
    }
    text(name, list);
  }

 private:
  std::string* text_;
  std::string prefix_;
};

void write_layer(const Spec& spec, int32_t local, Fields& fields) {
  const LayerSpec& layer = spec.layers[local];
  fields.begin("layers[%d].", spec.layer_begin + local);
  fields.text("kind", layer_kind_name(layer.kind));
  if (layer.kind == KVC_LAYER_SHARED)
    fields.number("source_layer", spec.layer_begin + layer.source);
  if (layer.keeps_pages()) {
    fields.number("num_kv_heads", layer.num_kv_heads);
    fields.number("k_dim", layer.k_dim);
    fields.number("v_dim", layer.v_dim);
    fields.set_number("latent_rank", layer.latent_rank);
    fields.set_number("v_in_k", layer.v_in_k ? 1 : 0);
    fields.text("k_dtype", k_type_name(layer));
    if (!layer.v_in_k) fields.text("v_dtype", v_type_name(layer));
    fields.set_number("quant", layer.quant);
    if (layer.quant == KVC_QUANT_PER_TENSOR) {
      fields.real("k_scale", layer.k_scale);
      fields.real("v_scale", layer.v_scale);
    }
    if (layer.rope >= 0) fields.number("rope", layer.rope);
  }
  for (size_t i = 0; i < layer.states.size(); ++i) {
    fields.begin("layers[%d].states[%zu].", spec.layer_begin + local, i);
    std::string shape;
    for (const int64_t extent : layer.states[i].shape)
      append_format(shape, "%s%lld", shape.empty() ? "" : " ", ll(extent));
    fields.text("shape", shape);
    fields.text("dtype", dtype_name(layer.states[i].dtype));
  }
}

void write_rope(const RopeSpec& rope, size_t index, Fields& fields) {
  fields.begin("ropes[%zu].", index);
  fields.number("mode", rope.mode);
  fields.number("style", rope.style);
  fields.number("rotary_dim", rope.rotary_dim);
  fields.reals("inverse_frequencies", rope.inverse_frequencies);
  fields.reals("long_inverse_frequencies", rope.long_inverse_frequencies);
  fields.set_number("original_context", rope.original_context);
  fields.real("magnitude", rope.magnitude);
  if (rope.section_of_pair.empty()) return;
  std::string sections;
  for (const int32_t section : rope.section_of_pair)
    append_format(sections, "%s%d", sections.empty() ? "" : " ", section);
  fields.text("section_of_pair", sections);
}

// Takes the first line of a text.
std::string_view take_line(std::string_view& text) {
  const size_t end = text.find('\n');
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return line;
}

}  // namespace

std::string layout_text(const Spec& spec) {
  std::string text;
  Fields fields(&text);
  fields.begin("%s", "");
  fields.number("num_layers", spec.num_layers);
  fields.number("layer_begin", spec.layer_begin);
  fields.number("layer_end", spec.layer_end);
  // What users set comes before what follows from it, so that a difference has their names.
  for (int32_t local = 0; local < spec.num_local_layers(); ++local)
    write_layer(spec, local, fields);
  for (size_t i = 0; i < spec.ropes.size(); ++i) write_rope(spec.ropes[i], i, fields);
  for (size_t i = 0; i < spec.groups.size(); ++i) {
    const GroupSpec& group = spec.groups[i];
    fields.begin("groups[%zu].", i);
    fields.number("page_size", group.page_size);
    std::string layers;
    for (const int32_t local : group.layers)
      append_format(layers, "%s%d", layers.empty() ? "" : " ", spec.layer_begin + local);
    fields.text("layers", layers);
    fields.set_number("is_cross", group.is_cross ? 1 : 0);
    fields.set_number("window", group.window);
    fields.set_number("chunk", group.chunk);
  }
  return text;
}

std::string layout_fingerprint(std::string_view text) {
  std::string fingerprint = "kvcache-layout-1:";
  for (const uint8_t byte : sha256(text.data(), text.size()))
    append_format(fingerprint, "%02x", byte);
  return fingerprint;
}

std::string layout_difference(std::string_view my_text, const char* mine,
                              std::string_view their_text, const char* theirs) {
  while (!my_text.empty() || !their_text.empty()) {
    const std::string_view my_line = take_line(my_text), their_line = take_line(their_text);
    if (my_line == their_line) continue;
    constexpr std::string_view kEquals = " = ";
    const auto name = [&](std::string_view line) { return line.substr(0, line.find(kEquals)); };
    const auto value = [&](std::string_view line) {
      const size_t at = line.find(kEquals);
      std::string text(at == std::string_view::npos ? "" : line.substr(at + kEquals.size()));
      constexpr size_t kMost = 60;
      if (text.size() > kMost) text = text.substr(0, kMost) + "...";
      return text;
    };
    if (name(my_line) == name(their_line)) {
      return std::string(name(my_line)) + " is " + value(their_line) + " in " + theirs + ", " +
             value(my_line) + " in " + mine;
    }
    // One side has a field more.
    const bool is_mine =
        their_line.empty() || (!my_line.empty() && my_text.size() > their_text.size());
    const std::string_view line = is_mine ? my_line : their_line;
    return std::string(name(line)) + " is " + value(line) + " in " + (is_mine ? mine : theirs) +
           ", not set in " + (is_mine ? theirs : mine);
  }
  return {};
}

}  // namespace kvc
