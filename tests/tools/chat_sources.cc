// The chat templates of the command, built into the test program.
#include "tools/chat/chat_template.cc"
#include "tools/chat/default_system.cc"
