#include "decoder_workspace.h"

#include <algorithm>
#include <cstdlib>
#include <new>
#include <utility>

namespace quire {
namespace {

constexpr int64_t kAlignment = 64;

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Bytes of the largest record that a product of the model reads.
int64_t most_record_bytes(const DecoderModel& model) {
  int64_t most = record_bytes(model.head->input(), model.head->cols());
  for (const DecoderLayer& layer : model.layers)
    for (const Linear* linear : {&layer.qkv, &layer.o, &layer.gate_up, &layer.down})
      most = std::max(most, record_bytes(linear->weight->input(), linear->weight->cols()));
  return most;
}

}  // namespace

void Workspace::Free::operator()(void* memory) const { std::free(memory); }

template <class T>
Workspace::Memory<T> Workspace::allocate(int64_t count) {
  Memory<T> memory(static_cast<T*>(std::aligned_alloc(kAlignment, size_t(aligned(std::max<int64_t>(count, 1) * int64_t(sizeof(T)))))));
  if (!memory) throw std::bad_alloc();
  return memory;
}

Workspace::Workspace(const DecoderModel& model, int64_t tokens) : max_tokens(tokens) {
  const int64_t hidden = aligned(tokens * model.hidden_size * 4);
  const int64_t wide_bytes = aligned(tokens * std::max(model.qkv_size(), 2 * model.intermediate_size) * 4);
  const int64_t inner_bytes = aligned(tokens * std::max(model.q_size(), model.intermediate_size) * 4);
  memory_ = allocate<uint8_t>(3 * hidden + wide_bytes + inner_bytes + tokens * most_record_bytes(model));
  uint8_t* next = memory_.get();
  const auto take = [&](int64_t bytes) { return reinterpret_cast<float*>(std::exchange(next, next + bytes)); };
  residual = take(hidden);
  normed = take(hidden);
  answer = take(hidden);
  wide = take(wide_bytes);
  inner = take(inner_bytes);
  records = next;
}

void Workspace::reserve(int threads, int64_t scratch_floats, int64_t partial_floats) {
  if (scratch_floats > scratch_floats_) {
    scratch_.clear();
    scratch_floats_ = scratch_floats;
  }
  while (int(scratch_.size()) < threads) {
    Memory<float> memory = allocate<float>(scratch_floats_);
    std::fill_n(memory.get(), scratch_floats_, 0.0f);
    scratch_.push_back(std::move(memory));
  }
  if (partial_floats > partial_floats_) {
    partials_.reset();
    partial_floats_ = 0;
    partials_ = allocate<float>(partial_floats);
    partial_floats_ = partial_floats;
  }
}

}  // namespace quire
