// Integer dot products of packed quants with quantised inputs, exact in int32. R rows of the input share the loads of the
// quants.
//
// Without a four-byte dot product (VNNI) pairs are multiplied to int16 (vpmaddubsw) and added there as long as they fit:
// a pair of quants up to `most` times inputs up to 127 is at most 254 * most, so 15 allows eight groups, 31 four, 63 two.
// Quants of eight bits are split into halves of four.
#pragma once

#include "common/vec.h"
#include "packed/layout.h"

namespace quire::QUIRE_ISA {

constexpr int V = kPanelRows / W;  // vectors across a panel

typedef uint8_t B __attribute__((vector_size(W * 4)));   // four quants of W outputs
typedef int16_t S __attribute__((vector_size(W * 4)));   // two sums of W outputs
typedef uint16_t SU __attribute__((vector_size(W * 4)));

QUIRE_INLINE B load_quants(const uint8_t* from) {
  B result;
  __builtin_memcpy(&result, from, sizeof result);
  return result;
}

QUIRE_INLINE I splat(int32_t x) { return I{} + x; }

// The same four inputs for every output.
QUIRE_INLINE B splat_inputs(const int8_t* from) {
  int32_t four;
  __builtin_memcpy(&four, from, sizeof four);
  return (B)splat(four);
}

// Even and odd products of a pair, added: no sum may leave int16.
QUIRE_INLINE S pair_dot(B quants, B inputs) {
#if defined(__AVX512BW__)
  return (S)_mm512_maddubs_epi16((__m512i)quants, (__m512i)inputs);
#elif defined(__AVX2__)
  return (S)_mm256_maddubs_epi16((__m256i)quants, (__m256i)inputs);
#else
  const SU q = (SU)quants;
  return (S)(q & 255) * ((S)((SU)inputs << 8) >> 8) + (S)(q >> 8) * ((S)inputs >> 8);
#endif
}

// factor * (even + odd) in int32.
template <int Factor>
QUIRE_INLINE I add_pairs(S pairs) {
#if defined(__AVX512BW__)
  return (I)_mm512_madd_epi16((__m512i)pairs, _mm512_set1_epi16(Factor));
#elif defined(__AVX2__)
  return (I)_mm256_madd_epi16((__m256i)pairs, _mm256_set1_epi16(Factor));
#else
  return (((I)((U)pairs << 16) >> 16) + ((I)pairs >> 16)) * Factor;
#endif
}

QUIRE_INLINE B low_half(B x) { return x & 15; }
QUIRE_INLINE B high_half(B x) { return (B)((SU)x >> 4) & 15; }

#if defined(__AVX512VNNI__)

// sum + the products of the quants of each output with the four inputs at `from`, which it broadcasts itself: GCC 12 makes two instructions of that.
QUIRE_INLINE I dot(I sum, B quants, const int8_t* from) {
#if defined(QUIRE_EMULATE_VNNI)
  return (I)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)quants, (__m512i)splat_inputs(from));
#else
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(quants), "m"(*reinterpret_cast<const int32_t*>(from)));
  return sum;
#endif
}

// dots[r][v] = the sums over the 32 inputs of a block of pairs (see layout.h).
template <int R>
QUIRE_INLINE void dot_pairs(const uint8_t* pairs, const int8_t* const* x, I (&dots)[R][V]) {
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) dots[r][v] = I{};
  for (int g = 0; g < 4; ++g)
    for (int v = 0; v < V; ++v) {
      const B both = load_quants(pairs + g * 64 + v * sizeof(B)), low = low_half(both), high = high_half(both);
      for (int r = 0; r < R; ++r) dots[r][v] = dot(dots[r][v], low, x[r] + 4 * g);
      for (int r = 0; r < R; ++r) dots[r][v] = dot(dots[r][v], high, x[r] + 4 * g + 16);
    }
}

