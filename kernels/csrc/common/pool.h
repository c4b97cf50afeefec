// Threads that share one loop at a time. No OpenMP: torch brings its own, and two runtimes fight for the cores.
#pragma once

#include <cstdint>

#include "common/memory.h"

namespace quire {

// Looking for work this long before parking hides the wake-up time between kernels of one step; longer would take the core
// from torch's threads.
constexpr int kSpins = 2000;

inline void relax() {
#if defined(QUIRE_X86)
  __builtin_ia32_pause();
#endif
}

// The caller included. At first the number of CPUs this process may run on; fewer once the system has refused to start
// that many, until set_num_threads asks for them again.
int num_threads();
void set_num_threads(int count);

// Memory of the calling thread, kept for its next call. Threads of the pool have a place for it from their start: glibc ends
// the process where there is no memory for a thread's first look at thread-local data, and that must not be amid a request.
struct ThreadMemory {
  Scratch<float> floats;
  Scratch<uint8_t> bytes;
};
ThreadMemory& thread_memory();

// A thread is worth waking for this many multiply-adds: some 20 us on a core, several times what it takes to wake one.
constexpr double kWorkPerThread = 400'000;

// Threads worth using for that many multiply-adds, at most num_threads().
int threads_for(double multiply_adds);

// Calls body(context, i) for all i in [0, count), in any order, on up to max_threads threads (the caller is one), and
// returns when all are done. Indices are handed out one by one, so a slow or absent thread delays nobody. Two calls at
// once are fine: the second does all its work on its own thread. Where the body throws, the indices that are not handed out
// yet are dropped, and the first exception is thrown here when all threads are out of the body.
void parallel_for(int64_t count, int max_threads, void (*body)(void* context, int64_t i), void* context);

template <class Body>
void parallel_for(int64_t count, int max_threads, const Body& body) {
  const auto call = [](void* context, int64_t i) { (*static_cast<const Body*>(context))(i); };
  parallel_for(count, max_threads, call, const_cast<Body*>(&body));
}

}  // namespace quire
