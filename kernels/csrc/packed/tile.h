// What the products of all formats share: tiles of rows, and the end of an output.
#pragma once

#include "packed/rows.h"

namespace quire::QUIRE_ISA {

template <int N>
struct Constant {
  static constexpr int value = N;
};

// f(Constant<count>) for a count in 1..Most.
template <int Most, class Function>
QUIRE_INLINE void with_constant(int64_t count, Function f) {
  if constexpr (Most > 1)
    if (count < Most) return with_constant<Most - 1>(count, f);
  f(Constant<Most>{});
}

// f(first row, Constant<rows>) over tiles of nearly equal size, Most rows at most.
template <int Most, class Function>
QUIRE_INLINE void for_tiles(int64_t rows, Function f) {
  int64_t tiles = (rows + Most - 1) / Most;
  for (int64_t row = 0; row < rows; --tiles) {
    const int64_t count = (rows - row + tiles - 1) / tiles;
    with_constant<Most>(count, [&](auto n) { f(row, n); });
    row += count;
  }
}

// A product of one row waits for its weights, and the processor's own look ahead stops at pages of 4 KiB. With more rows there is time to ask for
// the next panel while one is read for the first time.
constexpr int64_t kAhead = 1024;

// Ask for the weights `ahead` bytes behind these. They may be behind the end of them all, which no processor minds.
QUIRE_INLINE void ask_ahead(const void* weights, int64_t bytes, int64_t ahead) {
  for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(static_cast<const char*>(weights) + ahead + at);
}

// Rows that are worked on together, so that they stay in the second-level cache while panel after panel passes.
QUIRE_INLINE int64_t rows_at_once(int64_t row_bytes, int64_t tile, int64_t most) {
  const int64_t fit = 512 * 1024 / (row_bytes + 1) / tile * tile;
  return fit < 2 * tile ? 2 * tile : fit > most ? most : fit;
}

// Hand 16 sums of one row over.
QUIRE_INLINE void finish_row(const PackedMatrix& matrix, const LinearOutput& to, int64_t row, int64_t panel,
                             const float* sums) {
  const int64_t first = panel * kPanelRows, left = matrix.rows - first;
  float* out = to.out + row * to.stride + first;
  if (left >= kPanelRows) {
    for (int v = 0; v < V; ++v) {
      F value = load(sums + v * W);
      if (to.bias != nullptr) value = value + load(to.bias + first + v * W);
      if (to.add) value = load(out + v * W) + value;
      store(value, out + v * W);
    }
    return;
  }
  for (int64_t i = 0; i < left; ++i) {
    float value = sums[i];
    if (to.bias != nullptr) value = value + to.bias[first + i];
    out[i] = to.add ? out[i] + value : value;
  }
}

}  // namespace quire::QUIRE_ISA
