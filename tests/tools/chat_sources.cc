// Templates, cache and terminal of the command's chat, built into the test program.
#include "tools/chat/chat_cache.cc"
#include "tools/chat/chat_template.cc"
#include "tools/chat/default_system.cc"
#include "tools/chat/terminal_io.cc"
