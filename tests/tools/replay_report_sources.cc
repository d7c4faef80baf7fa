// What `kvcache replay` writes, and the writers under it, built into the test program.
#include "tools/metrics/prometheus.cc"
#include "tools/replay/report_json.cc"
#include "tools/replay/report_svg.cc"
#include "tools/replay/report_text.cc"
#include "tools/svg/chart.cc"
#include "tools/svg/svg.cc"
