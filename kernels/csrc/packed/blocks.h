// One block of 32 weights as quants: cut out of a GGUF block, or found for floats. Runs once per weight, at load; compiled
// for the baseline only.
#pragma once

#include <algorithm>
#include <cmath>

#define QUIRE_ISA packing
#include "packed/layout.h"
#include "rows/dequantize.h"

namespace quire::packing {

struct QuantBlock {
  uint8_t quant[kQuantBlock];
  float scale[2];  // the second where scales are per 16
  float minimum;
};

// How a type of GGUF is packed, and how its blocks are cut: split(block, i) is the i-th 32 weights of a block.
struct GgufType {
  int number;
  PackedMatrix like;
  int64_t elements, bytes;
  void (*split)(const uint8_t* block, int i, QuantBlock& to);
};

inline float rounded_half(float x) {
  f16 half;
  narrow(x, &half);
  return widen(half);
}

// 16 bytes: the low halves are the first 16 weights.
QUIRE_INLINE void split_pairs(const uint8_t* from, uint8_t* quant) {
  for (int i = 0; i < 16; ++i) {
    quant[i] = from[i] & 15;
    quant[i + 16] = from[i] >> 4;
  }
}

QUIRE_INLINE void add_fifth_bits(const uint8_t* from, uint8_t* quant) {
  int high[32];
  fifth_bits(from, high);
  for (int i = 0; i < 32; ++i) quant[i] = uint8_t(quant[i] | high[i]);
}

inline void split_q4_0(const uint8_t* b, int, QuantBlock& to) {
  to.scale[0] = half_at(b);
  split_pairs(b + 2, to.quant);
}
inline void split_q4_1(const uint8_t* b, int, QuantBlock& to) {
  to.scale[0] = half_at(b);
  to.minimum = half_at(b + 2);
  split_pairs(b + 4, to.quant);
}
inline void split_q5_0(const uint8_t* b, int, QuantBlock& to) {
  to.scale[0] = half_at(b);
  split_pairs(b + 6, to.quant);
  add_fifth_bits(b + 2, to.quant);
}
inline void split_q5_1(const uint8_t* b, int, QuantBlock& to) {
  to.scale[0] = half_at(b);
  to.minimum = half_at(b + 2);
  split_pairs(b + 8, to.quant);
  add_fifth_bits(b + 4, to.quant);
}
inline void split_q8_0(const uint8_t* b, int, QuantBlock& to) {
  to.scale[0] = half_at(b);
  for (int i = 0; i < 32; ++i) to.quant[i] = b[2 + i] ^ 128;  // int8 + 128
}

// K formats: eight scales and minima, products of two numbers; they are rounded to float16 when they are stored.
QUIRE_INLINE void split_k(const uint8_t* b, const uint8_t* low, int i, QuantBlock& to) {
  float scale[8], minimum[8];
  k_scales(b + 4, half_at(b), half_at(b + 2), scale, minimum);
  to.scale[0] = scale[i];
  to.minimum = -minimum[i];
  for (int j = 0; j < 32; ++j) to.quant[j] = low[32 * (i / 2) + j] >> (i % 2 * 4) & 15;
}
inline void split_q4_k(const uint8_t* b, int i, QuantBlock& to) { split_k(b, b + 16, i, to); }
inline void split_q5_k(const uint8_t* b, int i, QuantBlock& to) {
  split_k(b, b + 48, i, to);
  for (int j = 0; j < 32; ++j) to.quant[j] = uint8_t(to.quant[j] | (b[16 + j] >> i & 1) << 4);
}
inline void split_q6_k(const uint8_t* b, int i, QuantBlock& to) {
  const float d = half_at(b + 208);
  for (int half = 0; half < 2; ++half) to.scale[half] = d * float(int(int8_t(b[192 + 2 * i + half])));
  const uint8_t* low = b + 64 * (i / 4) + 32 * (i % 2);
  const uint8_t* high = b + 128 + 32 * (i / 4);
  const int low_shift = i % 4 / 2 * 4, high_shift = i % 4 * 2;
  for (int j = 0; j < 32; ++j)
    to.quant[j] = uint8_t((low[j] >> low_shift & 15) | (high[j] >> high_shift & 3) << 4);
}

inline PackedMatrix quants(Format format, bool minima, bool halves, int zero, int most) {
  PackedMatrix like;
  like.format = format;
  like.minima = minima;
  like.halves = halves;
  like.zero = zero;
  like.most = most;
  return like;
}

inline const GgufType* gguf_type(int number) {
  static const GgufType kTypes[] = {
      {2, quants(Format::q4, false, false, 8, 15), 32, 18, split_q4_0},
      {3, quants(Format::q4, true, false, 0, 15), 32, 20, split_q4_1},
      {6, quants(Format::q8, false, false, 16, 31), 32, 22, split_q5_0},
      {7, quants(Format::q8, true, false, 0, 31), 32, 24, split_q5_1},
      {8, quants(Format::q8, false, false, 128, 255), 32, 34, split_q8_0},
      {12, quants(Format::q4, true, false, 0, 15), 256, 144, split_q4_k},
      {13, quants(Format::q8, true, false, 0, 31), 256, 176, split_q5_k},
      {14, quants(Format::q8, false, true, 32, 63), 256, 210, split_q6_k},
  };
  for (const GgufType& type : kTypes)
    if (type.number == number) return &type;
  return nullptr;
}

// ---- floats; `x` holds 32 finite numbers ----

inline int nearest(float x, int most) { return x <= 0 ? 0 : x >= float(most) ? most : int(x + 0.5f); }

// Symmetric: scale = max|x| / 127.
inline void quantize_q8(const float* x, QuantBlock& to) {
  float most = 0;
  for (int i = 0; i < kQuantBlock; ++i) most = std::max(most, std::fabs(x[i]));
  to.scale[0] = rounded_half(most / 127.0f);
  const float factor = to.scale[0] > 0 ? 1.0f / to.scale[0] : 0.0f;
  for (int i = 0; i < kQuantBlock; ++i) to.quant[i] = uint8_t(1 + nearest(x[i] * factor + 127.0f, 254));
}

// Scale and minimum with the least squared error among the few that are tried: the range is spread over a little more and
// a little less than 15 steps, each time with the line fitted to the quants that this gives.
inline void quantize_q4(const float* x, QuantBlock& to) {
  float low = x[0], high = x[0], best = -1;
  for (int i = 1; i < kQuantBlock; ++i) {
    low = std::min(low, x[i]);
    high = std::max(high, x[i]);
  }
  const auto attempt = [&](float scale, float minimum) {
    QuantBlock block;
    block.scale[0] = rounded_half(scale);
    block.minimum = rounded_half(minimum);
    const float factor = block.scale[0] > 0 ? 1.0f / block.scale[0] : 0.0f;
    float error = 0;
    for (int i = 0; i < kQuantBlock; ++i) {
      block.quant[i] = uint8_t(nearest((x[i] - block.minimum) * factor, 15));
      const float miss = block.scale[0] * float(block.quant[i]) + block.minimum - x[i];
      error += miss * miss;
    }
    if (best < 0 || error < best) {
      best = error;
      to = block;
    }
    return block;
  };
  for (const float steps : {15.0f, 14.0f, 15.5f, 16.5f}) {
    QuantBlock block = attempt((high - low) / steps, low + (high - low) * 0.5f * (1.0f - 15.0f / steps));
    double q = 0, qq = 0, xs = 0, qx = 0;
    for (int i = 0; i < kQuantBlock; ++i) {
      q += block.quant[i];
      qq += block.quant[i] * block.quant[i];
      xs += x[i];
      qx += double(x[i]) * block.quant[i];
    }
    const double spread = kQuantBlock * qq - q * q;
    if (spread <= 0) continue;
    const double scale = (kQuantBlock * qx - q * xs) / spread;
    attempt(float(scale), float((xs - scale * q) / kQuantBlock));
  }
}

}  // namespace quire::packing
