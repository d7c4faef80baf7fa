// Sizes of the convolution kernel.
//
// A thread has one channel: neighbouring threads read neighbouring inputs. An output depends on the
// last `width` inputs alone, so rows are cut among CTAs; a CTA keeps the window of a channel in
// registers while it walks down its rows. The first CTA of a channel and sequence is the only one
// that reads the state, and writes it, so that both may be the same memory (with widths to kRows +
// 1; wider windows of the second CTA reach into it).
#pragma once

#include <cstdint>

namespace kvc::cuda::conv_config {

constexpr uint32_t kThreads = 128;  // channels of a CTA
// Rows of a CTA: the width - 1 inputs before them are read twice.
constexpr int32_t kRows = 64;
// Inputs that a thread has asked for before it needs them, and CTAs per SM: together what is on its
// way from memory.
constexpr int kRowsAhead = 8;
constexpr uint32_t kCtas = 8;
// Widths with the window in registers; others read every input `width` times, from L1.
constexpr int32_t kMostWidth = 4;

}  // namespace kvc::cuda::conv_config
