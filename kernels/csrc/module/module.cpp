// The Python face: borrow the tensors, check shapes and types, release the GIL, run.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <climits>
#include <cmath>

#include "attention/attention.h"
#include "common/checks.h"
#include "common/pool.h"
#include "isa/isa.h"
#include "module/bindings.h"
#include "module/dlpack.h"
#include "rows/rows.h"

namespace nb = nanobind;

namespace quire {
namespace {

constexpr int64_t kMaxHeadSize = 512;

std::string number(float x) { return nb::cast<std::string>(nb::str(nb::float_(x))); }

std::vector<std::string> isa_names() {
  std::vector<std::string> names;
  for (const Isa& each : available_isas()) names.emplace_back(each.name);
  return names;
}

void call_paged_attention(nb::handle query, nb::handle key_cache, nb::handle value_cache, nb::handle block_tables,
                          nb::handle query_start, nb::handle context_lens, float scale, nb::handle out, int64_t window,
                          float softcap) {
  AttentionCall call{};
  call.query = borrow(query, 3, "query");
  call.key_cache = borrow(key_cache, 4, "key_cache");
  call.value_cache = borrow(value_cache, 4, "value_cache");
  call.block_tables = borrow(block_tables, 2, "block_tables");
  call.out = borrow(out, 3, "out");
  call.scale = scale;
  call.window = int(std::min<int64_t>(window, INT_MAX));
  call.softcap = softcap;
  const Tensor starts = borrow(query_start, 1, "query_start"), contexts = borrow(context_lens, 1, "context_lens");

  const int64_t tokens = call.query.shape[0], heads = call.query.shape[1], head_size = call.query.shape[2];
  check_float({"query", call.query, 3});
  const int64_t kv_heads = check_caches(call.key_cache, call.value_cache, head_size);
  if (kv_heads == 0 || heads == 0 || heads % kv_heads != 0)
    refuse("query has " + std::to_string(heads) + " heads, which is not a multiple of key_cache's " +
           std::to_string(kv_heads));
  if (head_size < 1 || head_size > kMaxHeadSize)
    refuse("query has head size " + std::to_string(head_size) + ", outside 1.." + std::to_string(kMaxHeadSize));
  if (call.key_cache.shape[1] < 1) refuse("key_cache has a block size of 0");
  if (window < 0) refuse("window must be 0 (none) or more, got " + std::to_string(window));
  if (!(softcap >= 0) || std::isinf(softcap))
    refuse("softcap must be 0 (none) or a positive number, got " + number(softcap));
  const int64_t sequences = call.block_tables.shape[0];
  check({"block_tables", call.block_tables, 2}, {sequences, call.block_tables.shape[1]}, DType::i32);
  check({"query_start", starts, 1}, {sequences + 1}, DType::i32);
  check({"context_lens", contexts, 1}, {sequences}, DType::i32);
  check({"out", call.out, 3}, {tokens, heads, head_size}, call.query.type);

  call.num_kv_heads = int(kv_heads);
  call.group = int(heads / kv_heads);
  call.head_size = int(head_size);
  call.block_size = int(call.key_cache.shape[1]);
  const nb::gil_scoped_release release;
  paged_attention(*current_isa().kernels, call, starts, contexts);
}

void call_write_kv(nb::handle key, nb::handle value, nb::handle key_cache, nb::handle value_cache,
                   nb::handle slot_mapping) {
  const Tensor k = borrow(key, 3, "key"), v = borrow(value, 3, "value");
  const Tensor kc = borrow(key_cache, 4, "key_cache"), vc = borrow(value_cache, 4, "value_cache");
  const Tensor slots = borrow(slot_mapping, 1, "slot_mapping");
  check_float({"key", k, 3});
  check({"value", v, 3}, {k.shape[0], k.shape[1], k.shape[2]}, k.type);
  const int64_t heads = check_caches(kc, vc, k.shape[2]);
  if (heads != k.shape[1])
    refuse("key has " + std::to_string(k.shape[1]) + " heads, but key_cache " + std::to_string(heads));
  check({"slot_mapping", slots, 1}, {k.shape[0]}, DType::i64);
  const nb::gil_scoped_release release;
  write_kv(*current_isa().kernels, k, v, kc, vc, slots);
}

void call_rms_norm(nb::handle x, nb::handle weight, float eps, float offset, nb::handle out) {
  const Tensor rows = borrow(x, 2, "x"), factors = borrow(weight, 1, "weight"), to = borrow(out, 2, "out");
  check_float({"x", rows, 2});
  check({"weight", factors, 1}, {rows.shape[1]}, rows.type);
  check({"out", to, 2}, {rows.shape[0], rows.shape[1]}, rows.type);
  const nb::gil_scoped_release release;
  rms_norm(*current_isa().kernels, rows, nullptr, factors, eps, offset, to);
}

void call_fused_add_rms_norm(nb::handle x, nb::handle residual, nb::handle weight, float eps, float offset,
                             nb::handle out) {
  const Tensor rows = borrow(x, 2, "x"), sums = borrow(residual, 2, "residual");
  const Tensor factors = borrow(weight, 1, "weight"), to = borrow(out, 2, "out");
  check_float({"x", rows, 2});
  check({"residual", sums, 2}, {rows.shape[0], rows.shape[1]}, rows.type);
  check({"weight", factors, 1}, {rows.shape[1]}, rows.type);
  check({"out", to, 2}, {rows.shape[0], rows.shape[1]}, rows.type);
  const nb::gil_scoped_release release;
  rms_norm(*current_isa().kernels, rows, &sums, factors, eps, offset, to);
}

void call_head_rms_norm(nb::handle query, nb::handle key, nb::handle query_weight, nb::handle key_weight, float eps,
                        float offset) {
  const Tensor q = borrow(query, 3, "query"), k = borrow(key, 3, "key");
  const Tensor qw = borrow(query_weight, 1, "query_weight"), kw = borrow(key_weight, 1, "key_weight");
  check_float({"query", q, 3});
  check({"key", k, 3}, {q.shape[0], k.shape[1], q.shape[2]}, q.type);
  check({"query_weight", qw, 1}, {q.shape[2]}, q.type);
  check({"key_weight", kw, 1}, {q.shape[2]}, q.type);
  const nb::gil_scoped_release release;
  head_rms_norm(*current_isa().kernels, q, k, qw, kw, eps, offset);
}

void call_rope(nb::handle query, nb::handle key, nb::handle positions, nb::handle cos, nb::handle sin) {
  const Tensor q = borrow(query, 3, "query"), k = borrow(key, 3, "key"), at = borrow(positions, 1, "positions");
  const Tensor c = borrow(cos, 2, "cos"), s = borrow(sin, 2, "sin");
  check_float({"query", q, 3});
  check({"key", k, 3}, {q.shape[0], k.shape[1], q.shape[2]}, q.type);
  check({"positions", at, 1}, {q.shape[0]}, DType::i64);
  check({"cos", c, 2}, {c.shape[0], c.shape[1]}, DType::f32);
  check({"sin", s, 2}, {c.shape[0], c.shape[1]}, DType::f32);
  if (2 * c.shape[1] > q.shape[2])
    refuse("cos has " + std::to_string(c.shape[1]) + " columns, more than half of the head size " +
           std::to_string(q.shape[2]));
  const nb::gil_scoped_release release;
  rope(*current_isa().kernels, q, k, at, c, s);
}

void call_gated(void (*driver)(const Kernels&, const Tensor&, const Tensor&), nb::handle gate_up, nb::handle out) {
  const Tensor from = borrow(gate_up, 2, "gate_up"), to = borrow(out, 2, "out");
  check_float({"gate_up", from, 2});
  if (from.shape[1] % 2 != 0)
    refuse("gate_up must have an even number of columns (gates, then ups), got " + std::to_string(from.shape[1]));
  check({"out", to, 2}, {from.shape[0], from.shape[1] / 2}, from.type);
  const nb::gil_scoped_release release;
  driver(*current_isa().kernels, from, to);
}

// The sizes of a block come from quire_kernels.formats; that out is a whole number of blocks was checked by quire_kernels.ops.
void call_dequantize_gguf(nb::handle raw, int ggml_type, int64_t block_elements, int64_t block_bytes, nb::handle out) {
  const Tensor from = borrow(raw, 1, "raw"), to = borrow(out, 1, "out");
  check({"raw", from, 1}, {to.shape[0] / block_elements * block_bytes}, DType::u8);
  check_float({"out", to, 1});
  const nb::gil_scoped_release release;
  dequantize(*current_isa().kernels, from, ggml_type, block_elements, block_bytes, to);
}

}  // namespace
}  // namespace quire

