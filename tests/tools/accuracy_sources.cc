// The parts of `kvcache bench accuracy` that the tests beside this file look at, built into the
// test program.
#include "bench/text_windows.cc"
#include "tools/demo/questions.cc"
