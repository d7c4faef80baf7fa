// Threads on processors. A thread that was just woken often starts on the processor of the one that
// woke it, and a portion of a few milliseconds is over before the scheduler moves it: one core
// would be measured now, two cores then.
#pragma once

#include <vector>

namespace kvc::bench {

// Ids of all threads of the process, ascending; empty where the system does not tell.
std::vector<int> process_threads();

// Spreads all threads of the process over the first `threads` processors it may use, in the order
// they were made; the calling thread gets the first for itself. Call when the library has started
// its threads. Does nothing where the system cannot do it.
void pin_threads(int threads);

// All threads may use every processor again, so that what is made next counts and uses the whole
// machine.
void unpin_threads();

}  // namespace kvc::bench
