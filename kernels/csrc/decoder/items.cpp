// What the items of a step's operations do. Every row is computed alike, whatever else is in the batch.
#include <algorithm>
#include <cstring>
#include <tuple>

#include "decoder/step.h"

namespace quire {

template <class Body>
void DecoderStep::for_rows(const Operation& operation, int32_t item, const Body& body) const {
  const int64_t first = int64_t(item) * operation.chunk;
  for (int64_t row = first; row < std::min<int64_t>(first + operation.chunk, operation.num_rows); ++row) body(row);
}

void DecoderStep::execute(int32_t number, int32_t item, int thread) noexcept {
  const Operation& operation = operations_[size_t(number)];
  const int32_t index = operation.layer;
  const DecoderLayer& layer = model_.layers[size_t(index)];
  const bool last = index + 1 == int32_t(model_.layers.size());
  const auto multiply_with = [&](const Linear& linear, const float* x, float* out, bool add) {
    multiply(operation, item, linear, x, out, add);
  };
  const auto each_row = [&](const auto& body) { for_rows(operation, item, body); };
  switch (operation.kind) {
    case Kind::embed: return each_row([&](int64_t row) { embed_row(row); });
    case Kind::qkv: return multiply_with(layer.qkv, work_.normed, work_.wide, false);
    case Kind::rotate: return each_row([&](int64_t row) { rotate_row(layer, index, row); });
    case Kind::attend: return schedule_of(index).attend(*isa_.kernels, call_of(index), item, work_.scratch(thread));
    case Kind::merge: {
      const AttentionSchedule& schedule = schedule_of(index);
      const auto [first, count] = schedule.spans[size_t(item)];
      return isa_.kernels->merge(call_of(index), &schedule.items[size_t(first)], count, work_.scratch(thread));
    }
    case Kind::keep: return keep_rows();
    case Kind::attended: return each_row([&](int64_t row) { prepare(layer.o, work_.inner, row); });
    case Kind::o: return multiply_with(layer.o, work_.inner, half_out(layer.attn_out_norm), layer.attn_out_norm.empty());
    case Kind::middle:
      return each_row([&](int64_t row) {
        finish_half(row, layer.attn_out_norm, layer.mlp_norm);
        if (layer.experts.empty()) prepare(layer.gate_up, work_.normed, row);
      });
    case Kind::gate_up: return multiply_with(layer.gate_up, work_.normed, work_.wide, false);
    case Kind::activate: return each_row([&](int64_t row) { activate_row(layer.down, row); });
    case Kind::down: return multiply_with(layer.down, work_.inner, half_out(layer.mlp_out_norm), layer.mlp_out_norm.empty());
    case Kind::router: return multiply_with(layer.router, work_.normed, work_.wide, false);
    case Kind::choose: return each_row([&](int64_t row) { work_.routing.choose(row, work_.wide + row * model_.num_experts); });
    case Kind::sort: return sort_rows(layer, number);
    case Kind::gather: return each_row([&](int64_t slot) { gather_slot(layer, slot); });
    case Kind::experts_up: return multiply_expert(layer, work_.up_items, &Expert::gate_up, work_.sorted, work_.wide, item);
    case Kind::experts_activate:
      return each_row([&](int64_t slot) {
        activate_row(layer.experts[size_t(work_.routing.expert_of(slot))].down, slot);
      });
    case Kind::experts_down: return multiply_expert(layer, work_.down_items, &Expert::down, work_.inner, work_.sorted, item);
    case Kind::next:
      return each_row([&](int64_t row) {
        if (!layer.experts.empty()) combine_row(layer, row);
        finish_half(row, layer.mlp_out_norm, last ? model_.norm : model_.layers[size_t(index) + 1].attn_norm);
        if (!last) prepare(model_.layers[size_t(index) + 1].qkv, work_.normed, row);
      });
    case Kind::emit:
      return each_row([&](int64_t row) {
        const float* from = work_.normed + output_[size_t(row)] * model_.hidden_size;
        std::memcpy(input_.hidden + row * model_.hidden_size, from, size_t(model_.hidden_size) * 4);
      });
  }
}

// A half without a norm of its own adds its answer to the residual itself.
float* DecoderStep::half_out(const Norm& own) const { return own.empty() ? work_.residual : work_.answer; }

// x has as many columns as the weight; out as many as its outputs.
void DecoderStep::multiply(const Operation& operation, int32_t item, const Linear& linear, const float* x, float* out,
                           bool add) const {
  const PackedWeight& weight = *linear.weight;
  multiply_item(isa_, weight, {x, weight.cols(), operation.num_rows, work_.records},
                {out, weight.rows(), linear.bias_or_null(), add}, {operation.chunk, operation.block, 0}, item);
}

// Of a row that a product with the weight reads; 0: it reads the row itself.
int64_t DecoderStep::record_bytes(const Linear& linear) const {
  return isa_.packed->record_bytes(linear.weight->input(), linear.weight->cols());
}

// The record of row `index` of x for the product with a weight.
void DecoderStep::prepare(const Linear& linear, const float* x, int64_t index) const {
  const InputKind kind = linear.weight->input();
  const int64_t cols = linear.weight->cols(), record = record_bytes(linear);
  if (record > 0) isa_.packed->prepare_row(kind, x + index * cols, cols, work_.records + index * record);
}

// residual: null, or the row that x is added to first.
void DecoderStep::norm(const float* x, float* residual, const Norm& weight, float* out) const {
  isa_.kernels->rms_norm_row(x, residual, weight.data(), out, DType::f32, int64_t(weight.size()), model_.norm_eps, model_.norm_offset);
}

void DecoderStep::embed_row(int64_t row) const {
  const int64_t width = model_.hidden_size;
  float* residual = work_.residual + row * width;
  unpack_row(*model_.embed, input_.token_ids[row], residual);
  if (model_.embedding_scale != 1.0f)
    for (int64_t i = 0; i < width; ++i) residual[i] *= model_.embedding_scale;
  const DecoderLayer& first = model_.layers.front();
  if (first.attn_norm.empty()) {
    std::memcpy(work_.normed + row * width, residual, size_t(width) * 4);
  } else {
    norm(residual, nullptr, first.attn_norm, work_.normed + row * width);
  }
  prepare(first.qkv, work_.normed, row);
}

void DecoderStep::rotate_row(const DecoderLayer& layer, int64_t index, int64_t row) const {
  const int64_t head_size = model_.head_size;
  float* query = work_.wide + row * model_.qkv_size();
  float* key = query + model_.q_size();
  float* value = key + model_.kv_size();
  for (const auto& [heads, count, weight] :
       {std::tuple(query, model_.num_heads, &layer.q_norm), std::tuple(key, model_.num_kv_heads, &layer.k_norm)}) {
    if (model_.qk_norm == QkNorm::whole) norm(heads, nullptr, *weight, heads);
    for (int64_t head = 0; head < count; ++head) {
      float* values = heads + head * head_size;
      if (model_.qk_norm == QkNorm::head) norm(values, nullptr, *weight, values);
      if (layer.rope.half > 0) {
        const int64_t at = input_.positions[row] * layer.rope.half;
        isa_.kernels->rope_row(values, DType::f32, layer.rope.cos + at, layer.rope.sin + at, layer.rope.half);
      }
    }
  }
  const int64_t slot = input_.slots[row];
  if (slot < 0) return;
  for (const auto& [from, cache] : {std::pair(key, &input_.keys[size_t(index)]), std::pair(value, &input_.values[size_t(index)])}) {
    void* to = cache->at(slot / cache->shape[1], slot % cache->shape[1]);
    isa_.kernels->copy_row(from, DType::f32, to, cache->type, model_.kv_size());
  }
}

// Adds what half a block answered to the residual and makes the input of the next half.
void DecoderStep::finish_half(int64_t row, const Norm& own, const Norm& following) const {
  const int64_t width = model_.hidden_size;
  float *residual = work_.residual + row * width, *answer = work_.answer + row * width, *normed = work_.normed + row * width;
  if (!own.empty()) norm(answer, nullptr, own, answer);
  if (!following.empty()) {
    if (own.empty()) return norm(residual, nullptr, following, normed);
    return norm(answer, residual, following, normed);
  }
  if (!own.empty())
    for (int64_t i = 0; i < width; ++i) residual[i] += answer[i];
  std::memcpy(normed, residual, size_t(width) * 4);
}

void DecoderStep::activate_row(const Linear& down, int64_t row) const {
  const int64_t width = model_.intermediate_size;
  const float* gate = work_.wide + row * 2 * width;
  const auto kernel = model_.activation == Activation::silu ? isa_.kernels->silu_mul_row : isa_.kernels->gelu_tanh_mul_row;
  kernel(gate, gate + width, work_.inner + row * width, DType::f32, width);
  prepare(down, work_.inner, row);
}

// Runs alone, see plan_experts.
void DecoderStep::sort_rows(const DecoderLayer& layer, int32_t number) {
  Routing& routing = work_.routing;
  routing.sort(operations_[size_t(number)].num_rows);
  const auto count = [&](ExpertItems& items, Linear Expert::*which) {
    const auto weight = [&](int64_t e) -> const PackedWeight& { return *(layer.experts[size_t(e)].*which).weight; };
    return int32_t(items.cut(routing, model_.num_experts, threads_, weight));
  };
  program_.counts[size_t(number) + 2] = count(work_.up_items, &Expert::gate_up);
  program_.counts[size_t(number) + 4] = count(work_.down_items, &Expert::down);
}

void DecoderStep::gather_slot(const DecoderLayer& layer, int64_t slot) const {
  const int64_t width = model_.hidden_size;
  std::memcpy(work_.sorted + slot * width, work_.normed + work_.routing.row_of(slot) * width, size_t(width) * 4);
  prepare(layer.experts[size_t(work_.routing.expert_of(slot))].gate_up, work_.sorted, slot);
}

void DecoderStep::multiply_expert(const DecoderLayer& layer, const ExpertItems& items, Linear Expert::*which, const float* x,
                                  float* out, int32_t item) const {
  const auto& [expert, first_item, cut] = items.of(item);
  const Linear& linear = layer.experts[size_t(expert)].*which;
  const PackedWeight& weight = *linear.weight;
  const int64_t first = work_.routing.first_slot(expert), rows = work_.routing.first_slot(expert + 1) - first;
  multiply_item(isa_, weight,
                {x + first * weight.cols(), weight.cols(), rows, work_.records + first * record_bytes(linear)},
                {out + first * weight.rows(), weight.rows(), linear.bias_or_null(), false}, cut, item - first_item);
}

// Adds the experts' answers to where an MLP's answer goes.
void DecoderStep::combine_row(const DecoderLayer& layer, int64_t row) const {
  const int64_t width = model_.hidden_size;
  float* sum = half_out(layer.mlp_out_norm) + row * width;
  if (!layer.mlp_out_norm.empty()) std::fill_n(sum, width, 0.0f);
  work_.routing.combine(row, work_.sorted, width, sum);
}

// Moves up the rows that go on. kept_[i] >= i, so a row is read before it is overwritten.
void DecoderStep::keep_rows() const {
  const auto move = [&](float* rows, int64_t width) {
    for (size_t i = 0; i < kept_.size(); ++i)
      std::memmove(rows + int64_t(i) * width, rows + kept_[i] * width, size_t(width) * 4);
  };
  move(work_.residual, model_.hidden_size);
  move(work_.inner, model_.q_size());
}

}  // namespace quire
