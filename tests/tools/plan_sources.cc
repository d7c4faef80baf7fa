// The parts of `kvcache plan` that the tests beside this file look at, built into the test program.
#include "tools/plan/capacity.cc"
#include "tools/plan/model.cc"
#include "tools/plan/size.cc"
