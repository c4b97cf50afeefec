// One block of 32 weights as quants: cut out of a GGUF block, or found for floats. Runs once per weight, at load, where a start
// waits for it; compiled for the baseline only.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#define QUIRE_ISA packing
#include "packed/layout.h"
#include "rows/dequantize.h"

namespace quire::packing {

// As a packed weight holds it (layout.h): quants in the order of inputs; of q4 the first 16 bytes, each a pair.
struct QuantBlock {
  uint8_t quant[kQuantBlock];
  f16 scale[2];  // the second where scales are per 16
  f16 minimum;
};

// How a type of GGUF is packed, and how its blocks are cut: split(block, i) is the i-th 32 weights of a block.
struct GgufType {
  int number;
  PackedMatrix like;
  int64_t elements, bytes;
  void (*split)(const uint8_t* block, int i, QuantBlock& to);
};

inline f16 half_of(float x) {
  f16 half;
  narrow(x, &half);
  return half;
}

inline float rounded_half(float x) { return widen(half_of(x)); }

QUIRE_INLINE f16 stored_half(const uint8_t* from) {
  f16 half;
  std::memcpy(&half, from, sizeof half);
  return half;
}

// The low halves of 16 bytes are the first 16 quants.
QUIRE_INLINE void split_pairs(const uint8_t* from, uint8_t* quant) {
  for (int i = 0; i < 16; ++i) {
    quant[i] = from[i] & 15;
    quant[i + 16] = from[i] >> 4;
  }
}

// The same the other way round.
QUIRE_INLINE void join_pairs(const uint8_t* quant, uint8_t* to) {
  for (int i = 0; i < 16; ++i) to[i] = uint8_t(quant[i] | quant[i + 16] << 4);
}

QUIRE_INLINE void add_fifth_bits(const uint8_t* from, uint8_t* quant) {
  int high[32];
  fifth_bits(from, high);
  for (int i = 0; i < 32; ++i) quant[i] = uint8_t(quant[i] | high[i]);
}

// GGUF's pairs are those of layout.h.
inline void split_q4_0(const uint8_t* b, int, QuantBlock& to) {
  to.scale[0] = stored_half(b);
  std::memcpy(to.quant, b + 2, 16);
}
inline void split_q4_1(const uint8_t* b, int, QuantBlock& to) {
  to.scale[0] = stored_half(b);
  to.minimum = stored_half(b + 2);
  std::memcpy(to.quant, b + 4, 16);
}
inline void split_q5_0(const uint8_t* b, int, QuantBlock& to) {
  to.scale[0] = stored_half(b);
  split_pairs(b + 6, to.quant);
  add_fifth_bits(b + 2, to.quant);
}
inline void split_q5_1(const uint8_t* b, int, QuantBlock& to) {
  to.scale[0] = stored_half(b);
  to.minimum = stored_half(b + 2);
  split_pairs(b + 8, to.quant);
  add_fifth_bits(b + 4, to.quant);
}
inline void split_q8_0(const uint8_t* b, int, QuantBlock& to) {
  to.scale[0] = stored_half(b);
  for (int i = 0; i < 32; ++i) to.quant[i] = b[2 + i] ^ 128;  // int8 + 128
}

// K formats: eight scales and minima, products of two numbers; they are rounded to float16 when they are stored.
QUIRE_INLINE void split_k(const uint8_t* b, const uint8_t* low, int i, QuantBlock& to) {
  float scale[8], minimum[8];
  k_scales(b + 4, half_at(b), half_at(b + 2), scale, minimum);
  to.scale[0] = half_of(scale[i]);
  to.minimum = half_of(-minimum[i]);
  for (int j = 0; j < 32; ++j) to.quant[j] = low[32 * (i / 2) + j] >> (i % 2 * 4) & 15;
}
inline void split_q4_k(const uint8_t* b, int i, QuantBlock& to) {
  split_k(b, b + 16, i, to);
  join_pairs(to.quant, to.quant);
}
inline void split_q5_k(const uint8_t* b, int i, QuantBlock& to) {
  split_k(b, b + 48, i, to);
  for (int j = 0; j < 32; ++j) to.quant[j] = uint8_t(to.quant[j] | (b[16 + j] >> i & 1) << 4);
}
inline void split_q6_k(const uint8_t* b, int i, QuantBlock& to) {
  const float d = half_at(b + 208);
  for (int half = 0; half < 2; ++half) to.scale[half] = half_of(d * float(int(int8_t(b[192 + 2 * i + half]))));
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
  to.scale[0] = half_of(most / 127.0f);
  const float scale = widen(to.scale[0]), factor = scale > 0 ? 1.0f / scale : 0.0f;
  for (int i = 0; i < kQuantBlock; ++i) to.quant[i] = uint8_t(1 + nearest(x[i] * factor + 127.0f, 254));
}

// Scale and minimum with the least squared error, each input's weighted with its importance (32 numbers, none negative),
// among the few that are tried: the range is spread over a few more and a few less than 15 steps, each time with the line
// fitted to the quants that this gives.
inline void quantize_q4(const float* x, const float* importance, QuantBlock& to) {
  constexpr int n = kQuantBlock / W;
  const float low = *std::min_element(x, x + kQuantBlock), high = *std::max_element(x, x + kQuantBlock);
  F values[n], weights[n], quants[n], all = {}, products = {};  // values above the lowest: nothing cancels in sums of them
  for (int i = 0; i < n; ++i) {
    values[i] = load(x + i * W) - splat(low);
    weights[i] = load(importance + i * W);
    all = all + weights[i];
    products = products + weights[i] * values[i];
  }
  const double h = sum(all), hx = sum(products);
  float best = -1, best_scale = 0, best_minimum = 0;
  const auto round = [&](float scale, float minimum) {
    const F factor = splat(scale > 0 ? 1.0f / scale : 0.0f), offset = splat(minimum - low), magic = splat(12582912.0f);
    for (int i = 0; i < n; ++i)  // adding 1.5 * 2^23 rounds to an integer
      quants[i] = min(max((values[i] - offset) * factor, F{}), splat(15.0f)) + magic - magic;
  };
  const auto attempt = [&](float scale, float minimum) {
    scale = rounded_half(scale);
    minimum = rounded_half(minimum);
    round(scale, minimum);
    F errors = {};
    for (int i = 0; i < n; ++i) {
      const F miss = splat(scale) * quants[i] + splat(minimum - low) - values[i];
      errors = errors + weights[i] * miss * miss;
    }
    const float error = sum(errors);
    if (best >= 0 && !(error < best)) return;  // nor where a fit has left float16
    best = error;
    best_scale = scale;
    best_minimum = minimum;
  };
  for (const float steps : {15.0f, 12.5f, 13.5f, 14.0f, 14.5f, 15.5f, 16.5f, 17.5f}) {
    attempt((high - low) / steps, low + (high - low) * 0.5f * (1.0f - 15.0f / steps));
    F q = {}, qq = {}, qx = {};
    for (int i = 0; i < n; ++i) {
      const F weighted = weights[i] * quants[i];
      q = q + weighted;
      qq = qq + weighted * quants[i];
      qx = qx + weighted * values[i];
    }
    const double hq = sum(q), hqq = sum(qq), hqx = sum(qx), spread = h * hqq - hq * hq;
    if (spread <= 1e-6 * h * hqq) continue;
    const double scale = (h * hqx - hq * hx) / spread;
    attempt(float(scale), low + float((hx - scale * hq) / h));
  }
  round(best_scale, best_minimum);
  to.scale[0] = half_of(best_scale);
  to.minimum = half_of(best_minimum);
  uint8_t found[kQuantBlock];
  for (int i = 0; i < kQuantBlock; ++i) found[i] = uint8_t(quants[i / W][i % W]);
  join_pairs(found, to.quant);
}

}  // namespace quire::packing
