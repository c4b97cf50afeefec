#include "module/dlpack.h"

#include <string>

#include "common/error.h"

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

const dlpack::ExchangeApi& exchange_api(PyTypeObject* type, const char* name) {
  // Guarded by the GIL. Held, so that no other type can come to lie at its address.
  static PyTypeObject* known = nullptr;
  static const dlpack::ExchangeApi* api = nullptr;
  if (type == known) return *api;
  const nb::handle holder(reinterpret_cast<PyObject*>(type));
  const nb::object capsule = nb::getattr(holder, "__dlpack_c_exchange_api__", nb::none());
  if (capsule.is_none()) throw ArgumentError(std::string(name) + " must be a tensor, got " + type->tp_name);
  const auto* found = static_cast<dlpack::ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  if (found == nullptr) throw nb::python_error();
  while (found != nullptr && (found->major != 1 || found->tensor_from_object == nullptr)) found = found->older;
  if (found == nullptr) throw ArgumentError(std::string(name) + "'s library does not lend tensors by DLPack 1.x");
  Py_INCREF(type);
  api = found;
  Py_XSETREF(known, type);  // may run Python
  return *found;
}

DType element_type(dlpack::DataType type, const char* name) {
  constexpr uint8_t kInt = 0, kUInt = 1, kFloat = 2, kBFloat = 4;
  const auto is = [&](uint8_t code, uint8_t bits) { return type.code == code && type.bits == bits && type.lanes == 1; };
  if (is(kFloat, 32)) return DType::f32;
  if (is(kBFloat, 16)) return DType::bf16;
  if (is(kFloat, 16)) return DType::f16;
  if (is(kUInt, 8)) return DType::u8;
  if (is(kInt, 32)) return DType::i32;
  if (is(kInt, 64)) return DType::i64;
  throw ArgumentError(std::string(name) + " has an element type that no kernel reads");
}

}  // namespace

Tensor borrow(nb::handle object, int rank, const char* name) {
  dlpack::Tensor source;
  if (exchange_api(Py_TYPE(object.ptr()), name).tensor_from_object(object.ptr(), &source) != 0) throw nb::python_error();
  if (source.device.type != dlpack::kCpu) throw ArgumentError(std::string(name) + " must be on the CPU");
  if (source.rank != rank)
    throw ArgumentError(std::string(name) + " must have " + std::to_string(rank) + " dimensions, got " +
                        std::to_string(source.rank));
  Tensor result;
  result.type = element_type(source.type, name);
  result.data = static_cast<char*>(source.data) + source.byte_offset;
  int64_t contiguous = 1;
  for (int i = rank; i-- > 0; contiguous *= source.shape[i]) {
    result.shape[i] = source.shape[i];
    result.stride[i] = source.strides != nullptr ? source.strides[i] : contiguous;
  }
  return result;
}

}  // namespace quire
