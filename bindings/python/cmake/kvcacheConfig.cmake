# find_package(kvcache) for the library that the Python package carries: the shared one, as kvcache::kvcache.
get_filename_component(kvcache_package "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
if(NOT TARGET kvcache::kvcache)
  add_library(kvcache::kvcache SHARED IMPORTED)
  set_target_properties(kvcache::kvcache PROPERTIES
    IMPORTED_LOCATION "${kvcache_package}/lib/libkvcache.so.0"
    IMPORTED_SONAME libkvcache.so.0
    INTERFACE_INCLUDE_DIRECTORIES "${kvcache_package}/include")
endif()
