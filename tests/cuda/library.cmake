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

# Tests against the real runtime, for a machine with a GPU (tests/gpu). They take memory from
# device_memory.h or test_runtime.h and include nothing of the emulator, nor do their headers.
function(kvcache_device_test_includes source out_uses_device out_uses_emulator)
  set(uses_device FALSE)
  set(uses_emulator FALSE)
  file(STRINGS ${PROJECT_SOURCE_DIR}/${source} includes REGEX "^#include [\"<](tests/cuda|cudasim)/")
  foreach(line IN LISTS includes)
    string(REGEX REPLACE "^#include [\"<]([^\">]+).*" "\\1" header "${line}")
    if(header MATCHES "^cudasim/")
      set(uses_emulator TRUE)
      continue()
    endif()
    if(header MATCHES "^tests/cuda/(device_memory|test_runtime)\\.h$")
      set(uses_device TRUE)
    endif()
    kvcache_device_test_includes(${header} below_uses_device below_uses_emulator)
    if(below_uses_device)
      set(uses_device TRUE)
    endif()
    if(below_uses_emulator)
      set(uses_emulator TRUE)
    endif()
  endforeach()
  set(${out_uses_device} ${uses_device} PARENT_SCOPE)
  set(${out_uses_emulator} ${uses_emulator} PARENT_SCOPE)
endfunction()

file(GLOB kvcache_kernel_tests CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} cuda/*_test.cc)
set(kvcache_device_tests ${CMAKE_CURRENT_SOURCE_DIR}/cuda/test_runtime_device.cc)
foreach(source IN LISTS kvcache_kernel_tests)
  kvcache_device_test_includes(${source} uses_device uses_emulator)
  if(uses_device AND NOT uses_emulator)
    list(APPEND kvcache_device_tests ${PROJECT_SOURCE_DIR}/${source})
  endif()
endforeach()
add_executable(cuda_device_test ${kvcache_device_tests})
target_precompile_headers(cuda_device_test PRIVATE <gtest/gtest.h>)
target_link_libraries(cuda_device_test PRIVATE
  kvcache_cuda_archive kvcache_internal kvcache_test_code GTest::gtest GTest::gmock GTest::gtest_main)
# It runs only where there is a GPU; without one it still has to list its tests.
kvcache_cuda_check(device_tests COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/cuda/device_tests.py
                   $<TARGET_FILE:cuda_device_test>)

kvcache_cuda_check(gpu_run COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/gpu/check_run.py)

# All that the tests of the label need, without the rest of the tree.
add_custom_target(cuda_checks DEPENDS kvcache kvcache_cuda cuda_no_driver cuda_device_test)
