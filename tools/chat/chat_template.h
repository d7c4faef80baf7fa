// The turns of a chat as the token ids that a model expects. A GGUF file has its template as a text
// in Jinja (`tokenizer.chat_template`), which is not interpreted here: the format is recognised by
// its marks.
//
//   | format | mark                  | system text                  | texts that are trimmed |
//   | chatml | `<|im_start|>`        | a message of its own         | none                   |
//   | llama3 | `<|start_header_id|>` | a message of its own         | users' and system text |
//   | gemma  | `<start_of_turn>`     | before the first user's text | users'                 |
//
// Tokens of a chat are the concatenation of
//
//   begin(system), user_turn(text), ANSWER, after_answer(), user_turn(text), ANSWER, ...
//
// where ANSWER is what the model generates, without the token that ended it. No token of an earlier
// turn changes. The other ids are those of the whole text as the file's template makes it, encoded
// at once.
//
//  * Texts of users and system texts cannot become control tokens, nor marks of the format.
//  * Llama 3.1 and later put dates into a system message, also where none is given. They are left
//    out.
//  * What a template says of tools, documents, images or thinking is left out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/gguf/file.h"
#include "tools/tokeniser/special_tokens.h"
#include "tools/tokeniser/tokeniser.h"

namespace kvc::chat {

struct Format;

// Names that ChatTemplate's `forced` may have.
std::vector<std::string> template_names();

class ChatTemplate {
 public:
  // `forced`: name of a format; empty: the one that the file's template is of. The tokeniser
  // outlives the object; the file may be closed. Throws std::runtime_error: the template is missing
  // or of another format, there is no such name, or the vocabulary lacks one of the marks.
  ChatTemplate(const gguf::File& file, const tokeniser::Tokeniser& tokeniser,
               std::string_view forced = {});

  // "chatml", "llama3" or "gemma".
  const char* name() const;
  // The system text of the template for chats that bring none. Empty: it has none.
  const std::optional<std::string>& default_system() const { return default_system_; }

  // Ids before the first user's text, with the token for the beginning where the file wants one.
  // Chats with the same system text share them. `system`: without a value the template's default;
  // an empty text for none.
  std::vector<int32_t> begin(std::optional<std::string_view> system) const;
  // Ids of a user's text, up to where the answer begins.
  std::vector<int32_t> user_turn(std::string_view text) const;
  // Ids of a user's text with its answer, up to the next user's text.
  std::vector<int32_t> whole_turn(std::string_view text, std::string_view answer) const;
  // Ids between an answer and the next user's text.
  std::vector<int32_t> after_answer() const;

  // Ids that end an answer: the format's mark, and the ends of a text.
  const std::vector<int32_t>& ends() const { return ends_; }
  bool is_end(int32_t id) const;

 private:
  class Prompt;
  void add_user_turn(std::string_view text, Prompt& prompt) const;

  const tokeniser::Tokeniser& tokeniser_;
  const Format& format_;
  tokeniser::SpecialTokens marks_;
  // Marks, ends and the beginning, as far as they are no control tokens: the tokeniser would find
  // them in a text that a user types.
  tokeniser::SpecialTokens typed_marks_;
  std::optional<std::string> default_system_;
  std::vector<int32_t> ends_;
};

}  // namespace kvc::chat
