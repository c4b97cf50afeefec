// Weights laid out for products, and the product's interface. Plain types only, as in common/types.h: this header is compiled once
// per instruction set. The owner of the memory is PackedWeight (weight.h).
//
// Layout, the same for every instruction set: panels of 16 outputs (rows of the weight) follow each other; the last is
// padded with zeros. Lanes of a vector are outputs, so an input is broadcast and no sum crosses lanes. Inside a panel:
//   f32   [cols][16] float
//   f16   [cols][16] float16
//   bf16  [ceil(cols / 2)][16][2] bfloat16; the second of an odd pair is zero
//   q8    [ceil(cols / 32)] blocks of {f16 scale[1 or 2][16], f16 minimum[0 or 1][16], uint8 quant[8][16][4]}
//   q4    [ceil(cols / 32)] blocks of {f16 scale[16], f16 minimum[0 or 1][16], uint8 pair[4][16][4]}
// quant[g][row][i] is input 4 g + i of the block; pair[g][row][i] holds input 4 g + i in its low and 16 + 4 g + i in its high
// half. A weight is scale * (quant - zero), or scale * quant + minimum where there are minima (zero is 0 then).
#pragma once

#include "common/types.h"

namespace quire {

enum class Format : int { f32, f16, bf16, q8, q4 };

// What a product reads: the rows as they are; or records made of them, see PackedKernels::prepare_row.
enum class InputKind : int { plain, bf16, int8 };

constexpr int kPanelRows = 16;
constexpr int kQuantBlock = 32;  // inputs that share a scale

QUIRE_SHARED_INLINE constexpr int64_t blocks_of(int64_t cols) { return (cols + kQuantBlock - 1) / kQuantBlock; }

// A view; immutable, `data` is 64-byte aligned.
struct PackedMatrix {
  Format format = Format::f32;
  int64_t rows = 0, cols = 0;  // outputs N, inputs K
  const uint8_t* data = nullptr;
  bool minima = false;  // q8, q4: blocks have a minimum
  bool halves = false;  // q8: a scale per 16 inputs instead of 32
  int zero = 0;         // q8, q4: the quant that stands for 0
  int most = 0;         // q8, q4: no quant is larger

  QUIRE_SHARED_INLINE int64_t num_panels() const { return (rows + kPanelRows - 1) / kPanelRows; }
  QUIRE_SHARED_INLINE int64_t block_bytes() const {  // of q8 and q4
    return (1 + halves + minima) * 2 * kPanelRows + (format == Format::q4 ? 16 : 32) * kPanelRows;
  }
  QUIRE_SHARED_INLINE int64_t panel_bytes() const {
    if (format == Format::f32) return cols * 4 * kPanelRows;
    if (format == Format::f16) return cols * 2 * kPanelRows;
    if (format == Format::bf16) return (cols + 1) / 2 * 4 * kPanelRows;
    return blocks_of(cols) * block_bytes();
  }
  QUIRE_SHARED_INLINE const uint8_t* panel(int64_t i) const { return data + i * panel_bytes(); }
  QUIRE_SHARED_INLINE InputKind input() const {
    return format == Format::bf16 ? InputKind::bf16 : format < Format::bf16 ? InputKind::plain : InputKind::int8;
  }
};

// One row, quantised in blocks of 32: {int8 quant[32 b], float scale[b], float sum[b], int32 total[b], int32 half[2 b]}
// with b blocks. quant = x / scale rounded to nearest even, scale = max|x| / 127; total and half are sums of quants (of 32
// and of 16), sum = scale * total. A block that holds a NaN or an infinity has scale and sum NaN, and so has the result.
// bf16: {bfloat16 x[cols rounded up to 2]}, made only where the instruction set multiplies bfloat16 pairs
// (PackedKernels::record_bytes).
QUIRE_SHARED_INLINE constexpr int64_t record_bytes(InputKind kind, int64_t cols) {
  if (kind == InputKind::plain) return 0;
  if (kind == InputKind::bf16) return (cols * 2 + 63) / 64 * 64;
  return (blocks_of(cols) * (kQuantBlock + 20) + 63) / 64 * 64;
}

// The input of a product: num_rows rows of x, `stride` floats apart, and their records, as many bytes apart as the table of
// kernels says (64-byte aligned). Made once, it serves every weight of the same kind.
struct LinearInput {
  const float* x = nullptr;
  int64_t stride = 0, num_rows = 0;
  const uint8_t* records = nullptr;
};

// Where a product goes: out[row * stride + output]. Written once: sum (+ bias[output]) (+ what is in out, where add is set).
struct LinearOutput {
  float* out = nullptr;
  int64_t stride = 0;
  const float* bias = nullptr;
  bool add = false;
};

// One table per instruction set. The additions of an output happen in one order that depends on the format and on cols alone:
// a row's result is the same bit for bit whatever rows, panels and threads share the call.
struct PackedKernels {
  // Make the record of one row, where there are records of this kind.
  void (*prepare_row)(InputKind kind, const float* x, int64_t cols, uint8_t* record);
  // out = x W^T for all rows of the input and the outputs of the panels [first, last). output.out and bias belong to the
  // matrix's output 0.
  void (*multiply)(const PackedMatrix& matrix, const LinearInput& input, int64_t first, int64_t last,
                   const LinearOutput& output);
  bool multiplies_bf16 = false;  // else products with bf16 weights read the rows as they are

  // Of one row; 0: there are none.
  QUIRE_SHARED_INLINE int64_t record_bytes(InputKind kind, int64_t cols) const {
    return kind == InputKind::bf16 && !multiplies_bf16 ? 0 : quire::record_bytes(kind, cols);
  }
};

extern const PackedKernels kPortablePacked;
#if defined(QUIRE_X86)
extern const PackedKernels kAvx2Packed;
extern const PackedKernels kAvx512Packed;
extern const PackedKernels kAvx512VnniPacked;  // and VNNI
extern const PackedKernels kAvx512Bf16Packed;  // and BF16
#endif

}  // namespace quire
