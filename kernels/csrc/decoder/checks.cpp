// What a batch must look like before any of it is followed. The values of block tables, starts and lengths are checked where
// the attention of the step is planned (read_sequences).
#include "common/checks.h"
#include "decoder/plan.h"

namespace quire {
namespace {

void check_cache(const std::string& name, const Tensor& cache, const Tensor& like, const DecoderModel& model) {
  check_float({name.c_str(), cache, 4});
  check({name.c_str(), cache, 4}, {like.shape[0], like.shape[1], model.num_kv_heads, model.head_size}, like.type);
  if (cache.shape[1] < 1) refuse(name + " has a block size of 0");
  if (cache.shape[2] > 1 && cache.stride[2] != model.head_size)
    refuse(name + " must be contiguous in its last two dimensions, got stride " + std::to_string(cache.stride[2]));
}

}  // namespace

void check_step(const DecoderModel& model, const StepInput& input) {
  const size_t layers = model.layers.size();
  if (input.keys.size() != layers || input.values.size() != layers)
    refuse("keys and values must have one cache for each of the " + std::to_string(layers) + " layers, got " +
           std::to_string(input.keys.size()) + " and " + std::to_string(input.values.size()));
  for (size_t i = 0; i < layers; ++i) {
    check_cache("keys[" + std::to_string(i) + "]", input.keys[i], input.keys[0], model);
    check_cache("values[" + std::to_string(i) + "]", input.values[i], input.keys[0], model);
  }
  int64_t positions = INT64_MAX;
  for (const DecoderLayer& layer : model.layers)
    if (layer.rope.half > 0) positions = std::min(positions, layer.rope.positions);
  check_range("token_ids", input.token_ids, input.num_tokens, 0, model.vocab_size - 1);
  check_range("positions", input.positions, input.num_tokens, 0, positions - 1);
  check_range("slot_mapping", input.slots, input.num_tokens, -1, input.keys[0].shape[0] * input.keys[0].shape[1] - 1);
  check_range("logit_rows", input.logit_rows, input.num_rows, 0, input.num_tokens - 1);
  const int32_t covered = input.query_start.as<int32_t>()[input.context_lens.shape[0]];
  if (covered != input.num_tokens)
    refuse("query_start must end at the " + std::to_string(input.num_tokens) + " tokens, got " + std::to_string(covered));
}

}  // namespace quire
