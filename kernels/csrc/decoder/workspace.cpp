#include "decoder/workspace.h"

#include <algorithm>
#include <utility>

#include "attention/schedule.h"

namespace quire {
namespace {

// Bytes of records for each token: of the product whose input has the most.
int64_t most_record_bytes(const DecoderModel& model, const PackedKernels& packed) {
  int64_t most = packed.record_bytes(model.head->input(), model.head->cols());
  const auto count = [&](const Linear& linear, int64_t rows) {
    if (linear.weight != nullptr) most = std::max(most, rows * packed.record_bytes(linear.weight->input(), linear.weight->cols()));
  };
  for (const DecoderLayer& layer : model.layers) {
    for (const Linear* linear : {&layer.qkv, &layer.o, &layer.gate_up, &layer.down}) count(*linear, 1);
    for (const Expert& expert : layer.experts)
      for (const Linear* linear : {&expert.gate_up, &expert.down}) count(*linear, model.experts_per_token);
  }
  return most;
}

}  // namespace

Workspace::Workspace(const DecoderModel& model, const PackedKernels& table, int64_t tokens)
    : packed(&table), max_tokens(tokens), routing(model, tokens), up_items(model.num_experts), down_items(model.num_experts) {
  const int64_t slots = model.slots_per_row();
  const int64_t hidden = aligned(tokens * model.hidden_size * 4);
  const int64_t wide_bytes =
      aligned(tokens * std::max({model.qkv_size(), slots * 2 * model.intermediate_size, model.num_experts}) * 4);
  const int64_t inner_bytes = aligned(tokens * std::max(model.q_size(), slots * model.intermediate_size) * 4);
  const int64_t sorted_bytes = model.num_experts > 0 ? aligned(tokens * slots * model.hidden_size * 4) : 0;
  memory_bytes_ = 3 * hidden + wide_bytes + inner_bytes + sorted_bytes + tokens * most_record_bytes(model, table);
  memory_ = allocate<uint8_t>(memory_bytes_);
  uint8_t* next = memory_.get();
  const auto take = [&](int64_t bytes) { return reinterpret_cast<float*>(std::exchange(next, next + bytes)); };
  residual = take(hidden);
  normed = take(hidden);
  answer = take(hidden);
  wide = take(wide_bytes);
  inner = take(inner_bytes);
  sorted = take(sorted_bytes);
  records = next;
}

void Workspace::reserve(int threads, int64_t scratch_floats, int64_t partial_floats) {
  if (int(scratch_.size()) < threads) scratch_.resize(size_t(threads));
  for (Scratch<float>& each : scratch_) each.reserve(scratch_floats);
  partials_.reserve(partial_floats);
}

int64_t Workspace::num_bytes() const {
  int64_t bytes = memory_bytes_ + routing.num_bytes() + up_items.num_bytes() + down_items.num_bytes() + partials_.num_bytes();
  for (const Scratch<float>& each : scratch_) bytes += each.num_bytes();
  return bytes;
}

int64_t Workspace::bytes_beside_tokens(const DecoderModel& model, int64_t longest, int threads) {
  const int group = model.num_heads / model.num_kv_heads;
  const auto [scratch, partials] = attention_bounds(model.num_kv_heads, group, model.head_size, longest, threads);
  const int64_t experts = Routing(model, 0).num_bytes() + 2 * ExpertItems(model.num_experts).num_bytes();
  return (threads * scratch + partials) * int64_t(sizeof(float)) + experts;
}

}  // namespace quire
