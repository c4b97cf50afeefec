// The driver of attention on its own: the items of one schedule, spread over the pool. The decoder plan (decoder/plan.h) runs
// schedules inside its region instead.
#include "attention/attention.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "attention/schedule.h"
#include "common/memory.h"
#include "common/pool.h"

namespace quire {
namespace {

void zero_padding(const AttentionCall& call, int64_t first_row) {
  const int64_t bytes = call.head_size * size_of(call.out.type);
  for (int64_t row = first_row; row < call.out.shape[0]; ++row)
    for (int64_t head = 0; head < call.out.shape[1]; ++head) std::fill_n(call.out.at(row, head), bytes, char(0));
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
  const auto attend = [&](int64_t i) { schedule.attend(kernels, call, i, thread_memory().floats.reserve(floats)); };
  parallel_for(schedule.num_runs(), threads, attend);
  for (const auto& [first, count] : schedule.spans)
    kernels.merge(call, &schedule.items[size_t(first)], count, thread_memory().floats.reserve(floats));
}

}  // namespace quire
