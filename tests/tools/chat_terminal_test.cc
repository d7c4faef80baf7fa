// What a chat writes to a terminal is whole characters, whatever parts they come in.
#include <gtest/gtest.h>

#include <string>

#include "tools/chat/terminal_io.h"

namespace kvc::chat {
namespace {

std::string filtered(const std::string& text, size_t part) {
  TextFilter filter;
  std::string shown;
  for (size_t at = 0; at < text.size(); at += part) shown += filter.add(text.substr(at, part));
  return shown + filter.finish();
}

TEST(ToolChatTerminal, ShowsWholeCharactersAndNoneThatATerminalObeys) {
  for (const size_t part : {1, 2, 3, 100}) {
    EXPECT_EQ(filtered("h\xc3\xa4 \xf0\x9f\x98\x80\t\x1b[2J\x07\xc2\x9b\n", part),
              "h\xc3\xa4 \xf0\x9f\x98\x80\t[2J\n");
    EXPECT_EQ(filtered("\xff\xc3"
                       "A",
                       part),
              "\xef\xbf\xbd\xef\xbf\xbd"
              "A");
    EXPECT_EQ(filtered("a\xe2\x82", part), "a\xef\xbf\xbd\xef\xbf\xbd");
  }
  TextFilter filter;
  EXPECT_EQ(filter.add("\xe2\x82"), "") << "its end may follow";
  EXPECT_EQ(filter.add("\xac"), "\xe2\x82\xac");
}

}  // namespace
}  // namespace kvc::chat
