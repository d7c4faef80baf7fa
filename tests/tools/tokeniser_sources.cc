// The tokenisers of the command, built into the test program.
#include "tools/tokeniser/byte_level.cc"
#include "tools/tokeniser/normal_form.cc"
#include "tools/tokeniser/sentencepiece.cc"
#include "tools/tokeniser/special_tokens.cc"
#include "tools/tokeniser/tokeniser.cc"
#include "tools/tokeniser/utf8.cc"
#include "tools/tokeniser/vocabulary.cc"
#include "tools/tokeniser/words.cc"
