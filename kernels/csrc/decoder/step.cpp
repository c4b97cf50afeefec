// Planning of a step: which operations there are for this batch, cut into items. What they do is in items.cpp.
#include "decoder/step.h"

#include <algorithm>

#include "common/pool.h"

namespace quire {
namespace {

// An item below this many elements costs more to hand out than it takes.
constexpr int64_t kLeastElements = 8 * 1024;

int64_t ceiling(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Weights that a token is multiplied with.
double weights_of(const DecoderModel& model) {
  double count = 0;
  const auto add = [&](const Linear& linear, int64_t times) {
    if (linear.weight != nullptr) count += double(times) * double(linear.weight->rows()) * double(linear.weight->cols());
  };
  for (const DecoderLayer& layer : model.layers) {
    for (const Linear* linear : {&layer.qkv, &layer.o, &layer.gate_up, &layer.down}) add(*linear, 1);
    if (layer.experts.empty()) continue;
    add(layer.experts.front().gate_up, model.experts_per_token);
    add(layer.experts.front().down, model.experts_per_token);
  }
  return count;
}

}  // namespace

DecoderStep::DecoderStep(const DecoderModel& model, const Isa& isa, Workspace& workspace, const StepInput& input)
    : model_(model), isa_(isa), work_(workspace), input_(input) {
  threads_ = threads_for(double(input.num_tokens) * weights_of(model));
  plan_rows();
  plan_attention();
  program_.run = [](void* context, int32_t operation, int32_t item, int thread) noexcept {
    static_cast<DecoderStep*>(context)->execute(operation, item, thread);
  };
  program_.context = this;
  operations_.reserve(16 * model.layers.size() + 2);
  program_.counts.reserve(operations_.capacity());
  add_rows(Kind::embed, 0, input.num_tokens, model.hidden_size);
  int64_t rows = input.num_tokens;
  for (int32_t layer = 0; layer < int32_t(model.layers.size()); ++layer) plan_layer(layer, rows);
  add_rows(Kind::emit, 0, input.num_rows, model.hidden_size);
}

void DecoderStep::run() { run_program(program_, threads_); }

// Rows may be asked for twice (siblings draw from one) and in any order.
void DecoderStep::plan_rows() {
  std::vector<int32_t> place(size_t(input_.num_tokens), -1);
  for (int64_t i = 0; i < input_.num_rows; ++i) place[size_t(input_.logit_rows[i])] = 0;
  for (int32_t row = 0; row < int32_t(place.size()); ++row)
    if (place[size_t(row)] == 0) {
      place[size_t(row)] = int32_t(kept_.size());
      kept_.push_back(row);
    }
  output_.reserve(size_t(input_.num_rows));
  for (int64_t i = 0; i < input_.num_rows; ++i) output_.push_back(place[size_t(input_.logit_rows[i])]);
}

void DecoderStep::plan_attention() {
  int64_t scratch = 0, partials = 0;
  for (int32_t layer = 0; layer < int32_t(model_.layers.size()); ++layer) {
    const int window = model_.layers[size_t(layer)].window;
    if (std::any_of(schedules_.begin(), schedules_.end(), [&](const Scheduled& s) { return s.window == window; })) continue;
    const AttentionCall call = call_of(layer);
    const std::vector<AttentionSequence> sequences = read_sequences(call, input_.query_start, input_.context_lens);
    std::vector<AttentionSequence> kept;  // runs of rows that are asked for
    auto next = kept_.begin();
    for (const AttentionSequence& s : sequences)
      while (next != kept_.end() && *next < s.first_row + s.num_tokens) {
        const int first = *next;
        int last = first;
        while (next != kept_.end() && *next == last && last < s.first_row + s.num_tokens) ++next, ++last;
        kept.push_back({s.index, first, last - first, s.context - (s.first_row + s.num_tokens - last)});
      }
    schedules_.push_back({window, schedule_attention(call, sequences, threads_), schedule_attention(call, kept, threads_)});
    for (const AttentionSchedule* schedule : {&schedules_.back().all, &schedules_.back().kept}) {
      scratch = std::max(scratch, schedule->scratch_floats);
      partials = std::max(partials, schedule->partial_floats);
    }
  }
  work_.reserve(threads_, scratch, partials);
  for (Scheduled& s : schedules_) s.all.place(work_.partials()), s.kept.place(work_.partials());
}

// rows: of the batch that are still computed.
void DecoderStep::plan_layer(int32_t layer, int64_t& rows) {
  const DecoderLayer& weights = model_.layers[size_t(layer)];
  const bool last = layer + 1 == int32_t(model_.layers.size());
  add_product(Kind::qkv, layer, rows, *weights.qkv.weight);
  add_rows(Kind::rotate, layer, rows, model_.qkv_size());
  const AttentionSchedule& schedule = schedule_of(layer);
  add({Kind::attend, layer, 0, 0, 0}, schedule.num_runs());
  add({Kind::merge, layer, 0, 0, 0}, int64_t(schedule.spans.size()));
  if (last && int64_t(kept_.size()) < rows) {
    rows = int64_t(kept_.size());
    add({Kind::keep, layer, int32_t(rows), 0, 0}, 1);
  }
  if (record_bytes(weights.o) > 0) add_rows(Kind::attended, layer, rows, model_.q_size());
  add_product(Kind::o, layer, rows, *weights.o.weight);
  add_rows(Kind::middle, layer, rows, model_.hidden_size);
  weights.experts.empty() ? plan_mlp(layer, rows) : plan_experts(layer, rows);
  add_rows(Kind::next, layer, rows, model_.hidden_size);
}

void DecoderStep::plan_mlp(int32_t layer, int64_t rows) {
  const DecoderLayer& weights = model_.layers[size_t(layer)];
  add_product(Kind::gate_up, layer, rows, *weights.gate_up.weight);
  add_rows(Kind::activate, layer, rows, model_.intermediate_size);
  add_product(Kind::down, layer, rows, *weights.down.weight);
}

// How many rows each expert has is known when the router has answered: `sort`, a single item, then sets the number of items
// of the two products that follow it, before any of them is handed out (see sort_rows).
void DecoderStep::plan_experts(int32_t layer, int64_t rows) {
  const int64_t slots = rows * model_.experts_per_token;
  add_product(Kind::router, layer, rows, *model_.layers[size_t(layer)].router.weight);
  add_rows(Kind::choose, layer, rows, model_.num_experts * model_.experts_per_token);
  add({Kind::sort, layer, int32_t(rows), 0, 0}, 1);
  add_rows(Kind::gather, layer, slots, model_.hidden_size);
  add({Kind::experts_up, layer, int32_t(slots), 0, 0}, 0);
  add_rows(Kind::experts_activate, layer, slots, model_.intermediate_size);
  add({Kind::experts_down, layer, int32_t(slots), 0, 0}, 0);
}

void DecoderStep::add(Operation operation, int64_t items) {
  operations_.push_back(operation);
  program_.counts.push_back(int32_t(items));
}

void DecoderStep::add_rows(Kind kind, int32_t layer, int64_t rows, int64_t width) {
  const int64_t chunk = std::max<int64_t>({1, ceiling(kLeastElements, width), threads_ == 1 ? rows : 1});
  add({kind, layer, int32_t(rows), int32_t(chunk), 0}, ceiling(rows, chunk));
}

void DecoderStep::add_product(Kind kind, int32_t layer, int64_t rows, const PackedWeight& weight) {
  const ProductCut cut = cut_product(weight, rows, threads_);
  add({kind, layer, int32_t(rows), cut.panels, cut.rows}, cut.items);
}

const AttentionSchedule& DecoderStep::schedule_of(int32_t layer) const {
  const int window = model_.layers[size_t(layer)].window;
  const auto found = std::find_if(schedules_.begin(), schedules_.end(), [&](const Scheduled& s) { return s.window == window; });
  return layer + 1 == int32_t(model_.layers.size()) ? found->kept : found->all;
}

AttentionCall DecoderStep::call_of(int32_t layer) const {
  const auto rows = [&](float* data, int64_t width) {
    Tensor view;
    view.data = reinterpret_cast<char*>(data);
    view.shape[0] = input_.num_tokens;
    view.shape[1] = model_.num_heads;
    view.shape[2] = model_.head_size;
    view.stride[0] = width;
    view.stride[1] = model_.head_size;
    view.stride[2] = 1;
    return view;
  };
  AttentionCall call{};
  call.query = rows(work_.wide, model_.qkv_size());
  call.out = rows(work_.inner, model_.q_size());
  call.key_cache = input_.keys[size_t(layer)];
  call.value_cache = input_.values[size_t(layer)];
  call.block_tables = input_.block_tables;
  call.num_kv_heads = model_.num_kv_heads;
  call.group = model_.num_heads / model_.num_kv_heads;
  call.head_size = model_.head_size;
  call.block_size = int(call.key_cache.shape[1]);
  call.scale = model_.attention_scale;
  call.window = model_.layers[size_t(layer)].window;
  call.softcap = model_.attention_softcap;
  return call;
}

}  // namespace quire
