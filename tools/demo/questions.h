// The handbook of a harbour, and questions whose answers stand in it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tools/chat/chat_template.h"

namespace kvc::demo {

struct Question {
  std::string text;
  std::string expected;  // A right answer contains this word, see contains_word().
};

// The system text: what the model is to do, then the handbook.
std::string_view handbook();
// What all conversations about the handbook begin with: the system text, and questions with their
// answers, which show a small model how long an answer is.
std::vector<int32_t> handbook_prompt(const chat::ChatTemplate& chat_template);
// The questions of the handbook.
std::vector<Question> questions();

// `question | expected word`. Without a bar nothing is expected.
Question parse_question(std::string_view line);
// One question a line; empty lines are skipped. Throws std::invalid_argument with the number of a
// line that lacks the question or the word.
std::vector<Question> parse_questions(std::string_view lines);

// Whether a text contains a word, or several words in a row. Case does not count in ASCII.
//
//  * The word begins and ends where a word of the text does: "red" is not in "hundred".
//  * A plural "s" may follow the word: "Sunday" is in "Sundays".
//  * A number is a whole number of the text: "5" is neither in "5521" nor in "2.5" or "5,000".
//    A unit may follow it: "10" is in "10m".
//
// Letters beyond ASCII separate words.
bool contains_word(std::string_view text, std::string_view word);

}  // namespace kvc::demo
