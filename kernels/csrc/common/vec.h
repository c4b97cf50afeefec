// Vectors of W floats for the instruction set this file is compiled for, on GCC/Clang vector extensions. Only fma, half
// precision and a horizontal sum need intrinsics. Everything is always_inline and in a namespace of its own, so no symbol
// of one instruction set can be taken for another's. Compile with -ffp-contract=off: an operation happens where it is
// written, so a row's bits do not depend on how many rows a loop was unrolled for.
#pragma once

#include <cstdint>

#include "common/types.h"

#if defined(__AVX2__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

#define QUIRE_INLINE static inline __attribute__((always_inline))

namespace quire::QUIRE_ISA {

#if defined(__AVX512F__)
constexpr int W = 16;
#elif defined(__AVX2__)
constexpr int W = 8;
#else
constexpr int W = 4;
#endif

// Rows of queries that share one pass over the keys: what the registers hold (R*4 accumulators, R queries, one key).
constexpr int kRows = W == 16 ? 6 : 3;

typedef float F __attribute__((vector_size(W * 4)));
typedef float F4 __attribute__((vector_size(16)));
typedef uint32_t U __attribute__((vector_size(W * 4)));
typedef int32_t I __attribute__((vector_size(W * 4)));
typedef uint16_t H __attribute__((vector_size(W * 2)));

struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};

template <class To, class From>
QUIRE_INLINE To bits_of(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To result;
  __builtin_memcpy(&result, &value, sizeof result);
  return result;
}

QUIRE_INLINE F splat(float x) {
  // Of the loop over the lanes GCC 12 makes one insertion per lane.
#if defined(__AVX512F__)
  return (F)_mm512_set1_ps(x);
#elif defined(__AVX2__)
  return (F)_mm256_set1_ps(x);
#else
  if constexpr (W == 4) return F{x, x, x, x};
  F result;
  for (int i = 0; i < W; ++i) result[i] = x;
  return result;
#endif
}

QUIRE_INLINE F fma(F a, F b, F c) {
#if defined(__AVX512F__)
  return (F)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
  return (F)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  return a * b + c;
#endif
}

// The second argument where one is NaN.
QUIRE_INLINE F max(F a, F b) { return a > b ? a : b; }
QUIRE_INLINE F min(F a, F b) { return a < b ? a : b; }

// ---- load and store, scalar and vector, by element type; the stores round to nearest even and keep NaN ----

QUIRE_INLINE float widen(float x) { return x; }
QUIRE_INLINE float widen(bf16 x) { return bits_of<float>(uint32_t(x.bits) << 16); }
QUIRE_INLINE float widen(f16 x) {
  const uint32_t magnitude = x.bits & 0x7fffu, sign = uint32_t(x.bits & 0x8000u) << 16;
  if (magnitude >= 0x7c00u) return bits_of<float>(sign | 0x7f800000u | (magnitude << 13));
  return bits_of<float>(sign | bits_of<uint32_t>(bits_of<float>(magnitude << 13) * 0x1p112f));
}

QUIRE_INLINE void narrow(float x, float* to) { *to = x; }
QUIRE_INLINE void narrow(float x, bf16* to) {
  const uint32_t bits = bits_of<uint32_t>(x);
  to->bits = x != x ? 0x7fc0u : uint16_t((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
QUIRE_INLINE void narrow(float x, f16* to) {
  const uint32_t bits = bits_of<uint32_t>(x), sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t half;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u;
  } else if (magnitude >= 0x477ff000u) {  // 65520 and above round to infinity
    half = 0x7c00u;
  } else if (magnitude < 0x38800000u) {  // subnormal: the addition aligns and rounds the mantissa
    half = bits_of<uint32_t>(bits_of<float>(magnitude) + 0.5f) - 0x3f000000u;
  } else {
    half = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  }
  to->bits = uint16_t(sign | half);
}

QUIRE_INLINE F load(const float* from) {
  F result;
  __builtin_memcpy(&result, from, sizeof result);
  return result;
}
QUIRE_INLINE F load(const bf16* from) {
#if defined(__AVX512F__)
  return bits_of<F>(bits_of<U>(_mm512_maskz_cvtepu16_epi32(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)))) << 16);
#elif defined(__AVX2__)
  return bits_of<F>(bits_of<U>(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)))) << 16);
#else
  H half;
  __builtin_memcpy(&half, from, sizeof half);
  return bits_of<F>(__builtin_convertvector(half, U) << 16);
#endif
}
QUIRE_INLINE F load(const f16* from) {
#if defined(__AVX512F__)
  return (F)_mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#elif defined(__F16C__)
  return (F)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#else
  F result;
  for (int i = 0; i < W; ++i) result[i] = widen(from[i]);
  return result;
#endif
}

QUIRE_INLINE void store(F x, float* to) { __builtin_memcpy(to, &x, sizeof x); }
QUIRE_INLINE void store(F x, bf16* to) {
  const U bits = bits_of<U>(x);
  const U rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const U result = (x != x) ? U{} + 0x7fc0u : rounded;
  const H half = __builtin_convertvector(result, H);
  __builtin_memcpy(to, &half, sizeof half);
}
QUIRE_INLINE void store(F x, f16* to) {
#if defined(__AVX512F__)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_maskz_cvtps_ph(0xffff, (__m512)x, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__F16C__)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT));
#else
  for (int i = 0; i < W; ++i) narrow(x[i], to + i);
#endif
}

