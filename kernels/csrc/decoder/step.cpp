// Planning of a step: which operations there are for this batch, cut into items. What they do is in items.cpp.
#include "decoder/step.h"

#include <algorithm>

#include "common/pool.h"

namespace quire {
namespace {

// Items per thread of a product, so that a thread that lost its core for a while delays the others little.
constexpr int64_t kItemsPerThread = 6;
// An item below this many multiply-adds, or elements of a row operation, costs more to hand out than it takes.
constexpr int64_t kLeastWork = 32 * 1024;
constexpr int64_t kLeastElements = 8 * 1024;
// Rows of an input that stay in a core's cache while an item's panels are read.
constexpr int64_t kBlockBytes = 192 * 1024;

int64_t ceiling(int64_t a, int64_t b) { return (a + b - 1) / b; }

double weights_of(const DecoderModel& model) {
  double count = 0;
  for (const DecoderLayer& layer : model.layers)
    for (const Linear* linear : {&layer.qkv, &layer.o, &layer.gate_up, &layer.down})
      count += double(linear->weight->rows()) * double(linear->weight->cols());
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
  operations_.reserve(10 * model.layers.size() + 3);
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
  add({Kind::attend, layer, 0, 0, 0}, int64_t(schedule.items.size()));
  add({Kind::merge, layer, 0, 0, 0}, int64_t(schedule.spans.size()));
  if (last && int64_t(kept_.size()) < rows) {
    rows = int64_t(kept_.size());
    add({Kind::keep, layer, int32_t(rows), 0, 0}, 1);
  }
  if (weights.o.weight->input() != InputKind::plain) add_rows(Kind::attended, layer, rows, model_.q_size());
  add_product(Kind::o, layer, rows, *weights.o.weight);
  add_rows(Kind::middle, layer, rows, model_.hidden_size);
  add_product(Kind::gate_up, layer, rows, *weights.gate_up.weight);
  add_rows(Kind::activate, layer, rows, model_.intermediate_size);
  add_product(Kind::down, layer, rows, *weights.down.weight);
  add_rows(Kind::next, layer, rows, model_.hidden_size);
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

ProductCut cut_product(const PackedWeight& weight, int64_t rows, int threads) {
  if (rows == 0) return {0, 0, 0};
  const int64_t panels = weight.num_panels();
  const int64_t row_bytes = std::max<int64_t>(record_bytes(weight.input(), weight.cols()), weight.cols() * 4);
  const int64_t block = std::min(rows, std::max<int64_t>(16, kBlockBytes / row_bytes / 16 * 16));
  const int64_t least = ceiling(kLeastWork, block * weight.cols() * kPanelRows);
  const int64_t even = panels / (kItemsPerThread * threads);
  const int64_t chunk = threads == 1 && block == rows ? panels : std::clamp<int64_t>(std::max(least, even), 1, panels);
  return {int32_t(chunk), int32_t(block), ceiling(panels, chunk) * ceiling(rows, block)};
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
