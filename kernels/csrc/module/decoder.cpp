// The Python face of the decoder plan. quire_kernels/decoder.py documents the arguments.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <memory>

#include "common/checks.h"
#include "common/pool.h"
#include "decoder/plan.h"
#include "module/bindings.h"
#include "module/dlpack.h"

namespace nb = nanobind;

namespace quire {
namespace {

Tensor borrow_as(nb::handle object, int rank, const char* name, DType type) {
  const Tensor tensor = borrow(object, rank, name);
  if (tensor.type != type) refuse(std::string(name) + " must be " + name_of(type) + ", got " + name_of(tensor.type));
  check_contiguous({name, tensor, rank});
  return tensor;
}

// What a model consists of, and the Python objects that own it.
struct ModelReader {
  DecoderModel model;
  std::vector<nb::object> owners;

  template <class T>
  static T get(nb::handle from, const char* name) {
    return nb::cast<T>(nb::getattr(from, name));
  }

  std::vector<float> numbers(nb::handle from, const char* name) {
    const nb::object value = nb::getattr(from, name);
    if (value.is_none()) return {};
    const Tensor tensor = borrow_as(value, 1, name, DType::f32);
    return {tensor.as<float>(), tensor.as<float>() + tensor.shape[0]};
  }

  // None: null; where there must be one is checked with the model.
  const PackedWeight* weight(nb::handle from, const char* name) {
    nb::object value = nb::getattr(from, name);
    if (value.is_none()) return nullptr;
    const PackedWeight* result = nullptr;
    if (!nb::try_cast(value, result) || result == nullptr) refuse(std::string(name) + " must be a PackedWeight");
    owners.push_back(std::move(value));
    return result;
  }

  Linear linear(nb::handle from, const char* name) {
    return {weight(from, name), numbers(from, (std::string(name) + "_bias").c_str())};
  }

  RopeTable rope(nb::handle from) {
    nb::object cos = nb::getattr(from, "cos"), sin = nb::getattr(from, "sin");
    if (cos.is_none() && sin.is_none()) return {};
    const Tensor c = borrow_as(cos, 2, "cos", DType::f32), s = borrow_as(sin, 2, "sin", DType::f32);
    check({"sin", s, 2}, {c.shape[0], c.shape[1]}, DType::f32);
    for (const Tensor* table : {&c, &s})
      if (table->stride[0] != table->shape[1]) refuse("cos and sin must be contiguous");
    owners.push_back(std::move(cos));
    owners.push_back(std::move(sin));
    return {c.as<float>(), s.as<float>(), c.shape[0], c.shape[1]};
  }

  DecoderLayer layer(nb::handle from) {
    DecoderLayer result;
    result.qkv = linear(from, "qkv");
    result.o = linear(from, "o");
    for (nb::handle each : nb::getattr(from, "experts"))
      result.experts.push_back({linear(each, "gate_up"), linear(each, "down")});
    result.gate_up = linear(from, "gate_up");
    result.down = linear(from, "down");
    result.router.weight = weight(from, "router");
    result.attn_norm = numbers(from, "attn_norm");
    result.attn_out_norm = numbers(from, "attn_out_norm");
    result.mlp_norm = numbers(from, "mlp_norm");
    result.mlp_out_norm = numbers(from, "mlp_out_norm");
    result.q_norm = numbers(from, "q_norm");
    result.k_norm = numbers(from, "k_norm");
    result.rope = rope(from);
    result.window = get<int>(from, "window");
    return result;
  }

  explicit ModelReader(nb::handle from) {
    model.hidden_size = get<int64_t>(from, "hidden_size");
    model.intermediate_size = get<int64_t>(from, "intermediate_size");
    model.vocab_size = get<int64_t>(from, "vocab_size");
    model.num_heads = get<int>(from, "num_heads");
    model.num_kv_heads = get<int>(from, "num_kv_heads");
    model.head_size = get<int>(from, "head_size");
    model.norm_eps = get<float>(from, "norm_eps");
    model.norm_offset = get<float>(from, "norm_offset");
    model.attention_scale = get<float>(from, "attention_scale");
    model.attention_softcap = get<float>(from, "attention_softcap");
    model.logit_softcap = get<float>(from, "logit_softcap");
    model.embedding_scale = get<float>(from, "embedding_scale");
    model.qk_norm = choice<QkNorm>(from, "qk_norm", {"none", "head", "whole"});
    model.activation = choice<Activation>(from, "activation", {"silu", "gelu_tanh"});
    model.experts_per_token = get<int64_t>(from, "experts_per_token");
    model.normalise_experts = get<bool>(from, "normalise_experts");
    model.embed = weight(from, "embed");
    model.head = weight(from, "head");
    model.norm = numbers(from, "norm");
    for (nb::handle each : nb::getattr(from, "layers")) model.layers.push_back(layer(each));
  }

