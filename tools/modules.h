// Where the command finds the library's modules.
#pragma once

// The library looks beside the command that it is linked into. In a build tree and in an installed
// one modules lie where libkvcache.so does: this names that directory where it has any.
void find_modules();
