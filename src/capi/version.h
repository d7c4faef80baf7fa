// The library's version, once: CMake passes project()'s number.
#pragma once

#ifndef KVC_LIBRARY_VERSION
#error "KVC_LIBRARY_VERSION comes from the build"
#endif
