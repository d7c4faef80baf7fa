// The parts of `kvcache bench` that the tests beside this file look at, built into the test
// program.
#include "bench/gpu_shapes.cc"
