// One parallel region for a whole sequence of operations: threads come in once and walk through it together.
//
// There is no barrier that waits for all threads. An operation is over when its items are done, and whoever finishes the
// last one opens the next; a thread that the system has not scheduled holds nobody up unless it holds an item.
#pragma once

#include <cstdint>
#include <vector>

namespace quire {

// Operations in order. The items of one may run at once and in any order; what they write is seen by all later operations.
struct Program {
  std::vector<int32_t> counts;  // items of each operation; 0: it is left out
  // thread: a number below max_threads that no other thread has at that time. Must not throw.
  void (*run)(void* context, int32_t operation, int32_t item, int thread) noexcept;
  void* context;
};

// Runs the program on up to max_threads threads of the pool (the caller is one). Where the pool is taken, the caller does all.
void run_program(const Program& program, int max_threads);

}  // namespace quire
