// The Python face: tensors come in through DLPack's C exchange API (data, shape and strides without a copy or a capsule),
// so the extension is built without torch and serves any version of it. The GIL is released while kernels run.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdlib>

#include "drivers.h"
#include "isa.h"
#include "pool.h"

namespace nb = nanobind;

namespace quire {
namespace {

// DLPack 1.x, the parts of the ABI that are used (https://dmlc.github.io/dlpack/latest/c_api.html).
namespace dlpack {
struct Device {
  int32_t type, id;
};
struct DataType {
  uint8_t code, bits;
  uint16_t lanes;
};
struct Tensor {
  void* data;
  Device device;
  int32_t rank;
  DataType type;
  int64_t *shape, *strides;
  uint64_t byte_offset;
};
struct ExchangeApi {
  uint32_t major, minor;
  ExchangeApi* older;
  void *allocate, *managed_from_object, *managed_to_object;
  int (*tensor_from_object)(void* object, Tensor* out);
  void* current_stream;
};
constexpr int32_t kCpu = 1;
}  // namespace dlpack

const dlpack::ExchangeApi& exchange_api(PyTypeObject* type) {
  static PyTypeObject* known = nullptr;  // guarded by the GIL; types of tensors live as long as the process
  static const dlpack::ExchangeApi* api = nullptr;
  if (type == known) return *api;
  nb::object capsule = nb::getattr(nb::handle(reinterpret_cast<PyObject*>(type)), "__dlpack_c_exchange_api__", nb::none());
  if (capsule.is_none())
    throw nb::type_error((std::string("a tensor with __dlpack_c_exchange_api__ is needed, got ") + type->tp_name).c_str());
  const auto* found = static_cast<dlpack::ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  if (found == nullptr) throw nb::python_error();
  while (found != nullptr && (found->major != 1 || found->tensor_from_object == nullptr)) found = found->older;
  if (found == nullptr) throw nb::type_error("the tensor's library speaks no DLPack 1.x that lends tensors");
  known = type;
  api = found;
  return *api;
}

bool read_type(dlpack::DataType type, DType* to) {
  constexpr uint8_t kInt = 0, kUInt = 1, kFloat = 2, kBFloat = 4;
  if (type.lanes != 1) return false;
  if (type.code == kFloat && type.bits == 32) return *to = DType::f32, true;
  if (type.code == kFloat && type.bits == 16) return *to = DType::f16, true;
  if (type.code == kBFloat && type.bits == 16) return *to = DType::bf16, true;
  if (type.code == kUInt && type.bits == 8) return *to = DType::u8, true;
  if (type.code == kInt && type.bits == 32) return *to = DType::i32, true;
  if (type.code == kInt && type.bits == 64) return *to = DType::i64, true;
  return false;
}

Tensor borrow(nb::handle object, int rank, const char* name) {
  dlpack::Tensor source;
  if (exchange_api(Py_TYPE(object.ptr())).tensor_from_object(object.ptr(), &source) != 0) throw nb::python_error();
  Tensor result;
  if (source.device.type != dlpack::kCpu) throw ArgumentError(std::string(name) + " is not on the CPU");
  if (source.rank != rank)
    throw ArgumentError(std::string(name) + " must have " + std::to_string(rank) + " dimensions, got " +
                        std::to_string(source.rank));
  if (!read_type(source.type, &result.type)) throw ArgumentError(std::string(name) + " has an element type no kernel reads");
  result.data = static_cast<char*>(source.data) + source.byte_offset;
  int64_t contiguous = 1;
  for (int i = rank; i-- > 0; contiguous *= source.shape[i]) {
    result.shape[i] = source.shape[i];
    result.stride[i] = source.strides ? source.strides[i] : contiguous;
  }
  return result;
}

Isa& isa() {
  static Isa chosen = [] {
    const char* forced = std::getenv("QUIRE_CPU_ISA");
    return choose_isa(forced ? forced : "");
  }();
  return chosen;
}

void bind(nb::module_& m) {
  m.def("isa", [] { return isa().name; }, "The instruction set in use.");
  m.def(
      "available_isas",
      [] {
        std::vector<std::string> names;
        for (const Isa& each : available_isas()) names.emplace_back(each.name);
        return names;
      },
      "Instruction sets this CPU and build have, worst first.");
  m.def("use_isa", [](const std::string& name) { isa() = choose_isa(name); }, nb::arg("name"),
        "Change the instruction set; for tests and benchmarks. Empty: the best.");
  m.def("num_threads", &num_threads);
  m.def("set_num_threads", &set_num_threads, nb::arg("num_threads"), nb::call_guard<nb::gil_scoped_release>());

  m.def("paged_attention", [](nb::handle query, nb::handle key_cache, nb::handle value_cache, nb::handle block_tables,
                              nb::handle query_start, nb::handle context_lens, float scale, nb::handle out) {
    AttentionCall call{borrow(query, 3, "query"),
                       borrow(key_cache, 4, "key_cache"),
                       borrow(value_cache, 4, "value_cache"),
                       borrow(block_tables, 2, "block_tables"),
                       borrow(out, 3, "out"),
                       0,
                       0,
                       0,
                       0,
                       scale};
    call.num_kv_heads = int(call.key_cache.shape[2]);
    call.group = int(call.query.shape[1] / call.key_cache.shape[2]);
    call.head_size = int(call.query.shape[2]);
    call.block_size = int(call.key_cache.shape[1]);
    const Tensor starts = borrow(query_start, 1, "query_start"), contexts = borrow(context_lens, 1, "context_lens");
    const nb::gil_scoped_release release;
    paged_attention(*isa().kernels, call, starts, contexts);
  });

  m.def("write_kv", [](nb::handle key, nb::handle value, nb::handle key_cache, nb::handle value_cache, nb::handle slots) {
    const Tensor k = borrow(key, 3, "key"), v = borrow(value, 3, "value");
    const Tensor kc = borrow(key_cache, 4, "key_cache"), vc = borrow(value_cache, 4, "value_cache");
    const Tensor mapping = borrow(slots, 1, "slot_mapping");
    const nb::gil_scoped_release release;
    write_kv(*isa().kernels, k, v, kc, vc, mapping);
  });

  m.def("rms_norm", [](nb::handle x, nb::handle weight, float eps, nb::handle out) {
    const Tensor rows = borrow(x, 2, "x"), factors = borrow(weight, 1, "weight"), to = borrow(out, 2, "out");
    const nb::gil_scoped_release release;
    rms_norm(*isa().kernels, rows, nullptr, factors, eps, to);
  });

  m.def("fused_add_rms_norm", [](nb::handle x, nb::handle residual, nb::handle weight, float eps, nb::handle out) {
    const Tensor rows = borrow(x, 2, "x"), sums = borrow(residual, 2, "residual");
    const Tensor factors = borrow(weight, 1, "weight"), to = borrow(out, 2, "out");
    const nb::gil_scoped_release release;
    rms_norm(*isa().kernels, rows, &sums, factors, eps, to);
  });

  m.def("rope", [](nb::handle query, nb::handle key, nb::handle positions, nb::handle cos, nb::handle sin) {
    const Tensor q = borrow(query, 3, "query"), k = borrow(key, 3, "key"), at = borrow(positions, 1, "positions");
    const Tensor c = borrow(cos, 2, "cos"), s = borrow(sin, 2, "sin");
    const nb::gil_scoped_release release;
    rope(*isa().kernels, q, k, at, c, s);
  });

  m.def("silu_mul", [](nb::handle gate_up, nb::handle out) {
    const Tensor from = borrow(gate_up, 2, "gate_up"), to = borrow(out, 2, "out");
    const nb::gil_scoped_release release;
    silu_mul(*isa().kernels, from, to);
  });

  m.def("dequantize_gguf", [](nb::handle raw, int ggml_type, nb::handle out) {
    const Tensor from = borrow(raw, 1, "raw"), to = borrow(out, 1, "out");
    const nb::gil_scoped_release release;
    dequantize(*isa().kernels, from, ggml_type, to);
  });
}

}  // namespace
}  // namespace quire

NB_MODULE(_cpu, m) {
  m.doc() = "CPU kernels; call them through quire_kernels.ops, which checks shapes.";
  static nb::object argument_error = nb::module_::import_("quire_kernels.errors").attr("ArgumentError");
  static nb::object unavailable_error = nb::module_::import_("quire_kernels.errors").attr("UnavailableError");
  nb::register_exception_translator(
      [](const std::exception_ptr& thrown, void*) {
        try {
          std::rethrow_exception(thrown);
        } catch (const quire::ArgumentError& error) {
          PyErr_SetString(argument_error.ptr(), error.what());
        } catch (const quire::IsaError& error) {
          PyErr_SetString(unavailable_error.ptr(), error.what());
        }
      },
      nullptr);
  quire::isa();  // a forced choice that cannot be fails the import
  quire::bind(m);
}
