#include "common/pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace quire {
namespace {

class Pool {
 public:
  // Has fewer threads where the system gives no more of them (a limit on processes or on memory).
  explicit Pool(int threads) {
    workers_.reserve(size_t(threads) - 1);
    try {
      for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { work(); });
    } catch (const std::exception&) {  // system_error or bad_alloc
    }
    for (size_t ready = 0; ready < workers_.size(); ready = ready_.load(std::memory_order_acquire)) ready_.wait(ready);
  }

  ~Pool() {
    stopping_ = true;
    ++epoch_;
    epoch_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

  int threads() const { return int(workers_.size()) + 1; }

  void run(int64_t count, int max_threads, void (*body)(void*, int64_t), void* context) {
    body_ = body;
    context_ = context;
    count_ = count;
    next_.store(0, std::memory_order_relaxed);
    room_.store(std::min(max_threads, threads()) - 1, std::memory_order_relaxed);
    gate_.fetch_sub(kClosed, std::memory_order_release);  // open
    epoch_.fetch_add(1, std::memory_order_release);
    if (max_threads >= threads()) {
      epoch_.notify_all();
    } else {
      for (int i = 1; i < max_threads; ++i) epoch_.notify_one();
    }
    drain();
    // A worker that has not come in by now is not waited for: it may not even be scheduled.
    int inside = gate_.fetch_add(kClosed, std::memory_order_acq_rel) + kClosed;
    for (int spin = 0; inside != kClosed; inside = gate_.load(std::memory_order_acquire)) {
      if (++spin < kSpins) {
        relax();
      } else {
        gate_.wait(inside, std::memory_order_acquire);
      }
    }
    if (failure_) {
      failing_ = false;
      std::rethrow_exception(std::exchange(failure_, nullptr));
    }
  }

 private:
  static constexpr int kClosed = 1 << 30;

  void drain() {
    try {
      for (int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < count_;) body_(context_, i);
    } catch (...) {
      if (!failing_.exchange(true)) failure_ = std::current_exception();  // read when the gate is closed and all are out
      next_.store(count_, std::memory_order_relaxed);
    }
  }

  void work() {
    thread_memory();
    const volatile int none = std::uncaught_exceptions();  // a place for what is thrown, too; volatile, or it is left out
    (void)none;
    ready_.fetch_add(1, std::memory_order_release);
    ready_.notify_one();
    int seen = 0;
    for (;;) {
      int now = epoch_.load(std::memory_order_acquire);
      for (int spin = 0; now == seen && spin < kSpins; ++spin) {
        relax();
        now = epoch_.load(std::memory_order_acquire);
      }
      if (now == seen) {
        epoch_.wait(seen, std::memory_order_acquire);
        continue;
      }
      seen = now;
      if (stopping_) return;
      // The gate counts workers inside. Fields of the job may be read only after coming in while it was open.
      if (gate_.fetch_add(1, std::memory_order_acq_rel) < kClosed && room_.fetch_sub(1, std::memory_order_relaxed) > 0)
        drain();
      if (gate_.fetch_sub(1, std::memory_order_acq_rel) == kClosed + 1) gate_.notify_one();
    }
  }

  std::vector<std::thread> workers_;
  std::atomic<size_t> ready_{0};
  std::atomic<int> epoch_{0};
  std::atomic<int> gate_{kClosed};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> failing_{false};
  alignas(64) std::atomic<int64_t> next_{0};
  alignas(64) std::atomic<int> room_{0};
  void (*body_)(void*, int64_t) = nullptr;
  void* context_ = nullptr;
  int64_t count_ = 0;
  std::exception_ptr failure_;
};

int available_cpus() {
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
#endif
  return std::max(1u, std::thread::hardware_concurrency());
}

// Never destroyed: parked workers may outlive static objects at exit. A forked child has no workers, so it forgets the
// pool and makes its own when it needs one.
struct State {
  std::mutex mutex;
  std::atomic<int> threads{available_cpus()};
  std::unique_ptr<Pool> pool;
};

std::atomic<State*> current{nullptr};

State& state() {
  static const bool once = [] {
    current = new State;
    pthread_atfork(nullptr, nullptr, [] {
      State* child = new State;
      child->threads = current.load()->threads.load();
      current = child;
    });
    return true;
  }();
  (void)once;
  return *current;
}

}  // namespace

int num_threads() { return state().threads; }

ThreadMemory& thread_memory() {
  thread_local ThreadMemory memory;
  return memory;
}

int threads_for(double multiply_adds) { return int(std::min<double>(num_threads(), 1 + multiply_adds / kWorkPerThread)); }

void set_num_threads(int count) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.threads = count;
  if (s.pool && s.pool->threads() != count) s.pool.reset();
}

void parallel_for(int64_t count, int max_threads, void (*body)(void*, int64_t), void* context) {
  State& s = state();
  max_threads = int(std::min<int64_t>({max_threads, s.threads.load(), count}));
  if (max_threads > 1) {
    const std::unique_lock lock(s.mutex, std::try_to_lock);
    if (lock) {
      if (!s.pool) {
        s.pool = std::make_unique<Pool>(s.threads);
        s.threads = s.pool->threads();
      }
      return s.pool->run(count, max_threads, body, context);
    }
  }
  for (int64_t i = 0; i < count; ++i) body(context, i);
}

}  // namespace quire
