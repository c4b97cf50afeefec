// Products with f32, f16 and bf16 weights, sums in fp32. An output is one chain of fused multiply-adds over its inputs in
// order; chains of several outputs and rows run side by side.
#pragma once

#include "packed/tile.h"

namespace quire::QUIRE_ISA {

// Rows of a tile with one panel, and with two (for few rows; with 32 registers for many too): R * P * V sums and a weight and an input fit
// the registers.
template <class T>
constexpr int kFloatRows = W == 16 ? 8 : W == 8 ? 6 : 3;
template <class T>
constexpr int kWideFloatRows = W == 16 ? 12 : W == 8 ? 3 : 1;
// What halves pairs of bf16 takes registers too.
template <>
constexpr int kFloatRows<bf16> = W == 16 ? 8 : W == 8 ? 5 : 3;
template <>
constexpr int kWideFloatRows<bf16> = W == 16 ? 4 : 1;
// Inputs after which the sums are put aside, so that this part of the panels stays in L1 for all rows. Even.
constexpr int64_t kFloatDepth = 128;
constexpr int64_t kMostFloatRows = 96;
// Of so many rows 16-bit weights become floats once for all of them, not once for each tile (measured on a Xeon with AVX-512).
constexpr int64_t kNever = INT64_MAX;
template <class T>
constexpr int64_t kWidenFrom = kNever;
template <>
constexpr int64_t kWidenFrom<f16> = 16;
template <>
constexpr int64_t kWidenFrom<bf16> = 4;

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

// Step through inputs: step(weights of one input, its number), weights being P * V vectors. `ahead`: see ask_ahead; 0: nothing is asked for.
template <int P, class T, class Step>
QUIRE_INLINE void for_inputs(const T* panel, int64_t panel_size, int64_t depth, int64_t ahead, Step step) {
  for (int64_t k = 0; k < depth; ++k) {
    F w[P][V];
    for (int p = 0; p < P; ++p)
      for (int v = 0; v < V; ++v) w[p][v] = load(panel + p * panel_size + k * kPanelRows + v * W);
    if (ahead != 0)
      for (int p = 0; p < P; ++p) ask_ahead(panel + p * panel_size + k * kPanelRows, kPanelRows * sizeof(T), ahead);
    step(w, k);
  }
}

// The weights of the first (Half 0) or second input of a pair of bf16, which share a lane: the first is the lower half.
template <int Half>
QUIRE_INLINE F load_half(const bf16* pairs) {
  U both;
  __builtin_memcpy(&both, pairs, sizeof both);
  return bits_of<F>(Half == 0 ? both << 16 : both & 0xffff0000u);
}

template <int P, class Step>
QUIRE_INLINE void for_inputs(const bf16* pairs, int64_t panel_size, int64_t depth, int64_t ahead, Step step) {
  const auto step_half = [&](int64_t k, auto half) __attribute__((always_inline)) {
    F w[P][V];
    for (int p = 0; p < P; ++p)
      for (int v = 0; v < V; ++v) w[p][v] = load_half<half.value>(pairs + p * panel_size + v * W * 2);
    step(w, k);
  };
  int64_t k = 0;
  for (; k + 2 <= depth; k += 2, pairs += 2 * kPanelRows) {
    if (ahead != 0)
      for (int p = 0; p < P; ++p) ask_ahead(pairs + p * panel_size, 2 * kPanelRows * sizeof(bf16), ahead);
    step_half(k, Constant<0>{});
    // The other half is read anew. Left alone, GCC 12 keeps pairs from one step to the next, and sums on the stack for it: twice the
    // time for one row, three times for two or three.
    asm volatile("" ::: "memory");
    step_half(k + 1, Constant<1>{});
  }
  if (k < depth) step_half(k, Constant<0>{});
}

// sums[r][P * 16] = the products of R rows with P panels over `depth` inputs; added to what is there where `resume` is set.
template <int R, int P, class T>
void float_tile(const T* panel, int64_t panel_size, const float* x, int64_t stride, int64_t depth, bool resume, float* sums) {
  F acc[R][P][V] = {};
  if (resume)
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
  for_inputs<P>(panel, panel_size, depth, R == 1 ? kAhead : 0, step);
  for (int r = 0; r < R; ++r)
    for (int p = 0; p < P; ++p)
      for (int v = 0; v < V; ++v) store(acc[r][p][v], sums + (r * P + p) * kPanelRows + v * W);
}

template <int P, int MostRows, class T>
QUIRE_INLINE void float_tiles(const T* panel, int64_t panel_size, const float* x, int64_t stride, int64_t depth, bool resume,
                              int64_t rows, float* sums) {
  for_tiles<MostRows>(rows, [&](int64_t row, auto count) {
    float_tile<count.value, P>(panel, panel_size, x + row * stride, stride, depth, resume, sums + row * P * kPanelRows);
  });
}

// The weights of P panels as floats, each panel [kFloatDepth][16].
template <int P, class T>
void widen_panels(const T* panel, int64_t panel_size, int64_t depth, float* to) {
  const auto keep = [&](const F (&w)[P][V], int64_t k) __attribute__((always_inline)) {
    for (int p = 0; p < P; ++p)
      for (int v = 0; v < V; ++v) store(w[p][v], to + (p * kFloatDepth + k) * kPanelRows + v * W);
  };
  for_inputs<P>(panel, panel_size, depth, P * panel_size * int64_t(sizeof(T)), keep);
}

template <int P, class T>
void float_panels(const PackedMatrix& matrix, const float* x, int64_t stride, int64_t depth, int64_t rows, int64_t panel,
                  const LinearOutput& to) {
  constexpr int most = P == 1 ? kFloatRows<T> : kWideFloatRows<T>, most_widened = P == 1 ? kFloatRows<float> : kWideFloatRows<float>;
  alignas(64) float sums[kMostFloatRows * P * kPanelRows];
  [[maybe_unused]] alignas(64) float widened[kWidenFrom<T> == kNever ? 1 : P * kFloatDepth * kPanelRows];
  const auto* weights = reinterpret_cast<const T*>(matrix.panel(panel));
  const int64_t size = matrix.panel_bytes() / int64_t(sizeof(T));
  for (int64_t first = 0; first < depth || first == 0; first += kFloatDepth) {
    const int64_t count = depth - first < kFloatDepth ? depth - first : kFloatDepth;
    const T* from = weights + first * kPanelRows;
    if constexpr (kWidenFrom<T> < kNever)
      if (rows >= kWidenFrom<T>) {
        widen_panels<P>(from, size, count, widened);
        float_tiles<P, most_widened, float>(widened, kFloatDepth * kPanelRows, x + first, stride, count, first > 0, rows, sums);
        continue;
      }
    float_tiles<P, most>(from, size, x + first, stride, count, first > 0, rows, sums);
  }
  for (int64_t row = 0; row < rows; ++row)
    for (int p = 0; p < P; ++p) finish_row(matrix, to, row, panel + p, sums + (row * P + p) * kPanelRows);
}

// `depth` steps of one input, or of one pair; x has `stride` of them in a row.
template <class T>
void multiply_floats(const PackedMatrix& matrix, const float* x, int64_t stride, int64_t depth, int64_t num_rows,
                     int64_t first, int64_t last, LinearOutput to) {
  const int64_t most = rows_at_once(depth * int64_t(sizeof(float)), kFloatRows<T>, kMostFloatRows);
  for (int64_t row = 0; row < num_rows; row += most, x += most * stride, to.out += most * to.stride) {
    const int64_t rows = num_rows - row < most ? num_rows - row : most;
    const bool widen = rows >= kWidenFrom<T>;
    int64_t panel = first;
    if (rows <= kWideFloatRows<T> || (W == 16 && (widen || sizeof(T) == 4)))
      for (; panel + 2 <= last; panel += 2) float_panels<2, T>(matrix, x, stride, depth, rows, panel, to);
    for (; panel < last; ++panel) float_panels<1, T>(matrix, x, stride, depth, rows, panel, to);
  }
}

}  // namespace quire::QUIRE_ISA
