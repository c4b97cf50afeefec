// The decoder plan: a model's packed weights, checked once, and the memory of a step; then two calls a step.
#pragma once

#include <memory>
#include <mutex>

#include "decoder/step.h"

namespace quire {

class DecoderPlan {
 public:
  // Throws ArgumentError where the model's parts do not fit together.
  explicit DecoderPlan(DecoderModel model);

  const DecoderModel& model() const { return model_; }

  // The batch must have been checked (check_step). Calls at once take turns.
  void forward(const Isa& isa, const StepInput& input);
  // hidden [rows][hidden_size] to out [rows][vocab_size].
  void logits(const Isa& isa, const float* hidden, int64_t rows, float* out);

  // Of the memory that calls work in, which grows with the largest step so far.
  int64_t workspace_bytes();

 private:
  Workspace& workspace(const Isa& isa, int64_t tokens);

  const DecoderModel model_;
  std::unique_ptr<Workspace> workspace_;  // of the largest step so far
  std::mutex mutex_;
};

// Throws ArgumentError naming what is wrong with the batch; reads no element before the shapes are right.
void check_step(const DecoderModel& model, const StepInput& input);

}  // namespace quire
