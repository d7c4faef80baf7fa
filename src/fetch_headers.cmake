# Fetches headers that few systems package, from pinned Python packages and by pip. Nothing is installed.
# A checksum of the package is compared. As a script:
#   cmake -D HEADER=dlpack -D FOLDER=.deps/include -P src/fetch_headers.cmake

# Package, checksum of its file, folder inside it.
set(kvcache_header_dlpack "apache-tvm-ffi==0.1.15.post2"
    059eed9bfc94bcd41650fb8eefde74040a1bc7e7b1a6f0a8ff897b02b118875b "tvm_ffi/include/dlpack")
set(kvcache_header_nlohmann_json "nlohmann-json==3.12.0"
    5f6132720fb25d0d70bf0742f8397b49a540dcc193e7312a914f6aa49f054810 "nlohmann_json/include/nlohmann")

# The first Python that has pip. An interpreter of another origin than the system's may have none.
function(kvcache_find_pip out)
  set(${out} "" PARENT_SCOPE)
  foreach(python IN ITEMS python3 /usr/bin/python3 python)
    execute_process(COMMAND ${python} -m pip --version RESULT_VARIABLE failed OUTPUT_QUIET ERROR_QUIET)
    if(NOT failed)
      set(${out} "${python}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
endfunction()

# Puts the headers below `folder`. `error` is empty afterwards, or says why they are not there.
function(kvcache_fetch_header name folder error)
  set(${error} "" PARENT_SCOPE)
  list(GET kvcache_header_${name} 0 package)
  list(GET kvcache_header_${name} 1 checksum)
  list(GET kvcache_header_${name} 2 inside)
  cmake_path(GET inside FILENAME headers)
  set(stamp "${folder}/${headers}/.package")
  if(EXISTS "${stamp}")
    file(READ "${stamp}" present)
    if(present STREQUAL "${package} ${checksum}")
      return()
    endif()
  endif()
  if(DEFINED KVCACHE_FETCH_HEADERS AND NOT KVCACHE_FETCH_HEADERS)
    set(${error} "fetching is off (KVCACHE_FETCH_HEADERS, FETCHCONTENT_FULLY_DISCONNECTED)" PARENT_SCOPE)
    return()
  endif()
  kvcache_find_pip(python)
  if(NOT python)
    set(${error} "there is no python3 with pip" PARENT_SCOPE)
    return()
  endif()
  message(STATUS "kvcache: fetching the headers of ${package}")
  set(scratch "${folder}/.fetch_${name}")
  file(REMOVE_RECURSE "${scratch}")
  file(WRITE "${scratch}/requirements.txt" "${package} --hash=sha256:${checksum}\n")
  # The headers are the same in every file of a release, so one is pinned, whatever this machine is.
  execute_process(
    COMMAND ${python} -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all:
            --implementation cp --python-version 3.12 --platform manylinux_2_28_x86_64
            --require-hashes --requirement "${scratch}/requirements.txt" --dest "${scratch}"
    RESULT_VARIABLE failed OUTPUT_VARIABLE output ERROR_VARIABLE output)
  file(GLOB wheel "${scratch}/*.whl")
  if(failed OR NOT wheel)
    file(REMOVE_RECURSE "${scratch}")
    set(${error} "pip download ${package}: ${output}" PARENT_SCOPE)
    return()
  endif()
  file(ARCHIVE_EXTRACT INPUT "${wheel}" DESTINATION "${scratch}/wheel" PATTERNS "${inside}/*")
  file(WRITE "${scratch}/wheel/${inside}/.package" "${package} ${checksum}")
  file(REMOVE_RECURSE "${folder}/${headers}")
  file(RENAME "${scratch}/wheel/${inside}" "${folder}/${headers}")
  file(REMOVE_RECURSE "${scratch}")
endfunction()

if(CMAKE_SCRIPT_MODE_FILE STREQUAL CMAKE_CURRENT_LIST_FILE)
  cmake_minimum_required(VERSION 3.25)
  kvcache_fetch_header(${HEADER} "${FOLDER}" failure)
  if(failure)
    message(FATAL_ERROR "${failure}")
  endif()
endif()
