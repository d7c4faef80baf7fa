# Checks of libkvcache_cuda.so as it was built (label cuda). Kernels themselves are tested emulated, in every build.
function(kvcache_cuda_check name)
  kvcache_test(cuda.${name} cuda ${ARGN} TIMEOUT 900)  # the disassembler, on a busy machine
  set_tests_properties(cuda.${name} PROPERTIES SKIP_RETURN_CODE 77)
endfunction()

cmake_path(GET KVCACHE_NVCC_USED PARENT_PATH kvcache_nvcc_folder)
kvcache_cuda_check(budgets COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/cuda/budgets.py
                   ${PROJECT_BINARY_DIR}/kernels/cuda --tools ${kvcache_nvcc_folder})
kvcache_cuda_check(ptxas_gate COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/cuda/ptxas_gate.py
                   ${KVCACHE_NVCC_USED} ${CMAKE_CXX_COMPILER})

add_executable(cuda_no_driver cuda/no_driver.c)
target_link_libraries(cuda_no_driver PRIVATE kvcache::kvcache kvcache_flags)
kvcache_cuda_check(no_driver COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/cuda/no_driver.py
                   $<TARGET_FILE:kvcache_cuda> ${PROJECT_VERSION} $<TARGET_FILE:cuda_no_driver>)

kvcache_cuda_check(hardening COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/abi/hardening.py
                   $<TARGET_FILE:kvcache_cuda> ${CMAKE_C_COMPILER} --module)

# Tests of kernels against the real runtime, for a machine with a GPU (tests/gpu): those whose device memory comes from device_memory.h, themselves or
# through a header of the folder, and that do not ask anything of the emulator. Part of `make cuda`, so that they are known to compile.
function(kvcache_uses_device_memory source out)
  set(${out} FALSE PARENT_SCOPE)
  file(STRINGS ${PROJECT_SOURCE_DIR}/${source} includes REGEX "^#include \"(tests/cuda|cudasim)/")
  if(includes MATCHES "\"cudasim/")
    return()
  endif()
  foreach(line IN LISTS includes)
    string(REGEX REPLACE "^#include \"([^\"]+)\".*" "\\1" header "${line}")
    set(found FALSE)
    if(header STREQUAL "tests/cuda/device_memory.h")
      set(found TRUE)
    elseif(EXISTS ${PROJECT_SOURCE_DIR}/${header})
      kvcache_uses_device_memory(${header} found)
    endif()
    if(found)
      set(${out} TRUE PARENT_SCOPE)
      return()
    endif()
  endforeach()
endfunction()

file(GLOB kvcache_kernel_tests CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} cuda/*_test.cc)
set(kvcache_device_tests "")
foreach(source IN LISTS kvcache_kernel_tests)
  kvcache_uses_device_memory(${source} found)
  if(found)
    list(APPEND kvcache_device_tests ${PROJECT_SOURCE_DIR}/${source})
  endif()
endforeach()
if(kvcache_device_tests)
  add_executable(cuda_device_test ${kvcache_device_tests})
  target_link_libraries(cuda_device_test PRIVATE kvcache_cuda_archive kvcache_internal GTest::gtest GTest::gmock GTest::gtest_main)
endif()

kvcache_cuda_check(gpu_run COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/gpu/check_run.py)

# All that the tests of the label need, without the rest of the tree.
add_custom_target(cuda_checks DEPENDS kvcache kvcache_cuda cuda_no_driver)
