// How the threads of a region walk through its operations, over any kind of atomic: a test puts in one that lets it choose
// who runs next (tests/unit/kernels/native/region_orders.cpp).
#pragma once

#include <atomic>
#include <cstdint>

#include "common/pool.h"
#include "common/region.h"

namespace quire {

// Spins: looks of a thread that finds nothing to do, before it parks.
template <template <class> class Atomic, int Spins>
class RegionWalk {
 public:
  explicit RegionWalk(const Program& program) : program_(program), size_(int32_t(program.counts.size())) { open(0, 0); }

  // Takes part until the program is over.
  void work(int thread) {
    for (;;) {
      const uint64_t ticket = ticket_.fetch_add(1, std::memory_order_acq_rel);
      const auto operation = int32_t(ticket >> 32), item = int32_t(uint32_t(ticket));
      if (operation >= size_) return;
      if (item >= program_.counts[size_t(operation)]) {
        wait(operation);
        continue;
      }
      program_.run(program_.context, operation, item, thread);
      // All items of an operation are done before the next one's can be taken, so nobody else counts here meanwhile.
      if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 == program_.counts[size_t(operation)]) open(operation + 1, thread);
    }
  }

 private:
  // Hands out the items of an operation, after those before it that have a single item or none: waking others for one
  // item costs more than most of them do.
  void open(int32_t operation, int thread) {
    for (; operation < size_ && program_.counts[size_t(operation)] <= 1; ++operation)
      if (program_.counts[size_t(operation)] == 1) program_.run(program_.context, operation, 0, thread);
    done_.store(0, std::memory_order_relaxed);
    // In this order: nobody can end the operation before its tickets are there, so `opened_` never goes back, and whoever waits
    // for an operation to be over is woken by the one who opens the next.
    opened_.store(operation, std::memory_order_release);
    ticket_.store(uint64_t(uint32_t(operation)) << 32, std::memory_order_release);
    opened_.notify_all();
  }

  void wait(int32_t operation) {
    for (int spin = 0; spin < Spins; ++spin) {
      if (opened_.load(std::memory_order_acquire) != operation) return;
      relax();
    }
    opened_.wait(operation, std::memory_order_acquire);
  }

  const Program& program_;
  const int32_t size_;
  // Operation in the high half, next item in the low one. A thread that takes one item too many does so once for each operation,
  // or again and again for the moment between the two stores of open(): 32 bits are enough for both.
  alignas(64) Atomic<uint64_t> ticket_{0};
  alignas(64) Atomic<int32_t> done_{0};
  alignas(64) Atomic<int32_t> opened_{0};
};

}  // namespace quire
