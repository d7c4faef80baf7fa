// The default system text of a ChatML template.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace kvc::chat {

// Text of the system message that a template in Jinja writes into a chat without one. Empty: none
// is found.
//
// The template is not interpreted. The message is found where it stands as a constant, from
// "<|im_start|>system\n" to "<|im_end|>", in a branch that such a chat takes: one without tools,
// whose conditions ask for messages or for what is not there. String literals may be joined by `+`
// and `~`, and several outputs may follow each other.
std::optional<std::string> default_system(std::string_view jinja);

}  // namespace kvc::chat
