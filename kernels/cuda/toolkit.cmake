# The CUDA toolkit: KVCACHE_NVCC where it is set, else the first new enough one of CUDACXX, CUDA_HOME, CUDA_PATH, the PATH, /usr/local/cuda, and what
# `make deps-cuda` installed. Sets KVCACHE_NVCC_USED, KVCACHE_NVCC_RELEASE, KVCACHE_CUDA_INCLUDE_DIR and KVCACHE_CUDART_STATIC.
#
# CMake's own CUDA language is not used: it links a test program with the toolkit's default layout before anything else, which the Python packages
# do not have, and it leaves no room for reading what ptxas prints.

set(kvcache_oldest_nvcc 13.0)  # cudaMemcpyBatchAsync as it is since then
set(KVCACHE_NVCC "" CACHE FILEPATH "nvcc; empty: searched for")

function(kvcache_nvcc_release nvcc out)
  set(${out} "" PARENT_SCOPE)
  execute_process(COMMAND "${nvcc}" --version OUTPUT_VARIABLE text ERROR_QUIET RESULT_VARIABLE status)
  if(status EQUAL 0 AND text MATCHES "release [0-9.]+, V([0-9.]+)")
    set(${out} "${CMAKE_MATCH_1}" PARENT_SCOPE)
  endif()
endfunction()

set(kvcache_nvcc_candidates "${KVCACHE_NVCC}")
if(NOT KVCACHE_NVCC)
  find_program(kvcache_nvcc_on_path nvcc NO_CACHE)
  set(kvcache_nvcc_candidates "$ENV{CUDACXX}" "$ENV{CUDA_HOME}/bin/nvcc" "$ENV{CUDA_PATH}/bin/nvcc" "${kvcache_nvcc_on_path}"
      /usr/local/cuda/bin/nvcc "${PROJECT_SOURCE_DIR}/.deps/cuda/nvidia/cu13/bin/nvcc")
endif()
set(KVCACHE_NVCC_USED "")
set(kvcache_nvcc_seen "")
foreach(candidate IN LISTS kvcache_nvcc_candidates)
  if(EXISTS "${candidate}" AND NOT KVCACHE_NVCC_USED)
    kvcache_nvcc_release("${candidate}" release)
    if(release VERSION_GREATER_EQUAL kvcache_oldest_nvcc)
      set(KVCACHE_NVCC_USED "${candidate}")
      set(KVCACHE_NVCC_RELEASE "${release}")
    else()
      string(APPEND kvcache_nvcc_seen "\n  ${candidate} is release '${release}'")
    endif()
  endif()
endforeach()
if(NOT KVCACHE_NVCC_USED)
  message(FATAL_ERROR "KVCACHE_CUDA=ON needs nvcc >= ${kvcache_oldest_nvcc}, and there is none: run `make deps-cuda`, or set KVCACHE_NVCC, "
                      "CUDACXX or CUDA_HOME to an installed toolkit.${kvcache_nvcc_seen}")
endif()

# Where a toolkit keeps headers and libraries differs (lib, lib64, targets/*); nvcc knows.
execute_process(COMMAND "${KVCACHE_NVCC_USED}" --dryrun -x cu -c /dev/null -o /dev/null ERROR_VARIABLE kvcache_nvcc_plan OUTPUT_QUIET)
cmake_path(GET KVCACHE_NVCC_USED PARENT_PATH kvcache_nvcc_folder)
set(kvcache_cuda_include_hints "")
# The Python packages of 13.0 say lib64 and mean lib.
set(kvcache_cuda_library_hints "${kvcache_nvcc_folder}/../lib" "${kvcache_nvcc_folder}/../lib64")
string(REGEX MATCHALL "\"-[IL][^\"]+\"" kvcache_nvcc_folders "${kvcache_nvcc_plan}")
foreach(folder IN LISTS kvcache_nvcc_folders)
  if(folder MATCHES "^\"-I(.+)\"$")
    list(APPEND kvcache_cuda_include_hints "${CMAKE_MATCH_1}")
  elseif(folder MATCHES "^\"-L(.+)\"$")
    list(APPEND kvcache_cuda_library_hints "${CMAKE_MATCH_1}")
  endif()
endforeach()
# Searched for anew each time: another nvcc brings other files.
find_path(kvcache_cudart_header cuda_runtime_api.h HINTS ${kvcache_cuda_include_hints} NO_CACHE)
find_library(kvcache_cudart_archive libcudart_static.a HINTS ${kvcache_cuda_library_hints} NO_CACHE)
if(NOT kvcache_cudart_header OR NOT kvcache_cudart_archive)
  message(FATAL_ERROR "KVCACHE_CUDA=ON: no cuda_runtime_api.h or no libcudart_static.a beside ${KVCACHE_NVCC_USED}: install the toolkit's "
                      "development files of the runtime, or run `.ci/deps-cuda --pinned` and set KVCACHE_NVCC to its nvcc")
endif()
cmake_path(NORMAL_PATH kvcache_cudart_header)
message(STATUS "CUDA: ${KVCACHE_NVCC_USED} ${KVCACHE_NVCC_RELEASE}")

# The tests, in another folder, want them too.
set(KVCACHE_NVCC_USED "${KVCACHE_NVCC_USED}" CACHE INTERNAL "")
set(KVCACHE_CUDA_INCLUDE_DIR "${kvcache_cudart_header}" CACHE INTERNAL "")
set(KVCACHE_CUDART_STATIC "${kvcache_cudart_archive}" CACHE INTERNAL "")