NB_MODULE(_cpu, m) {
  using namespace quire;
  m.doc() = "CPU kernels. The documented door is quire_kernels.ops.";
  nb::set_leak_warnings(false);  // a model that lives until the interpreter ends is no leak
  static nb::object argument_error = nb::module_::import_("quire_kernels.errors").attr("ArgumentError");
  static nb::object unavailable_error = nb::module_::import_("quire_kernels.errors").attr("UnavailableError");
  nb::register_exception_translator(
      [](const std::exception_ptr& thrown, void*) {
        try {
          std::rethrow_exception(thrown);
        } catch (const ArgumentError& error) {
          PyErr_SetString(argument_error.ptr(), error.what());
        } catch (const IsaError& error) {
          PyErr_SetString(unavailable_error.ptr(), error.what());
        }
      },
      nullptr);

  m.def("isa", [] { return current_isa().name; }, "The instruction set in use. UnavailableError where QUIRE_CPU_ISA asks for one that cannot be.");
  m.def("available_isas", &isa_names, "Instruction sets this CPU and build have, worst first.");
  m.def("use_isa", [](const std::string& name) { current_isa() = choose_isa(name); }, nb::arg("name"),
        "Change the instruction set; for tests and benchmarks. Empty: the best.");
  m.def("num_threads", &num_threads);
  m.def("set_num_threads", &set_num_threads, nb::arg("num_threads"), nb::call_guard<nb::gil_scoped_release>());
  m.def("paged_attention", &call_paged_attention);
  m.def("write_kv", &call_write_kv);
  m.def("rms_norm", &call_rms_norm);
  m.def("fused_add_rms_norm", &call_fused_add_rms_norm);
  m.def("head_rms_norm", &call_head_rms_norm);
  m.def("rope", &call_rope);
  m.def("silu_mul", [](nb::handle gate_up, nb::handle out) { call_gated(silu_mul, gate_up, out); });
  m.def("gelu_tanh_mul", [](nb::handle gate_up, nb::handle out) { call_gated(gelu_tanh_mul, gate_up, out); });
  m.def("dequantize_gguf", &call_dequantize_gguf);
  bind_packed(m);
  bind_decoder(m);
}
