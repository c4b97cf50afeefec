// Products of q8 and q4 weights with int8 records. Dot products of a block are exact in int32; blocks are added in fp32 in
// order, each with one fused multiply-add (and one more for its minimum).
#pragma once

#include "packed/tile.h"

namespace quire::QUIRE_ISA {

constexpr int kQuantRows = W == 16 ? 12 : W == 8 ? 4 : 2;
constexpr int64_t kMostQuantRows = 32;  // their records beside a panel: what a first-level cache holds

// What is known of a matrix when its kernel is compiled.
template <bool Pairs, int Most, bool Halves, bool Minima>
struct Quants {
  static constexpr bool pairs = Pairs, halves = Halves, minima = Minima;
  static constexpr int most = Most, parts = Halves ? 2 : 1;  // scales of a block
};

// `ahead`: see ask_ahead; 0: nothing is asked for.
template <class Q, int R>
void quant_tile(const uint8_t* panel, int64_t blocks, int zero, const uint8_t* records, int64_t record_size, int64_t ahead, float* sums) {
  constexpr int64_t block_bytes = (Q::parts + Q::minima) * 2 * kPanelRows + (Q::pairs ? 16 : 32) * kPanelRows;
  F acc[R][V] = {};
  QuantRow rows[R];
  for (int r = 0; r < R; ++r) rows[r] = QuantRow::at(records + r * record_size, blocks);
  for (int64_t b = 0; b < blocks; ++b) {
    const auto* scales = reinterpret_cast<const f16*>(panel);
    const f16* minima = scales + Q::parts * kPanelRows;
    const auto* quants = reinterpret_cast<const uint8_t*>(minima + Q::minima * kPanelRows);
    if (ahead != 0) ask_ahead(panel, block_bytes, ahead);
    for (int part = 0; part < Q::parts; ++part) {
      const int8_t* x[R];
      for (int r = 0; r < R; ++r) x[r] = rows[r].quants + b * kQuantBlock + part * 16;
      I dots[R][V];
      if constexpr (Q::pairs)
        dot_pairs<R>(quants, x, dots);
      else
        dot_bytes<R, 8 / Q::parts, Q::most>(quants + part * 4 * 64, x, dots);
      for (int v = 0; v < V; ++v) {
        const F scale = load(scales + part * kPanelRows + v * W);
        for (int r = 0; r < R; ++r) {
          if constexpr (!Q::minima)
            dots[r][v] = dots[r][v] - splat(zero * (Q::halves ? rows[r].halves[2 * b + part] : rows[r].totals[b]));
          acc[r][v] = fma(__builtin_convertvector(dots[r][v], F), scale * splat(rows[r].scales[b]), acc[r][v]);
        }
      }
    }
    if constexpr (Q::minima)
      for (int v = 0; v < V; ++v) {
        const F minimum = load(minima + v * W);
        for (int r = 0; r < R; ++r) acc[r][v] = fma(minimum, splat(rows[r].sums[b]), acc[r][v]);
      }
    panel += block_bytes;
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) store(acc[r][v], sums + r * kPanelRows + v * W);
}

template <class Q>
void multiply_quants(const PackedMatrix& matrix, const LinearInput& input, int64_t first, int64_t last,
                     const LinearOutput& to) {
  const int64_t record_size = record_bytes(InputKind::int8, matrix.cols), blocks = blocks_of(matrix.cols);
  const int64_t most = rows_at_once(record_size, kQuantRows, kMostQuantRows);
  for (int64_t begin = 0; begin < input.num_rows; begin += most) {
    const int64_t rows = input.num_rows - begin < most ? input.num_rows - begin : most;
    for (int64_t panel = first; panel < last; ++panel)
      for_tiles<kQuantRows>(rows, [&](int64_t row, auto count) {
        alignas(64) float sums[count.value * kPanelRows];
        const uint8_t* records = input.records + (begin + row) * record_size;
        const int64_t ahead = input.num_rows == 1 ? kAhead : begin + row == 0 ? matrix.panel_bytes() : 0;
        quant_tile<Q, count.value>(matrix.panel(panel), blocks, matrix.zero, records, record_size, ahead, sums);
        for (int r = 0; r < count.value; ++r) finish_row(matrix, to, begin + row + r, panel, sums + r * kPanelRows);
      });
  }
}

}  // namespace quire::QUIRE_ISA
