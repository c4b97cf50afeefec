// The records that products read instead of their input (see layout.h), one row at a time.
#pragma once

#include "packed/dot.h"

namespace quire::QUIRE_ISA {

// Views into the int8 record of one row.
struct QuantRow {
  const int8_t* quants;
  const float *scales, *sums;
  const int32_t *totals, *halves;

  QUIRE_INLINE QuantRow at(const uint8_t* record, int64_t blocks) {
    const auto* scales = reinterpret_cast<const float*>(record + blocks * kQuantBlock);
    const auto* totals = reinterpret_cast<const int32_t*>(scales + 2 * blocks);
    return {reinterpret_cast<const int8_t*>(record), scales, scales + blocks, totals, totals + blocks};
  }
};

// Blocks whose largest magnitude is below this become zeros: 127 / magnitude would overflow.
constexpr float kSmallest = 0x1p-100f;

// Integers up to 127 in magnitude, as bytes. Of the plain conversion GCC 12 makes one move per lane on AVX2.
QUIRE_INLINE void store_bytes(I values, int8_t* to) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  const auto whole = (__m256i)values;
  const __m128i pairs = _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packs_epi16(pairs, pairs));
#else
  typedef int8_t Narrow __attribute__((vector_size(W)));
  const Narrow narrow = __builtin_convertvector(values, Narrow);
  __builtin_memcpy(to, &narrow, sizeof narrow);
#endif
}

// Quantise 32 inputs; returns the scale.
QUIRE_INLINE float quantize_block(const float* x, int8_t* quants, int32_t* halves) {
  constexpr int n = kQuantBlock / W;
  F values[n], largest = {}, poison = {};
  for (int i = 0; i < n; ++i) {
    values[i] = load(x + i * W);
    largest = max(bits_of<F>(bits_of<U>(values[i]) & 0x7fffffffu), largest);
    poison = poison + values[i] * splat(0.0f);  // NaN of an infinity and of NaN
  }
  const float most = maximum(largest), poisoned = sum(poison);
  const bool finite = poisoned == 0.0f;
  const F factor = splat(finite && most >= kSmallest ? 127.0f / most : 0.0f), magic = splat(12582912.0f);
  I totals[2] = {};
  for (int i = 0; i < n; ++i) {
    // Adding 1.5 * 2^23 rounds to an integer, which the low bits then hold.
    const F shifted = (finite ? values[i] : F{}) * factor + magic;
    const I rounded = bits_of<I>(shifted) - bits_of<I>(magic);
    store_bytes(rounded, quants + i * W);
    totals[i * W / 16] += rounded;
  }
  for (int half = 0; half < 2; ++half) halves[half] = sum(totals[half]);
  return !finite ? __builtin_nanf("") : most >= kSmallest ? most / 127.0f : 0.0f;
}

inline void quantize_row(const float* x, int64_t cols, uint8_t* record) {
  const int64_t blocks = blocks_of(cols);
  const QuantRow to = QuantRow::at(record, blocks);
  for (int64_t b = 0; b < blocks; ++b) {
    float padded[kQuantBlock];
    const float* from = x + b * kQuantBlock;
    if (const int64_t left = cols - b * kQuantBlock; left < kQuantBlock) {
      for (int i = 0; i < kQuantBlock; ++i) padded[i] = i < left ? from[i] : 0.0f;
      from = padded;
    }
    auto* halves = const_cast<int32_t*>(to.halves + 2 * b);
    const float scale = quantize_block(from, const_cast<int8_t*>(to.quants + b * kQuantBlock), halves);
    const int32_t total = halves[0] + halves[1];
    const_cast<float*>(to.scales)[b] = scale;
    const_cast<float*>(to.sums)[b] = scale * float(total);
    const_cast<int32_t*>(to.totals)[b] = total;
  }
}

#if defined(__AVX512BF16__)
constexpr bool kMultipliesBf16 = true;
#else
constexpr bool kMultipliesBf16 = false;
#endif

inline void prepare_row(InputKind kind, const float* x, int64_t cols, uint8_t* record) {
  if (kind == InputKind::int8) return quantize_row(x, cols, record);
  if (kind == InputKind::plain || !kMultipliesBf16) return;
  auto* to = reinterpret_cast<bf16*>(record);
  int64_t i = 0;
  for (; i + W <= cols; i += W) store(load(x + i), to + i);
  for (; i < cols; ++i) narrow(x[i], to + i);
  if (cols % 2 != 0) to[cols].bits = 0;
}

}  // namespace quire::QUIRE_ISA
