// The GGUF reader of the command, built into the test program.

#include "tools/gguf/describe.cc"
#include "tools/gguf/file.cc"
#include "tools/gguf/unpack.cc"
