// The parts of `kvcache replay` that the tests beside this file look at, built into the test
// program.
#include "tools/replay/cache_bookkeeper.cc"
#include "tools/replay/keys.cc"
#include "tools/replay/lines.cc"
#include "tools/replay/replay.cc"
#include "tools/replay/trace.cc"
#include "tools/replay/trace_csv.cc"
#include "tools/replay/trace_json.cc"
