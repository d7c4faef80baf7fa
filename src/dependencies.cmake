# What the library and the command are built with. Every package is taken from the system. Two that are
# headers alone, DLPack and nlohmann_json, are fetched where they are not installed.

option(KVCACHE_FETCH_HEADERS "Fetch headers of DLPack and nlohmann_json by pip where they are not installed" ON)
if(FETCHCONTENT_FULLY_DISCONNECTED)
  set(KVCACHE_FETCH_HEADERS OFF)
endif()
set(KVCACHE_FETCHED_HEADERS "${PROJECT_BINARY_DIR}/fetched_headers")
include(${CMAKE_CURRENT_LIST_DIR}/fetch_headers.cmake)

# Ends the configuration and says which packages of the usual systems bring what is missing.
function(kvcache_is_missing name required_by)
  set(CLI11 "Debian and Ubuntu: libcli11-dev; Fedora: cli11-devel; Homebrew: cli11")
  set(DLPack "pip: apache-tvm-ffi; or set KVCACHE_DLPACK_INCLUDE_DIR to the folder of dlpack/dlpack.h >= 1.0")
  set(GTest "Debian and Ubuntu: libgtest-dev and libgmock-dev; Fedora: gtest-devel and gmock-devel; Homebrew: googletest")
  set(OpenSSL "Debian and Ubuntu: libssl-dev; Fedora: openssl-devel; Homebrew: openssl@3, with OPENSSL_ROOT_DIR set to its prefix")
  set(PCRE2 "Debian and Ubuntu: libpcre2-dev; Fedora: pcre2-devel; Homebrew: pcre2")
  set(RocksDB "Debian and Ubuntu: librocksdb-dev; Fedora: rocksdb-devel; Homebrew: rocksdb; version 7 or later")
  set(UCX "Debian and Ubuntu: libucx-dev; Fedora: ucx-devel; version 1.13 or later")
  set(ZLIB "Debian and Ubuntu: zlib1g-dev; Fedora: zlib-devel; macOS has it")
  set(hiredis "Debian and Ubuntu: libhiredis-dev; Fedora: hiredis-devel; Homebrew: hiredis")
  set(nlohmann_json "Debian and Ubuntu: nlohmann-json3-dev; Fedora: json-devel; Homebrew: nlohmann-json; pip: nlohmann-json")
  set(utf8proc "Debian and Ubuntu: libutf8proc-dev; Fedora: utf8proc-devel; Homebrew: utf8proc")
  set(xxHash "Debian and Ubuntu: libxxhash-dev; Fedora: xxhash-devel; Homebrew: xxhash")
  message(FATAL_ERROR "${name} was not found, and ${required_by} needs it.\n"
                      "${${name}}.\n${ARGN}"
                      "On Debian and Ubuntu `make deps` installs what is missing.")
endfunction()

# kvcache_dependency(NAME [VERSION <version>] [COMPONENTS <names>] REQUIRED_BY <what>)
macro(kvcache_dependency name)
  cmake_parse_arguments(kvcache_dependency "" "VERSION;REQUIRED_BY" "COMPONENTS" ${ARGN})
  find_package(${name} ${kvcache_dependency_VERSION} QUIET COMPONENTS ${kvcache_dependency_COMPONENTS})
  if(NOT ${name}_FOUND)
    kvcache_is_missing(${name} "${kvcache_dependency_REQUIRED_BY}")
  endif()
endmacro()

find_package(Threads REQUIRED)

# ---- libcrypto: SHA-256 of prefix keys ----------------------------------------------------------------------------

# From the archive where there is one: then libkvcache.so needs no libcrypto.so at run time.
set(OPENSSL_USE_STATIC_LIBS TRUE)
find_package(OpenSSL 1.1.1 QUIET COMPONENTS Crypto)
if(NOT OPENSSL_FOUND)
  set(OPENSSL_USE_STATIC_LIBS FALSE)
  kvcache_dependency(OpenSSL VERSION 1.1.1 COMPONENTS Crypto REQUIRED_BY "the library")
  message(WARNING "there is no archive of libcrypto here: libkvcache.so will need ${OPENSSL_CRYPTO_LIBRARY} at run time")
endif()

# ---- nlohmann_json: reads config.json files -----------------------------------------------------------------------

if(NOT TARGET nlohmann_json::nlohmann_json)
  find_package(nlohmann_json QUIET)
endif()
if(NOT TARGET nlohmann_json::nlohmann_json)
  kvcache_fetch_header(nlohmann_json "${KVCACHE_FETCHED_HEADERS}" kvcache_fetch_error)
  if(kvcache_fetch_error)
    kvcache_is_missing(nlohmann_json "the library" "It could not be fetched: ${kvcache_fetch_error}\n")
  endif()
  add_library(nlohmann_json::nlohmann_json INTERFACE IMPORTED)
  target_include_directories(nlohmann_json::nlohmann_json INTERFACE "${KVCACHE_FETCHED_HEADERS}")
endif()

# ---- xxHash: digests of state files and transfers ----------------------------------------------------------------

# The header alone: what it defines is compiled into the library. A system's package has no CMake files.
if(NOT TARGET xxHash::xxhash)
  find_package(xxHash CONFIG QUIET)
