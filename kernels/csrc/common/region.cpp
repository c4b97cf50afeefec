#include "common/region.h"

#include <atomic>

#include "common/pool.h"
#include "common/region_walk.h"

namespace quire {

void run_program(const Program& program, int max_threads) {
  RegionWalk<std::atomic, kSpins> region(program);
  parallel_for(max_threads, max_threads, [&](int64_t thread) { region.work(int(thread)); });
}

}  // namespace quire
