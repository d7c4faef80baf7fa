# Modules: shared objects beside libkvcache.so, which opens them when they are asked for.

# kvcache_module(NAME FOLDER LIBRARIES...): libkvcache_NAME.so from the sources in a folder
function(kvcache_module name folder)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*.cc)
  set(target kvcache_${name})
  add_library(${target} MODULE ${sources})
  set_target_properties(${target} PROPERTIES
    CXX_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON
    LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
  target_compile_definitions(${target} PRIVATE KVC_LIBRARY_VERSION="${PROJECT_VERSION}")
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR})
  target_include_directories(${target} SYSTEM PRIVATE ${KVCACHE_DLPACK_INCLUDE_DIR})
  target_link_libraries(${target} PRIVATE kvcache_flags kvcache_hardening ${ARGN})
  if(KVCACHE_INSTALL)
    install(TARGETS ${target} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT ${name})
  endif()
endfunction()
