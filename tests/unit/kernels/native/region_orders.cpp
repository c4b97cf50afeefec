// All orders in which three threads can walk through a region while they are stopped in the middle, anywhere, up to three times
// in all: everybody gets to the end, every item is done once, and only after those of the operations before it.
//
// Each thread is a stack of its own in one real thread. At every operation on an atomic it may have to give way, and all
// choices of who runs next are tried, one after the other. Atomics are sequentially consistent here, whatever the code asks for.
#include <ucontext.h>

#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "common/region.h"
#include "common/region_walk.h"

namespace {

constexpr int kThreads = 3;
constexpr int kPatience = 30;  // steps in a row after which a thread that goes round in circles gives way
constexpr int kMostSteps = 5000;
constexpr int kSpins = 1;
constexpr size_t kStack = 64 * 1024;

// The choices of one order; those of the next one are found by counting up the last of them.
class Choices {
 public:
  void restart() { at_ = 0; }

  size_t choose(size_t options) {
    if (options == 1) return 0;
    if (at_ == path_.size()) path_.push_back({options, 0});
    return path_[at_++].taken;
  }

  bool next() {
    while (!path_.empty() && path_.back().taken + 1 == path_.back().options) path_.pop_back();
    if (path_.empty()) return false;
    ++path_.back().taken;
    return true;
  }

 private:
  struct Choice {
    size_t options, taken;
  };
  std::vector<Choice> path_;
  size_t at_ = 0;
};

struct Thread {
  ucontext_t context;
  std::vector<char> stack = std::vector<char>(kStack);
  bool fresh = true, over = false;
  int last_step = 0;
  const void* parked_at = nullptr;
};

struct World {
  Choices choices;
  Thread threads[kThreads];
  ucontext_t outside;
  int running = -1;  // nobody: outside
  int stops = 0, in_a_row = 0, steps = 0;
  void (*body)(int) = nullptr;
  bool hangs = false, in_circles = false;

  bool ready(int thread) const { return !threads[thread].over && threads[thread].parked_at == nullptr; }

  // Goes on with another thread, or with the same; outside where all are over or nobody can go on.
  void give_way() {
    const int from = running;
    const bool may_stay = ready(from) && in_a_row < kPatience;
    ++in_a_row;
    threads[from].last_step = ++steps;
    if (may_stay && stops == 0) return;
    int options[kThreads], count = 0;
    if (may_stay) options[count++] = from;
    bool fresh = false;  // of threads that have done nothing yet one is as good as another
    for (int other = 0; other < kThreads; ++other) {
      if (other == from || !ready(other) || (fresh && threads[other].fresh)) continue;
      fresh = fresh || threads[other].fresh;
      options[count++] = other;
    }
    if (count == 0 && ready(from)) options[count++] = from;
    // Who goes round in circles gives way to the one that has waited longest: to choose here would let two of them keep out
    // the third for good, which no system does.
    if (ready(from) && !may_stay) {
      for (int i = 1; i < count; ++i)
        if (threads[options[i]].last_step < threads[options[0]].last_step) options[0] = options[i];
      count = 1;
    }
    bool over = true;
    for (const Thread& thread : threads) over = over && thread.over;
    if (count == 0 || steps > kMostSteps) {
      hangs = !over;
      in_circles = count > 0;
      running = -1;
      swapcontext(&threads[from].context, &outside);
      return;
    }
    const int to = options[choices.choose(size_t(count))];
    if (to == from) return;
    stops -= may_stay;
    in_a_row = 0;
    running = to;
    threads[to].fresh = false;
    swapcontext(&threads[from].context, &threads[to].context);
  }

  void park(const void* place) {
    threads[running].parked_at = place;
    give_way();
  }

  void wake(const void* place) {
    for (Thread& thread : threads)
      if (thread.parked_at == place) thread.parked_at = nullptr;
  }

  static void start();

  // One order; false where it hangs.
  bool run(int most_stops, void (*what)(int)) {
    body = what;
    stops = most_stops;
    in_a_row = steps = 0;
    hangs = false;
    choices.restart();
    for (Thread& thread : threads) {
      thread.fresh = true;
      thread.over = false;
      thread.last_step = 0;
      thread.parked_at = nullptr;
      getcontext(&thread.context);
      thread.context.uc_stack.ss_sp = thread.stack.data();
      thread.context.uc_stack.ss_size = thread.stack.size();
      thread.context.uc_link = nullptr;
      makecontext(&thread.context, &World::start, 0);
    }
    running = 0;
    threads[0].fresh = false;
    swapcontext(&outside, &threads[0].context);
    return !hangs;
  }
};

World world;

void World::start() {
  world.body(world.running);
  world.threads[world.running].over = true;
  world.give_way();
}

// A point at which a thread may be stopped.
void step() {
  if (world.running >= 0) world.give_way();
}

template <class T>
class Watched {
 public:
  Watched(T value) : value_(value) {}

  T load(std::memory_order) const {
    step();
    return value_;
  }
  void store(T value, std::memory_order) {
    step();
    value_ = value;
  }
  T fetch_add(T more, std::memory_order) {
    step();
    return std::exchange(value_, T(value_ + more));
  }
  void wait(T old, std::memory_order) const {
    step();
    while (value_ == old) world.park(this);
  }
  void notify_all() {
    step();
    world.wake(this);
  }

 private:
  T value_;
};

using Walk = quire::RegionWalk<Watched, kSpins>;

// A program whose items note that they were done. An operation of one item may set how many another has, as `sort` does.
struct Work {
  quire::Program program;
  std::vector<std::vector<int>> done;
  int sets = -1, later = -1, count = 0;
};

Work* work;
Walk* walk;
bool wrong;

void run_item(void*, int32_t operation, int32_t item, int) noexcept {
  step();
  for (size_t before = 0; before < size_t(operation); ++before)
    for (int32_t i = 0; i < work->program.counts[before]; ++i) wrong = wrong || work->done[before][size_t(i)] != 1;
  if (operation == work->sets) work->program.counts[size_t(work->later)] = work->count;
  ++work->done[size_t(operation)][size_t(item)];
}

bool check(int stops, const std::vector<int32_t>& counts, int sets = -1, int later = -1, int count = 0) {
  long orders = 0;
  do {
    Work one;
    one.program.counts = counts;
    one.program.run = run_item;
    one.program.context = nullptr;
    one.done.assign(counts.size(), std::vector<int>(8));
    one.sets = sets, one.later = later, one.count = count;
    work = &one;
    wrong = false;
    Walk region(one.program);
    walk = &region;
    const bool ends = world.run(stops, [](int thread) { walk->work(thread); });
    for (size_t operation = 0; operation < counts.size(); ++operation)
      for (size_t item = 0; item < 8; ++item)
        wrong = wrong || one.done[operation][item] != (int32_t(item) < one.program.counts[operation] ? 1 : 0);
    ++orders;
    if (ends && !wrong) continue;
    std::printf("order %ld %s\n", orders, ends ? "does items twice, never or too early" : world.in_circles ? "goes round in circles" : "waits for nobody");
    return false;
  } while (world.choices.next());
  std::printf("%ld orders\n", orders);
  return true;
}

}  // namespace

int main() {
  const bool right = check(3, {2, 2}) && check(2, {3, 1, 0, 2}) && check(2, {1, 2, 1, 0, 2, 1}, 2, 3, 2) && check(2, {1, 0, 1}) && check(2, {});
  return right ? 0 : 1;
}
