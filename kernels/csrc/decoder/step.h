// One forward pass: the list of operations for this batch, and what each of their items does.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/schedule.h"
#include "common/region.h"
#include "decoder/model.h"
#include "decoder/product.h"
#include "decoder/workspace.h"
#include "isa/isa.h"

namespace quire {

// A batch as quire_kernels.decoder documents it, checked. Keys and values: one tensor a layer.
struct StepInput {
  int64_t num_tokens = 0, num_rows = 0;
  const int64_t *token_ids = nullptr, *positions = nullptr, *slots = nullptr, *logit_rows = nullptr;
  Tensor block_tables, query_start, context_lens;
  std::vector<Tensor> keys, values;
  float* hidden = nullptr;  // out, [num_rows][hidden_size]
};

class DecoderStep {
 public:
  // Plans the pass; takes all memory it needs.
  DecoderStep(const DecoderModel& model, const Isa& isa, Workspace& workspace, const StepInput& input);

  void run();

 private:
  enum class Kind : uint8_t {
    embed,     // token rows, first norm
    qkv,       // product
    rotate,    // norms of heads, rotation, keys and values to the cache
    attend,    // items of the schedule
    merge,     // spans of the schedule
    keep,      // of the last layer: only the rows that are asked for go on
    attended,  // records for o
    o,         // product
    middle,    // residual, norms
    gate_up,   // product
    activate,  //
    down,      // product
    router,    // product: what stands for gate_up, activate and down where there are experts, up to experts_down
    choose,    // each row's experts
    sort,      // rows by expert; counts the items of experts_up and experts_down
    gather,    // their inputs
    experts_up,
    experts_activate,
    experts_down,
    next,      // residual, the following layer's norm or the last one
    emit,      // rows in the order they were asked for
  };
  struct Operation {
    Kind kind;
    int32_t layer;
    int32_t num_rows;
    int32_t chunk;  // rows of an item; of a product its panels
    int32_t block;  // rows of a product's item
  };

  void plan_rows();
  void plan_attention();
  void plan_layer(int32_t layer, int64_t& rows);
  void plan_mlp(int32_t layer, int64_t rows);
  void plan_experts(int32_t layer, int64_t rows);
  void add_rows(Kind kind, int32_t layer, int64_t rows, int64_t width);
  void add_product(Kind kind, int32_t layer, int64_t rows, const PackedWeight& weight);
  void add(Operation operation, int64_t items);
  const AttentionSchedule& schedule_of(int32_t layer) const;
  AttentionCall call_of(int32_t layer) const;

  void execute(int32_t operation, int32_t item, int thread) noexcept;
  template <class Body>
  void for_rows(const Operation& operation, int32_t item, const Body& body) const;
  void multiply(const Operation& operation, int32_t item, const Linear& linear, const float* x, float* out, bool add) const;
  int64_t record_bytes(const Linear& linear) const;
  void prepare(const Linear& linear, const float* x, int64_t index) const;
  void norm(const float* x, float* residual, const Norm& weight, float* out) const;
  float* half_out(const Norm& own) const;
  void embed_row(int64_t row) const;
  void rotate_row(const DecoderLayer& layer, int64_t index, int64_t row) const;
  void finish_half(int64_t row, const Norm& own, const Norm& following) const;
  void activate_row(const Linear& down, int64_t row) const;
  void sort_rows(const DecoderLayer& layer, int32_t number);
  void gather_slot(const DecoderLayer& layer, int64_t slot) const;
  void multiply_expert(const DecoderLayer& layer, const ExpertItems& items, Linear Expert::*which, const float* x, float* out,
                       int32_t item) const;
  void combine_row(const DecoderLayer& layer, int64_t row) const;
  void keep_rows() const;

  const DecoderModel& model_;
  const Isa isa_;
  Workspace& work_;
  const StepInput& input_;
  int threads_ = 1;
  std::vector<int32_t> kept_;    // rows of the batch that are asked for, ascending
  std::vector<int32_t> output_;  // which of them each output row is
  std::vector<Operation> operations_;
  Program program_;
  struct Scheduled {
    int window;
    AttentionSchedule all, kept;
  };
  std::vector<Scheduled> schedules_;  // one for each window size
};

}  // namespace quire