endif()
if(TARGET xxHash::xxhash)
  set(KVCACHE_XXHASH_INCLUDE_DIR $<TARGET_PROPERTY:xxHash::xxhash,INTERFACE_INCLUDE_DIRECTORIES>)
else()
  if(NOT CMAKE_DISABLE_FIND_PACKAGE_xxHash)
    find_path(KVCACHE_XXHASH_INCLUDE_DIR xxhash.h)
    mark_as_advanced(KVCACHE_XXHASH_INCLUDE_DIR)
  endif()
  if(NOT KVCACHE_XXHASH_INCLUDE_DIR)
    kvcache_is_missing(xxHash "the library")
  endif()
endif()

# ---- PCRE2 and utf8proc: words and normal forms of the tokenisers of the `kvcache` command ----------------------------

# kvcache_c_library(TARGET PACKAGE HEADER LIBRARY REQUIRED_BY): makes the target of a library whose packages have no CMake files. From the
# archive where there is one: then the command does not need the shared object at run time.
function(kvcache_c_library target package header library required_by)
  if(TARGET ${target})
    return()
  endif()
  string(TOUPPER KVCACHE_${package} prefix)
  if(NOT CMAKE_DISABLE_FIND_PACKAGE_${package})
    find_path(${prefix}_INCLUDE_DIR ${header})
    find_library(${prefix}_LIBRARY NAMES lib${library}.a ${library})
    mark_as_advanced(${prefix}_INCLUDE_DIR ${prefix}_LIBRARY)
  endif()
  if(NOT ${prefix}_INCLUDE_DIR OR NOT ${prefix}_LIBRARY)
    kvcache_is_missing(${package} "${required_by}")
  endif()
  add_library(${target} INTERFACE IMPORTED GLOBAL)
  target_include_directories(${target} INTERFACE "${${prefix}_INCLUDE_DIR}")
  target_link_libraries(${target} INTERFACE "${${prefix}_LIBRARY}")
endfunction()

# Makes the targets kvcache_pcre2 and kvcache_utf8proc.
function(kvcache_tokeniser_libraries required_by)
  kvcache_c_library(kvcache_pcre2 PCRE2 pcre2.h pcre2-8 "${required_by}")
  kvcache_c_library(kvcache_utf8proc utf8proc utf8proc.h utf8proc "${required_by}")
endfunction()

# ---- DLPack >= 1.0: structs of tensors ----------------------------------------------------------------------------

function(kvcache_dlpack_version include_dir out)
  set(${out} "0.0" PARENT_SCOPE)
  if(EXISTS "${include_dir}/dlpack/dlpack.h")
    file(STRINGS "${include_dir}/dlpack/dlpack.h" lines REGEX "define DLPACK_(MAJOR|MINOR)_VERSION [0-9]+")
    string(REGEX MATCH "MAJOR_VERSION ([0-9]+)" _ "${lines}")
    set(major "${CMAKE_MATCH_1}")
    string(REGEX MATCH "MINOR_VERSION ([0-9]+)" _ "${lines}")
    if(major AND NOT CMAKE_MATCH_1 STREQUAL "")
      set(${out} "${major}.${CMAKE_MATCH_1}" PARENT_SCOPE)
    endif()
  endif()
endfunction()

if(NOT KVCACHE_DLPACK_INCLUDE_DIR)
  find_path(KVCACHE_DLPACK_INSTALLED dlpack/dlpack.h)
  mark_as_advanced(KVCACHE_DLPACK_INSTALLED)
  set(kvcache_dlpack_folder "")
  foreach(candidate IN ITEMS "${KVCACHE_DLPACK_INSTALLED}" "${PROJECT_SOURCE_DIR}/.deps/include")
    kvcache_dlpack_version("${candidate}" version)
    if(version VERSION_GREATER_EQUAL 1.0)
      set(kvcache_dlpack_folder "${candidate}")
      break()
    endif()
  endforeach()
  if(NOT kvcache_dlpack_folder)
    kvcache_fetch_header(dlpack "${KVCACHE_FETCHED_HEADERS}" kvcache_fetch_error)
    if(kvcache_fetch_error)
      kvcache_is_missing(DLPack "the library" "It could not be fetched: ${kvcache_fetch_error}\n")
    endif()
    set(kvcache_dlpack_folder "${KVCACHE_FETCHED_HEADERS}")
  endif()
  set(KVCACHE_DLPACK_INCLUDE_DIR "${kvcache_dlpack_folder}" CACHE PATH
      "Directory that holds dlpack/dlpack.h (>= 1.0)" FORCE)
endif()
kvcache_dlpack_version("${KVCACHE_DLPACK_INCLUDE_DIR}" KVCACHE_DLPACK_VERSION)
if(KVCACHE_DLPACK_VERSION VERSION_LESS 1.0)
  message(FATAL_ERROR "KVCACHE_DLPACK_INCLUDE_DIR = ${KVCACHE_DLPACK_INCLUDE_DIR} holds dlpack/dlpack.h "
                      "${KVCACHE_DLPACK_VERSION} (0.0: none), expected 1.0 or later")
endif()
