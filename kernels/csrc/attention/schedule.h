// Attention as items: a ragged batch cut into query tiles, KV heads and, where those are few, partitions of keys. The cut
// never changes a result, see kernel.h.
#pragma once

#include <cstdint>
#include <vector>

#include "common/types.h"

namespace quire {

// The newest num_tokens tokens of a sequence's first `context` tokens; their rows of query begin at first_row.
struct AttentionSequence {
  int index, first_row, num_tokens, context;
};

// Checks the values that could lead out of bounds. Sequences without tokens are left out.
std::vector<AttentionSequence> read_sequences(const AttentionCall& call, const Tensor& query_start, const Tensor& context_lens);

// Threads worth using, at most num_threads().
int attention_threads(const AttentionCall& call, const std::vector<AttentionSequence>& sequences);

struct AttentionSchedule {
  struct Span {
    int32_t first, count;
  };
  std::vector<AttentionItem> items;
  int32_t run = 1;                   // items that a thread takes together. Runs in any order, by any thread
  std::vector<Span> spans;           // when all items are done: items whose partial results `merge` folds, in order
  int64_t scratch_floats = 0;        // of each thread
  int64_t partial_floats = 0;        // of all items that are folded

  int64_t num_runs() const { return (int64_t(items.size()) + run - 1) / run; }
  // Computes the items of a run.
  void attend(const Kernels& kernels, const AttentionCall& call, int64_t index, float* scratch) const;

  // Where the partial results go; call before the items run.
  void place(float* partials);

 private:
  friend AttentionSchedule schedule_attention(const AttentionCall&, std::vector<AttentionSequence>, int);
  int64_t record_ = 0;  // floats of a row's partial result
  int group_ = 0;
};

// Of the call only shapes, group, head size and window are read.
AttentionSchedule schedule_attention(const AttentionCall& call, std::vector<AttentionSequence> sequences, int threads);

// What no schedule for so many threads and contexts of up to `longest` tokens goes beyond. Memory is planned with it.
struct AttentionBounds {
  int64_t scratch_floats, partial_floats;
};
AttentionBounds attention_bounds(int num_kv_heads, int group, int head_size, int64_t longest, int threads);

}  // namespace quire
