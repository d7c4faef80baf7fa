# Several files compiled as one, because most of the compile time goes into what each of them includes. CMake's own
# unity files name their parts by absolute paths; these name them from the root, so that a compiler cache serves every
# clone.

option(KVCACHE_UNITY "Compile several files as one; OFF is for who edits one of them" ON)

# kvcache_unity(OUT NAME [SIZE <n>] SOURCES...): sets OUT to files that stand for SOURCES, in the order given. Each
# includes SIZE of them, by default all.
function(kvcache_unity out name)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "SIZE" "")
  set(rest ${arg_UNPARSED_ARGUMENTS})
  list(LENGTH rest count)
  if(NOT KVCACHE_UNITY OR count LESS 2)
    set(${out} ${rest} PARENT_SCOPE)
    return()
  endif()
  if(NOT arg_SIZE)
    set(arg_SIZE ${count})
  endif()
  set(files "")
  set(number 0)
  while(rest)
    list(SUBLIST rest 0 ${arg_SIZE} parts)
    list(REMOVE_ITEM rest ${parts})
    set(text "")
    foreach(part IN LISTS parts)
      cmake_path(ABSOLUTE_PATH part)
      file(RELATIVE_PATH part ${PROJECT_SOURCE_DIR} ${part})
      string(APPEND text "#include \"${part}\"\n")
    endforeach()
    set(file ${CMAKE_CURRENT_BINARY_DIR}/unity/${name}_${number}.cc)
    file(CONFIGURE OUTPUT ${file} CONTENT "${text}" @ONLY)
    list(APPEND files ${file})
    math(EXPR number "${number} + 1")
  endwhile()
  set(${out} ${files} PARENT_SCOPE)
endfunction()
