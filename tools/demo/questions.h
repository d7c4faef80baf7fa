// The handbook of a harbour, and questions whose answers stand in it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvc::demo {

struct Question {
  std::string text;
  std::string expected;  // A right answer contains this word, see contains_word().
};

// The system text: what the model is to do, then the handbook.
std::string_view handbook();
// The questions of the handbook.
std::vector<Question> questions();

// Lines `question | expected word`; empty lines are skipped. Throws std::invalid_argument with the
// number of a line that lacks one of them.
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
