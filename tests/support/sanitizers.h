// Which sanitizer a program of tests is built with.
#pragma once

#if defined(__SANITIZE_THREAD__)
#define KVC_UNDER_TSAN 1
#elif defined(__SANITIZE_ADDRESS__)
#define KVC_UNDER_ASAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define KVC_UNDER_TSAN 1
#elif __has_feature(address_sanitizer)
#define KVC_UNDER_ASAN 1
#endif
#endif
