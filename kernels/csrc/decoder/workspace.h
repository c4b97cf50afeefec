// The memory of a step: floats between the operations, records of product inputs, and each thread's scratch.
#pragma once

#include <cstdint>
#include <vector>

#include "common/memory.h"
#include "decoder/experts.h"
#include "decoder/model.h"

namespace quire {

class Workspace {
 public:
  Workspace(const DecoderModel& model, const PackedKernels& packed, int64_t max_tokens);

  // Rows of max_tokens each. `wide` holds queries, keys and values, then gates and ups; `inner` what attention answers, then
  // the activated gates.
  float *residual, *normed, *answer, *wide, *inner;
  float* sorted;  // with experts: their inputs, then their answers, one row for each slot
  uint8_t* records;
  const PackedKernels* const packed;  // whose records there is room for
  const int64_t max_tokens;

  Routing routing;
  ExpertItems up_items, down_items;

  // Grow-only. Scratch is initialised, as attend() wants it.
  void reserve(int threads, int64_t scratch_floats, int64_t partial_floats);
  float* scratch(int thread) const { return scratch_[size_t(thread)].get(); }
  float* partials() const { return partials_.get(); }

  int64_t num_bytes() const;
  // What a workspace holds whatever its tokens, at most, for contexts of up to `longest` tokens. Of the model the numbers of
  // heads and experts are read.
  static int64_t bytes_beside_tokens(const DecoderModel& model, int64_t longest, int threads);

 private:
  int64_t memory_bytes_;
  Memory<uint8_t> memory_;
  std::vector<Scratch<float>> scratch_;
  Scratch<float> partials_;
};

}  // namespace quire
