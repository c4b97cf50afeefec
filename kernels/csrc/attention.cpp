// The driver of attention on its own: the items of one schedule, spread over the pool. The decoder plan (decoder.h) runs
// schedules inside its region instead.
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>

#include "attention_schedule.h"
#include "drivers.h"
#include "pool.h"

namespace quire {
namespace {

void zero_padding(const AttentionCall& call, int64_t first_row) {
  const int64_t bytes = call.head_size * size_of(call.out.type);
  for (int64_t row = first_row; row < call.out.shape[0]; ++row)
    for (int64_t head = 0; head < call.out.shape[1]; ++head) std::fill_n(call.out.at(row, head), bytes, char(0));
}

// Grow-only, per thread, never uninitialised.
float* scratch(int64_t floats) {
  struct Free {
    void operator()(float* p) const { std::free(p); }
  };
  thread_local std::unique_ptr<float, Free> memory;
  thread_local int64_t size = 0;
  if (floats > size) {
    floats = (floats + 15) / 16 * 16;
    size = 0;
    memory.reset();
    memory.reset(static_cast<float*>(std::aligned_alloc(64, size_t(floats) * sizeof(float))));
    if (!memory) throw std::bad_alloc();
    std::fill_n(memory.get(), floats, 0.0f);
    size = floats;
  }
  return memory.get();
}

}  // namespace

void paged_attention(const Kernels& kernels, AttentionCall call, const Tensor& query_start, const Tensor& context_lens) {
  std::vector<AttentionSequence> sequences = read_sequences(call, query_start, context_lens);
  zero_padding(call, query_start.as<int32_t>()[context_lens.shape[0]]);
  if (sequences.empty()) return;
  const int threads = attention_threads(call, sequences);
  AttentionSchedule schedule = schedule_attention(call, std::move(sequences), threads);
  const std::unique_ptr<float[]> partials(new float[size_t(schedule.partial_floats)]);
  schedule.place(partials.get());
  const int64_t floats = schedule.scratch_floats;
  const auto attend = [&](int64_t i) { kernels.attend(call, schedule.items[size_t(i)], scratch(floats)); };
  parallel_for(int64_t(schedule.items.size()), threads, attend);
  for (const auto& [first, count] : schedule.spans)
    kernels.merge(call, &schedule.items[size_t(first)], count, scratch(floats));
}

}  // namespace quire