// dots[r][v] = the sums over 4 * Groups inputs.
template <int R, int Groups, int Most>
QUIRE_INLINE void dot_bytes(const uint8_t* quants, const int8_t* const* x, I (&dots)[R][V]) {
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) dots[r][v] = I{};
  for (int g = 0; g < Groups; ++g)
    for (int v = 0; v < V; ++v) {
      const B q = load_quants(quants + g * 64 + v * sizeof(B));
      for (int r = 0; r < R; ++r) dots[r][v] = dot(dots[r][v], q, x[r] + 4 * g);
    }
}

#else

// The order of these is not left to the compiler: of plain code GCC 12 makes all products of a block first and spills them.
QUIRE_INLINE S pair_dot_now(B quants, const int8_t* from) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  B inputs;
  asm volatile("vpbroadcastd %1, %0" : "=x"(inputs) : "m"(*reinterpret_cast<const int32_t*>(from)));
  S product;
  asm volatile("vpmaddubsw %2, %1, %0" : "=x"(product) : "x"(quants), "x"(inputs));
  return product;
#else
  return pair_dot(quants, splat_inputs(from));
#endif
}

QUIRE_INLINE void add_now(S& sum, S products) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  asm volatile("vpaddw %1, %0, %0" : "+x"(sum) : "x"(products));
#else
  sum += products;
#endif
}

template <int R>
QUIRE_INLINE void dot_pairs(const uint8_t* pairs, const int8_t* const* x, I (&dots)[R][V]) {
  S sums[R][V];
  for (int v = 0; v < V; ++v)
    for (int g = 0; g < 4; ++g) {
      const B both = load_quants(pairs + g * 64 + v * sizeof(B)), low = low_half(both), high = high_half(both);
      for (int r = 0; r < R; ++r) {
        S one = pair_dot_now(low, x[r] + 4 * g);
        const S two = pair_dot_now(high, x[r] + 4 * g + 16);
        add_now(one, two);
        if (g == 0)
          sums[r][v] = one;
        else
          add_now(sums[r][v], one);
      }
    }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) dots[r][v] = add_pairs<1>(sums[r][v]);
}

// Quants up to 63: Run groups are added in int16.
template <int R, int Groups, int Run>
QUIRE_INLINE void dot_small(const uint8_t* quants, const int8_t* const* x, I (&dots)[R][V]) {
  for (int v = 0; v < V; ++v)
    for (int first = 0; first < Groups; first += Run) {
      S sums[R];
      for (int g = first; g < first + Run; ++g) {
        const B q = load_quants(quants + g * 64 + v * sizeof(B));
        for (int r = 0; r < R; ++r) {
          const S pair = pair_dot(q, splat_inputs(x[r] + 4 * g));
          sums[r] = g == first ? pair : sums[r] + pair;
        }
      }
      for (int r = 0; r < R; ++r) dots[r][v] = (first == 0 ? I{} : dots[r][v]) + add_pairs<1>(sums[r]);
    }
}

template <int R, int Groups, int Most>
QUIRE_INLINE void dot_bytes(const uint8_t* quants, const int8_t* const* x, I (&dots)[R][V]) {
  if constexpr (Most <= 31) return dot_small<R, Groups, 4>(quants, x, dots);
  if constexpr (Most <= 63) return dot_small<R, Groups, 2>(quants, x, dots);
  for (int v = 0; v < V; ++v) {
    S low_sums[R], high_sums[R];
    for (int g = 0; g < Groups; ++g) {
      const B q = load_quants(quants + g * 64 + v * sizeof(B)), low = low_half(q), high = high_half(q);
      for (int r = 0; r < R; ++r) {
        const S low_pair = pair_dot_now(low, x[r] + 4 * g), high_pair = pair_dot_now(high, x[r] + 4 * g);
        if (g == 0) {
          low_sums[r] = low_pair;
          high_sums[r] = high_pair;
        } else {
          add_now(low_sums[r], low_pair);
          add_now(high_sums[r], high_pair);
        }
      }
    }
    for (int r = 0; r < R; ++r) dots[r][v] = add_pairs<1>(low_sums[r]) + add_pairs<16>(high_sums[r]);
  }
}

#endif

}  // namespace quire::QUIRE_ISA
