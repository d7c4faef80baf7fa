#include "tools/chat/chat_template.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <stdexcept>
#include <utility>

#include "tools/chat/default_system.h"
#include "tools/tokeniser/utf8.h"
#include "tools/tokeniser/vocabulary.h"

namespace kvc::chat {

// The texts of a format around the texts of a chat.
struct Format {
  const char* name;
  // Control tokens in the texts below. The first recognises a template; the last ends an answer.
  std::vector<std::string_view> marks;
  // Empty, or a mark of templates that are not of the format.
  std::string_view foreign_mark;
  // Control tokens that end an answer too, where the vocabulary has them.
  std::vector<std::string_view> ends;
  bool trims_system, trims_user;

  std::string_view begin;
  std::string_view system_begin, system_end;  // Left out with the system text.
  std::string_view user_begin, user_end;
  std::string_view answer_end;
};

namespace {

constexpr std::string_view kKey = "tokenizer.chat_template";

const std::vector<Format>& formats() {
  static const std::vector<Format> all = {
      {.name = "chatml",
       .marks = {"<|im_start|>", "<|im_end|>"},
       .foreign_mark = "<|im_sep|>",  // Phi 4 divides with it.
       .ends = {"<|endoftext|>"},
       .trims_system = false,
       .trims_user = false,
       .begin = "",
       .system_begin = "<|im_start|>system\n",
       .system_end = "<|im_end|>\n",
       .user_begin = "<|im_start|>user\n",
       .user_end = "<|im_end|>\n<|im_start|>assistant\n",
       .answer_end = "<|im_end|>\n"},
      {.name = "llama3",
       .marks = {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"},
       .foreign_mark = "",
       .ends = {"<|end_of_text|>", "<|eom_id|>"},
       .trims_system = true,
       .trims_user = true,
       .begin = "",
       .system_begin = "<|start_header_id|>system<|end_header_id|>\n\n",
       .system_end = "<|eot_id|>",
       .user_begin = "<|start_header_id|>user<|end_header_id|>\n\n",
       .user_end = "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
       .answer_end = "<|eot_id|>"},
      {.name = "gemma",
       .marks = {"<start_of_turn>", "<end_of_turn>"},
       .foreign_mark = "",
       .ends = {"<eos>"},
       .trims_system = false,
       .trims_user = true,
       .begin = "<start_of_turn>user\n",
       .system_begin = "",
       .system_end = "\n\n",
       .user_begin = "",
       .user_end = "<end_of_turn>\n<start_of_turn>model\n",
       .answer_end = "<end_of_turn>\n<start_of_turn>user\n"},
  };
  return all;
}

// White space as Python's str.strip() takes it away, which is Jinja's `trim`.
bool is_space(std::string_view character) {
  static constexpr std::string_view kSpaces[] = {
      "\t",     "\n",     "\v",     "\f",     "\r",     "\x1c",   "\x1d",   "\x1e",
      "\x1f",   " ",      "\u0085", "\u00a0", "\u1680", "\u2000", "\u2001", "\u2002",
      "\u2003", "\u2004", "\u2005", "\u2006", "\u2007", "\u2008", "\u2009", "\u200a",
      "\u2028", "\u2029", "\u202f", "\u205f", "\u3000"};
  return std::find(std::begin(kSpaces), std::end(kSpaces), character) != std::end(kSpaces);
}

std::string_view trimmed(std::string_view text) {
  size_t begin = text.size(), end = text.size();
  for (size_t at = 0; at < text.size();) {
    const size_t bytes = std::max<size_t>(tokeniser::character_bytes(text, at), 1);
    if (!is_space(text.substr(at, bytes))) {
      begin = std::min(begin, at);
      end = at + bytes;
    }
    at += bytes;
  }
  return text.substr(begin, end - begin);
}

// "chatml, llama3 or gemma"; with their marks as they stand in templates.
std::string list_of_formats(bool with_marks) {
  std::string list;
  for (const Format& format : formats()) {
    if (!list.empty()) list += &format == &formats().back() ? " or " : ", ";
    list += format.name;
    if (with_marks) list += " (" + std::string(format.marks[0]) + ")";
  }
  return list;
}

const Format& format_of_name(std::string_view name) {
  for (const Format& format : formats()) {
    if (name == format.name) return format;
  }
  throw std::runtime_error("--template " + gguf::quoted(name) + ": expected " +
                           list_of_formats(false));
}

const Format& format_of(const gguf::File& file) {
  const std::optional<std::string_view> jinja = file.text(kKey);
  static const std::string way_out = "; --template takes " + list_of_formats(false) +
                                     " all the same, for example --template chatml";
  if (!jinja) tokeniser::refuse(file, "has no " + std::string(kKey) + way_out);
  const auto has = [&](std::string_view mark) {
    return !mark.empty() && jinja->find(mark) != std::string_view::npos;
  };
  for (const Format& format : formats()) {
    if (has(format.marks[0]) && !has(format.foreign_mark)) return format;
  }
  tokeniser::refuse(file, std::string(kKey) + " is of a format that is not served, expected " +
                              list_of_formats(true) + way_out);
}

using NamedIds = std::vector<std::pair<std::string, int32_t>>;

NamedIds marks_of(const gguf::File& file, const tokeniser::Tokeniser& tokeniser,
                  const Format& format) {
  NamedIds marks;
  for (const std::string_view mark : format.marks) {
    const std::optional<int32_t> id = tokeniser.special(mark);
    if (!id)
      tokeniser::refuse(file, "tokenizer.ggml.tokens has no control token \"" + std::string(mark) +
                                  "\", expected one for the chat template " + format.name);
    marks.emplace_back(mark, *id);
  }
  return marks;
}

}  // namespace

std::vector<std::string> template_names() {
  std::vector<std::string> names;
  for (const Format& format : formats()) names.emplace_back(format.name);
  return names;
}

// Ids of texts that follow each other. What stands between two marks is encoded at once, because
// the ids on both sides of a seam depend on each other.
class ChatTemplate::Prompt {
 public:
  explicit Prompt(const ChatTemplate& chat) : chat_(chat) {}

