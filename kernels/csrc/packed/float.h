// Products with f32, f16 and bf16 weights, sums in fp32. An output is one chain of fused multiply-adds over its inputs in
// order; chains of several outputs and rows run side by side.
#pragma once

#include "packed/tile.h"

namespace quire::QUIRE_ISA {

// Rows of a tile with one panel, and with two (for few rows): R * P * V sums and a weight and an input fit the registers.
constexpr int kFloatRows = W == 16 ? 8 : W == 8 ? 6 : 3;
constexpr int kWideFloatRows = W == 16 ? 4 : W == 8 ? 3 : 1;
// Inputs after which the sums are put aside, so that this part of a panel stays in L1 for all rows. Even.
constexpr int64_t kFloatDepth = 256;
constexpr int64_t kMostFloatRows = 96;

// Two bf16 weights, or two inputs, of which the instruction set makes one step.
struct bf16_pair {
  uint32_t bits;
};
QUIRE_INLINE F load(const bf16_pair* from) { return load(reinterpret_cast<const float*>(from)); }

template <class T>
QUIRE_INLINE F multiply_add(F input, F weight, F sum, const T*) {
  return fma(input, weight, sum);
}
#if defined(__AVX512BF16__)
QUIRE_INLINE F multiply_add(F input, F weight, F sum, const bf16_pair*) {
  return (F)_mm512_dpbf16_ps((__m512)sum, (__m512bh)weight, (__m512bh)input);
}
#endif

// Step through the inputs [first, last): step(weights of one input, its number), weights being P * V vectors.
template <int R, int P, class T, class Step>
QUIRE_INLINE void for_inputs(const T* panel, int64_t panel_size, int64_t first, int64_t last, Step step) {
  for (int64_t k = first; k < last; ++k) {
    F w[P][V];
    for (int p = 0; p < P; ++p)
      for (int v = 0; v < V; ++v) w[p][v] = load(panel + p * panel_size + k * kPanelRows + v * W);
    for (int p = 0; p < P; ++p) ask_ahead<R>(panel + p * panel_size + k * kPanelRows, kPanelRows * sizeof(T));
    step(w, k);
  }
}

// Pairs of bf16 in one lane: the first is the lower half.
template <int R, int P, class Step>
QUIRE_INLINE void for_inputs(const bf16* panel, int64_t panel_size, int64_t first, int64_t last, Step step) {
  int64_t k = first;
  U pairs[P][V];
  F w[P][V];
  const auto load_pairs = [&]() __attribute__((always_inline)) {
    for (int p = 0; p < P; ++p)
      for (int v = 0; v < V; ++v) {
        __builtin_memcpy(&pairs[p][v], panel + p * panel_size + (k / 2 * kPanelRows + v * W) * 2, sizeof(U));
        w[p][v] = bits_of<F>(pairs[p][v] << 16);
      }
  };
  for (; k + 2 <= last; k += 2) {
    load_pairs();
    for (int p = 0; p < P; ++p) ask_ahead<R>(panel + p * panel_size + k * kPanelRows, 2 * kPanelRows * sizeof(bf16));
    step(w, k);
    for (int p = 0; p < P; ++p)
      for (int v = 0; v < V; ++v) w[p][v] = bits_of<F>(pairs[p][v] & 0xffff0000u);
    step(w, k + 1);
  }
  if (k < last) {
    load_pairs();
    step(w, k);
  }
}

// sums[r][P * 16] (+)= the products of R rows with P panels over the inputs [first, last).
template <int R, int P, class T>
void float_tile(const T* panel, int64_t panel_size, const float* x, int64_t stride, int64_t first, int64_t last,
                float* sums) {
  F acc[R][P][V] = {};
  if (first > 0)
    for (int r = 0; r < R; ++r)
      for (int p = 0; p < P; ++p)
        for (int v = 0; v < V; ++v) acc[r][p][v] = load(sums + (r * P + p) * kPanelRows + v * W);
  const auto step = [&](const F (&w)[P][V], int64_t k) __attribute__((always_inline)) {
    for (int r = 0; r < R; ++r) {
      const F input = splat(x[r * stride + k]);
      for (int p = 0; p < P; ++p)
        for (int v = 0; v < V; ++v) acc[r][p][v] = multiply_add(input, w[p][v], acc[r][p][v], panel);
    }
  };
  for_inputs<R, P>(panel, panel_size, first, last, step);
  for (int r = 0; r < R; ++r)
    for (int p = 0; p < P; ++p)
      for (int v = 0; v < V; ++v) store(acc[r][p][v], sums + (r * P + p) * kPanelRows + v * W);
}

template <int P, int MostRows, class T>
void float_panels(const PackedMatrix& matrix, const float* x, int64_t stride, int64_t depth, int64_t rows, int64_t panel,
                  const LinearOutput& to) {
  alignas(64) float sums[kMostFloatRows * P * kPanelRows];
  const auto* weights = reinterpret_cast<const T*>(matrix.panel(panel));
  const int64_t size = matrix.panel_bytes() / int64_t(sizeof(T));
  for (int64_t first = 0; first < depth || first == 0; first += kFloatDepth) {
    const int64_t last = depth - first < kFloatDepth ? depth : first + kFloatDepth;
    for_tiles<MostRows>(rows, [&](int64_t row, auto count) {
      float_tile<count.value, P>(weights, size, x + row * stride, stride, first, last, sums + row * P * kPanelRows);
    });
  }
  for (int64_t row = 0; row < rows; ++row)
    for (int p = 0; p < P; ++p) finish_row(matrix, to, row, panel + p, sums + (row * P + p) * kPanelRows);
}

// `depth` steps of one input, or of one pair; x has `stride` of them in a row.
template <class T>
void multiply_floats(const PackedMatrix& matrix, const float* x, int64_t stride, int64_t depth, int64_t num_rows,
                     int64_t first, int64_t last, LinearOutput to) {
  const int64_t most = rows_at_once(depth * int64_t(sizeof(float)), kFloatRows, kMostFloatRows);
  for (int64_t row = 0; row < num_rows; row += most, x += most * stride, to.out += most * to.stride) {
    const int64_t rows = num_rows - row < most ? num_rows - row : most;
    int64_t panel = first;
    if (rows <= kWideFloatRows)
      for (; panel + 2 <= last; panel += 2) float_panels<2, kWideFloatRows, T>(matrix, x, stride, depth, rows, panel, to);
    for (; panel < last; ++panel) float_panels<1, kFloatRows, T>(matrix, x, stride, depth, rows, panel, to);
  }
}

}  // namespace quire::QUIRE_ISA