  template <class Enum>
  static Enum choice(nb::handle from, const char* name, std::initializer_list<const char*> names) {
    const auto value = get<std::string>(from, name);
    int index = 0;
    for (const char* each : names) {
      if (value == each) return Enum(index);
      ++index;
    }
    refuse(std::string(name) + " is '" + value + "', which is not known");
  }
};

// The plan and what it points into.
struct OwnedPlan {
  explicit OwnedPlan(nb::handle model) : OwnedPlan(ModelReader(model)) {}
  explicit OwnedPlan(ModelReader reader) : owners(std::move(reader.owners)), plan(std::move(reader.model)) {}

  std::vector<nb::object> owners;
  DecoderPlan plan;
};

int64_t step_bytes(int num_heads, int num_kv_heads, int head_size, int64_t num_experts, int64_t longest) {
  if (num_kv_heads < 1 || num_heads < num_kv_heads || head_size < 1 || num_experts < 0 || longest < 0)
    refuse("num_heads, num_kv_heads and head_size must be 1 or more, num_experts and longest 0 or more");
  DecoderModel model;
  model.num_heads = num_heads;
  model.num_kv_heads = num_kv_heads;
  model.head_size = head_size;
  model.num_experts = num_experts;
  return Workspace::bytes_beside_tokens(model, longest, num_threads());
}

std::vector<Tensor> borrow_caches(nb::handle list, const char* name) {
  std::vector<Tensor> caches;
  for (nb::handle each : list) caches.push_back(borrow(each, 4, name));
  return caches;
}

void forward(OwnedPlan& self, nb::handle token_ids, nb::handle positions, nb::handle slot_mapping, nb::handle block_tables,
             nb::handle query_start, nb::handle context_lens, nb::handle logit_rows, nb::handle keys, nb::handle values,
             nb::handle hidden) {
  const Tensor ids = borrow(token_ids, 1, "token_ids"), at = borrow(positions, 1, "positions");
  const Tensor slots = borrow(slot_mapping, 1, "slot_mapping"), rows = borrow(logit_rows, 1, "logit_rows");
  const Tensor out = borrow(hidden, 2, "hidden");
  StepInput input;
  input.block_tables = borrow(block_tables, 2, "block_tables");
  input.query_start = borrow(query_start, 1, "query_start");
  input.context_lens = borrow(context_lens, 1, "context_lens");
  input.keys = borrow_caches(keys, "keys");
  input.values = borrow_caches(values, "values");
  input.num_tokens = ids.shape[0];
  input.num_rows = rows.shape[0];
  check({"token_ids", ids, 1}, {input.num_tokens}, DType::i64);
  check({"positions", at, 1}, {input.num_tokens}, DType::i64);
  check({"slot_mapping", slots, 1}, {input.num_tokens}, DType::i64);
  check({"logit_rows", rows, 1}, {input.num_rows}, DType::i64);
  const int64_t sequences = input.block_tables.shape[0];
  check({"block_tables", input.block_tables, 2}, {sequences, input.block_tables.shape[1]}, DType::i32);
  check({"query_start", input.query_start, 1}, {sequences + 1}, DType::i32);
  check({"context_lens", input.context_lens, 1}, {sequences}, DType::i32);
  const int64_t width = self.plan.model().hidden_size;
  check({"hidden", out, 2}, {input.num_rows, width}, DType::f32);
  if (out.stride[0] != width && input.num_rows > 1) refuse("hidden must be contiguous");
  input.token_ids = ids.as<int64_t>();
  input.positions = at.as<int64_t>();
  input.slots = slots.as<int64_t>();
  input.logit_rows = rows.as<int64_t>();
  input.hidden = out.as<float>();
  const nb::gil_scoped_release release;
  check_step(self.plan.model(), input);
  self.plan.forward(current_isa(), input);
}

void logits(OwnedPlan& self, nb::handle hidden, nb::handle out) {
  const DecoderModel& model = self.plan.model();
  const Tensor from = borrow(hidden, 2, "hidden"), to = borrow(out, 2, "out");
  check({"hidden", from, 2}, {from.shape[0], model.hidden_size}, DType::f32);
  check({"out", to, 2}, {from.shape[0], model.vocab_size}, DType::f32);
  for (const Tensor* each : {&from, &to})
    if (each->stride[0] != each->shape[1] && each->shape[0] > 1) refuse("hidden and out must be contiguous");
  const nb::gil_scoped_release release;
  self.plan.logits(current_isa(), from.as<float>(), from.shape[0], to.as<float>());
}

}  // namespace

void bind_decoder(nb::module_& module) {
  nb::class_<OwnedPlan>(module, "DecoderPlan")
      .def(nb::init<nb::handle>(), nb::arg("model"))
      .def("forward", &forward)
      .def("logits", &logits)
      .def_prop_ro("workspace_bytes", [](OwnedPlan& self) { return self.plan.workspace_bytes(); });
  module.def("step_bytes", &step_bytes, nb::arg("num_heads"), nb::arg("num_kv_heads"), nb::arg("head_size"),
             nb::arg("num_experts"), nb::arg("longest"));
}

}  // namespace quire
