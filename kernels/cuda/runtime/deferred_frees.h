// What could not be given back because a capture was under way: giving memory back waits for the
// device, which a capture forbids. It is tried again by the next call that gives back or asks for
// memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace kvc::cuda::runtime {

// Gives `address` back, with `device` current; returns why not.
using GiveBack = cudaError_t (*)(void* address);

// Makes `device` current and gives back, now or later. Errors other than a capture's are final: the
// context that held the memory is lost.
void give_back(int32_t device, void* address, GiveBack give);
// What was left over; true: something was given back.
bool give_back_leftovers();

}  // namespace kvc::cuda::runtime