// ---- horizontal ----

// The sums of four vectors. The order of additions is fixed: halves are folded until four lanes are left.
QUIRE_INLINE F4 sum4(F a, F b, F c, F d) {
#if defined(__AVX2__)
  const auto fold = [](F v) __attribute__((always_inline)) {
    if constexpr (W == 8) {
      return bits_of<__m256>(v);
    } else {
      struct Halves {
        __m256 low, high;
      };
      const auto halves = bits_of<Halves>(v);
      return halves.low + halves.high;
    }
  };
  const __m256 ab = _mm256_hadd_ps(fold(a), fold(b)), cd = _mm256_hadd_ps(fold(c), fold(d));
  const __m256 abcd = _mm256_hadd_ps(ab, cd);
  return (F4)_mm_add_ps(_mm256_castps256_ps128(abcd), _mm256_extractf128_ps(abcd, 1));
#else
  const F* all[4] = {&a, &b, &c, &d};
  F4 result;
  for (int i = 0; i < 4; ++i) {
    float lanes[W];
    __builtin_memcpy(lanes, all[i], sizeof lanes);
    for (int width = W / 2; width > 0; width /= 2)
      for (int j = 0; j < width; ++j) lanes[j] += lanes[j + width];
    result[i] = lanes[0];
  }
  return result;
#endif
}

// Halves are laid on each other until one lane is left: a fixed order. Of a loop over lanes GCC 12 takes every lane out alone.
template <class T, class Lanes, class Operation>
QUIRE_INLINE T fold_lanes(Lanes lanes, Operation operation) {
  if constexpr (sizeof(Lanes) == 2 * sizeof(T)) {
    return operation(lanes[0], lanes[1]);
  } else {
    typedef T Half __attribute__((vector_size(sizeof(Lanes) / 2)));
    struct Halves {
      Half low, high;
    };
    const auto halves = bits_of<Halves>(lanes);
    return fold_lanes<T>(Half(operation(halves.low, halves.high)), operation);
  }
}

QUIRE_INLINE float sum(F a) {
  return fold_lanes<float>(a, [](auto x, auto y) __attribute__((always_inline)) { return x + y; });
}

QUIRE_INLINE int32_t sum(I a) {
  return fold_lanes<int32_t>(a, [](auto x, auto y) __attribute__((always_inline)) { return x + y; });
}

QUIRE_INLINE float maximum(F a) {
  return fold_lanes<float>(a, [](auto x, auto y) __attribute__((always_inline)) { return x > y ? x : y; });
}

QUIRE_INLINE I lane_numbers() {
  I result;
  for (int i = 0; i < W; ++i) result[i] = i;
  return result;
}

// (2^f - 1) / f on [-1/2, 1/2], a Taylor polynomial.
QUIRE_INLINE F exp2_slope(F f) {
  F p = splat(1.5252733804059840e-5f);
  p = fma(p, f, splat(1.5403530393381609e-4f));
  p = fma(p, f, splat(1.3333558146428443e-3f));
  p = fma(p, f, splat(9.6181291076284772e-3f));
  p = fma(p, f, splat(5.5504108664821580e-2f));
  p = fma(p, f, splat(2.4022650695910072e-1f));
  return fma(p, f, splat(6.9314718055994531e-1f));
}

// 2^x for x <= 127, within 2 ulp; 0 below -125; exactly 1 at 0; NaN for NaN. Round to an integer n by adding 1.5 * 2^23,
// whose low bits then hold n; the rest is a polynomial, times 2^n.
QUIRE_INLINE F exp2(F x) {
  const F floor = splat(-125.0f), magic = splat(12582912.0f);
  const F clamped = max(floor, x);  // in this order, which keeps NaN
  const F shifted = clamped + magic;
  const F f = clamped - (shifted - magic);
  const F p = fma(exp2_slope(f), f, splat(1.0f));
  const F power = bits_of<F>((bits_of<U>(shifted) << 23) + 0x3f800000u);  // of two
  return x < floor ? F{} : p * power;
}

// (e^2x - 1) / (e^2x + 1), within 4 ulp. e^2|x| - 1 is put together from 2^f - 1, so that nothing cancels near 0.
QUIRE_INLINE F tanh(F x) {
  const U sign = bits_of<U>(x) & 0x80000000u;
  const F magnitude = min(bits_of<F>(bits_of<U>(x) & 0x7fffffffu), splat(10.0f)), magic = splat(12582912.0f);
  const F power = magnitude * splat(2.8853900817779268f);
  const F shifted = power + magic;
  const F f = power - (shifted - magic);
  const F whole = bits_of<F>((bits_of<U>(shifted) << 23) + 0x3f800000u);  // 2^n
  const F e = fma(whole, exp2_slope(f) * f, whole - 1.0f);
  const F result = bits_of<F>(bits_of<U>(e / (e + 2.0f)) | sign);
  return x != x ? x : result;
}

}  // namespace quire::QUIRE_ISA
