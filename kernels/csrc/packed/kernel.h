// Products with packed weights for the instruction set this file is compiled for: by format.
#pragma once

#include "packed/float.h"
#include "packed/quant.h"

namespace quire::QUIRE_ISA {

inline void multiply_q8(const PackedMatrix& m, const LinearInput& input, int64_t first, int64_t last,
                        const LinearOutput& to) {
  if (m.halves) return multiply_quants<Quants<false, 63, true, false>>(m, input, first, last, to);
  if (m.minima) return multiply_quants<Quants<false, 31, false, true>>(m, input, first, last, to);
  if (m.most <= 31) return multiply_quants<Quants<false, 31, false, false>>(m, input, first, last, to);
  multiply_quants<Quants<false, 255, false, false>>(m, input, first, last, to);
}

inline void multiply_q4(const PackedMatrix& m, const LinearInput& input, int64_t first, int64_t last,
                        const LinearOutput& to) {
  if (m.minima) return multiply_quants<Quants<true, 15, false, true>>(m, input, first, last, to);
  multiply_quants<Quants<true, 15, false, false>>(m, input, first, last, to);
}

inline void multiply_int8(const PackedMatrix& m, const LinearInput& input, int64_t first, int64_t last,
                          const LinearOutput& to) {
  m.format == Format::q8 ? multiply_q8(m, input, first, last, to) : multiply_q4(m, input, first, last, to);
}

inline void multiply_bf16(const PackedMatrix& m, const LinearInput& input, int64_t first, int64_t last,
                          const LinearOutput& to) {
  if constexpr (kMultipliesBf16) {
    const auto* pairs = reinterpret_cast<const float*>(input.records);
    const int64_t stride = record_bytes(InputKind::bf16, m.cols) / 4, depth = (m.cols + 1) / 2;
    return multiply_floats<bf16_pair>(m, pairs, stride, depth, input.num_rows, first, last, to);
  }
  multiply_floats<bf16>(m, input.x, input.stride, m.cols, input.num_rows, first, last, to);
}

inline void multiply(const PackedMatrix& m, const LinearInput& input, int64_t first, int64_t last,
                     const LinearOutput& to) {
  switch (m.format) {
    case Format::f32: return multiply_floats<float>(m, input.x, input.stride, m.cols, input.num_rows, first, last, to);
    case Format::f16: return multiply_floats<f16>(m, input.x, input.stride, m.cols, input.num_rows, first, last, to);
    case Format::bf16: return multiply_bf16(m, input, first, last, to);
    case Format::q8:
    case Format::q4: return multiply_int8(m, input, first, last, to);
  }
}

}  // namespace quire::QUIRE_ISA
