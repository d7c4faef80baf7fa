// The models and the chat's sampler of the command, built into the test program.
#include "tools/chat/sampler.cc"
#include "tools/llm/block_kernels.cc"
#include "tools/llm/network.cc"
#include "tools/llm/shape.cc"
#include "tools/llm/weights.cc"
#include "tools/llm/worker_pool.cc"
