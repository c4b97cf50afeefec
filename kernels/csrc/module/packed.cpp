// The Python face of packed weights.
#include "module/bindings.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>

#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "common/checks.h"
#include "isa/isa.h"
#include "module/dlpack.h"
#include "packed/weight.h"

namespace nb = nanobind;

namespace quire {
namespace {

constexpr const char* kFormats[] = {"f32", "f16", "bf16", "q8", "q4"};

Format format_of(const std::string& name) {
  for (int i = 0; i < 5; ++i)
    if (name == kFormats[i]) return Format(i);
  refuse("format must be f32, f16, bf16, q8 or q4, got '" + name + "'");
}

// As "q4", or "q4+q8" where the parts differ.
std::string format_name(const PackedWeight& weight) {
  std::string names;
  for (const PackedMatrix& part : weight.parts()) {
    const std::string name = kFormats[int(part.format)];
    if (names.empty()) names = name;
    else if (("+" + names + "+").find("+" + name + "+") == std::string::npos) names += "+" + name;
  }
  return names;
}

std::unique_ptr<PackedWeight> call_pack_weights(nb::list parts, nb::handle importance) {
  std::vector<FloatPart> list;
  for (const nb::handle part : parts) {
    const auto [weight, format] = nb::cast<std::tuple<nb::object, std::string>>(part);
    const Tensor from = borrow(weight, 2, "weight");
    check_float({"weight", from, 2});
    if (from.shape[0] < 1 || from.shape[1] < 1)
      refuse("weight must have at least one row and one column, got shape " + list_of(from.shape, 2));
    list.push_back({from, format_of(format)});
  }
  if (list.empty()) refuse("parts must hold at least one weight, got none");
  Tensor weights;
  if (!importance.is_none()) {
    weights = borrow(importance, 1, "importance");
    check({"importance", weights, 1}, {list.front().weight.shape[1]}, DType::f32);
  }
  const nb::gil_scoped_release release;
  return pack(list, weights.as<const float>());
}

// What a part is made of was checked by quire_kernels.ops; that its blocks are all there is checked here.
std::unique_ptr<PackedWeight> call_pack_gguf(nb::list parts, int64_t cols) {
  std::vector<GgufPart> list;
  for (const nb::handle part : parts) {
    const auto [raw, type, rows, bytes] = nb::cast<std::tuple<nb::object, int, int64_t, int64_t>>(part);
    const Tensor blocks = borrow(raw, 1, "raw");
    check({"raw", blocks, 1}, {bytes}, DType::u8);
    list.push_back({blocks.as<const uint8_t>(), type, rows});
  }
  const nb::gil_scoped_release release;
  return pack_gguf(list, cols);
}

// A Python buffer that is held.
struct Buffer {
  Py_buffer view{};
  ~Buffer() {
    const nb::gil_scoped_acquire acquire;
    PyBuffer_Release(&view);  // nothing where none is held
  }
};

std::unique_ptr<PackedWeight> call_borrow_weight(nb::handle data, nb::list parts, int64_t cols) {
  std::vector<PackedMatrix> list;
  for (const nb::handle part : parts) {
    const auto [kind, rows] = nb::cast<std::tuple<nb::object, int64_t>>(part);
    if (nb::isinstance<nb::str>(kind))
      list.push_back(layout_of(format_of(nb::cast<std::string>(kind)), rows, cols));
    else
      list.push_back(layout_of_gguf(nb::cast<int>(kind), rows, cols));
  }
  const auto buffer = std::make_shared<Buffer>();
  if (PyObject_GetBuffer(data.ptr(), &buffer->view, PyBUF_SIMPLE) != 0) throw nb::python_error();
  const auto* from = static_cast<const uint8_t*>(buffer->view.buf);
  return std::make_unique<PackedWeight>(std::move(list), from, int64_t(buffer->view.len), buffer);
}

// The bytes of a weight for Python's memoryview, which keeps the weight.
int lend_bytes(PyObject* self, Py_buffer* view, int flags) {
  const PackedWeight& weight = *nb::inst_ptr<PackedWeight>(self);
  return PyBuffer_FillInfo(view, self, const_cast<uint8_t*>(weight.data()), Py_ssize_t(weight.num_bytes()), 1, flags);
}

PyType_Slot kWeightSlots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(&lend_bytes)}, {0, nullptr}};

int64_t row_record_bytes(const std::string& format, int64_t cols) {
  PackedMatrix like;
  like.format = format_of(format);
  return current_isa().packed->record_bytes(like.input(), cols);
}

const PackedWeight& weight_of(nb::handle packed) {
  if (!nb::isinstance<PackedWeight>(packed))
    refuse(std::string("packed must be a weight that this implementation packed, got ") +
           nb::type_name(packed.type()).c_str());
  return *nb::cast<const PackedWeight*>(packed);
}

void call_packed_linear(nb::handle x, nb::handle packed, nb::handle bias, nb::handle out) {
  const Tensor from = borrow(x, 2, "x"), to = borrow(out, 2, "out");
  const PackedWeight& weight = weight_of(packed);
  check({"x", from, 2}, {from.shape[0], weight.cols()}, DType::f32);
  Tensor terms;
  if (!bias.is_none()) {
    terms = borrow(bias, 1, "bias");
    check({"bias", terms, 1}, {weight.rows()}, DType::f32);
  }
  check({"out", to, 2}, {from.shape[0], weight.rows()}, DType::f32);
  const nb::gil_scoped_release release;
  packed_linear(*current_isa().packed, from, weight, terms.as<const float>(), to);
}

void call_unpack_weight(nb::handle packed, nb::handle out) {
  const PackedWeight& weight = weight_of(packed);
  const Tensor to = borrow(out, 2, "out");
  check({"out", to, 2}, {weight.rows(), weight.cols()}, DType::f32);
  const nb::gil_scoped_release release;
  for (int64_t row = 0; row < weight.rows(); ++row) unpack_row(weight, row, reinterpret_cast<float*>(to.at(row)));
}

}  // namespace

void bind_packed(nb::module_& m) {
  nb::class_<PackedWeight>(m, "PackedWeight", nb::type_slots(kWeightSlots),
                           "A weight laid out for products; see quire_kernels.ops.pack_weight.")
      .def_prop_ro("format", &format_name)
      .def_prop_ro("shape", [](const PackedWeight& w) { return nb::make_tuple(w.rows(), w.cols()); })
      .def_prop_ro("nbytes", &PackedWeight::num_bytes);
  m.def("pack_weights", &call_pack_weights, nb::arg("parts"), nb::arg("importance").none());
  m.def("pack_gguf", &call_pack_gguf);
  m.def("borrow_weight", &call_borrow_weight, nb::arg("data"), nb::arg("parts"), nb::arg("cols"));
  m.def("packed_linear", &call_packed_linear, nb::arg("x"), nb::arg("packed"), nb::arg("bias").none(), nb::arg("out"));
  m.def("unpack_weight", &call_unpack_weight);
  m.def("record_bytes", &row_record_bytes, nb::arg("format"), nb::arg("cols"));
}

}  // namespace quire