  void add_id(int32_t id) {
    flush();
    ids_.push_back(id);
  }
  void add_markup(std::string_view text) {
    chat_.marks_.split(
        text, [&](std::string_view plain) { plain_ += plain; }, [&](int32_t id) { add_id(id); });
  }
  void add_text(std::string_view text) {
    const auto plain = [&](std::string_view stretch) { plain_ += stretch; };
    // The text of a mark is cut in two.
    chat_.typed_marks_.split(text, plain, [&](int32_t id) {
      const std::string_view mark = chat_.tokeniser_.bytes(id);
      plain_ += mark.substr(0, 1);
      flush();
      plain_ += mark.substr(1);
    });
  }
  std::vector<int32_t> ids() {
    flush();
    return std::move(ids_);
  }

 private:
  void flush() {
    if (plain_.empty()) return;
    const std::vector<int32_t> ids = chat_.tokeniser_.encode(plain_, false);
    ids_.insert(ids_.end(), ids.begin(), ids.end());
    plain_.clear();
  }

  const ChatTemplate& chat_;
  std::string plain_;
  std::vector<int32_t> ids_;
};

ChatTemplate::ChatTemplate(const gguf::File& file, const tokeniser::Tokeniser& tokeniser,
                           std::string_view forced)
    : tokeniser_(tokeniser), format_(forced.empty() ? format_of(file) : format_of_name(forced)) {
  const NamedIds marks = marks_of(file, tokeniser, format_);
  marks_ = tokeniser::SpecialTokens(marks);
  const auto add_end = [&](std::optional<int32_t> id) {
    if (id && !is_end(*id)) ends_.push_back(*id);
  };
  add_end(marks.back().second);
  add_end(tokeniser.eos());
  for (const std::string_view end : format_.ends) add_end(tokeniser.special(end));

  NamedIds typed;
  const auto add_typed = [&](int32_t id) {
    if (!tokeniser.is_control(id)) typed.emplace_back(tokeniser.bytes(id), id);
  };
  for (const auto& [mark, id] : marks) add_typed(id);
  for (const int32_t id : ends_) add_typed(id);
  if (tokeniser.bos()) add_typed(*tokeniser.bos());
  typed_marks_ = tokeniser::SpecialTokens(typed);
  const std::optional<std::string_view> jinja = file.text(kKey);
  if (jinja) default_system_ = chat::default_system(*jinja);
}

const char* ChatTemplate::name() const { return format_.name; }

std::vector<int32_t> ChatTemplate::begin(std::optional<std::string_view> system) const {
  Prompt prompt(*this);
  if (tokeniser_.add_bos()) prompt.add_id(*tokeniser_.bos());
  prompt.add_markup(format_.begin);
  if (!system && default_system_) system = *default_system_;
  if (system && !system->empty()) {
    prompt.add_markup(format_.system_begin);
    prompt.add_text(format_.trims_system ? trimmed(*system) : *system);
    prompt.add_markup(format_.system_end);
  }
  return prompt.ids();
}

void ChatTemplate::add_user_turn(std::string_view text, Prompt& prompt) const {
  prompt.add_markup(format_.user_begin);
  prompt.add_text(format_.trims_user ? trimmed(text) : text);
  prompt.add_markup(format_.user_end);
}

std::vector<int32_t> ChatTemplate::user_turn(std::string_view text) const {
  Prompt prompt(*this);
  add_user_turn(text, prompt);
  return prompt.ids();
}

std::vector<int32_t> ChatTemplate::whole_turn(std::string_view text,
                                              std::string_view answer) const {
  Prompt prompt(*this);
  add_user_turn(text, prompt);
  prompt.add_text(answer);
  prompt.add_markup(format_.answer_end);
  return prompt.ids();
}

std::vector<int32_t> ChatTemplate::after_answer() const {
  Prompt prompt(*this);
  prompt.add_markup(format_.answer_end);
  return prompt.ids();
}

bool ChatTemplate::is_end(int32_t id) const {
  return std::find(ends_.begin(), ends_.end(), id) != ends_.end();
}

}  // namespace kvc::chat
