// AVX-512 on a CPU without it, for tests: those of its intrinsics that the kernels use, by SIMDe's functions or from two
// halves. The rest of the kernels are vectors of the compiler, which splits what the target does not have. A build with
// QUIRE_EMULATE_AVX512 puts this header before all else in the files for AVX-512.
#pragma once

#include <immintrin.h>
#include <simde/x86/avx512/dpbf16.h>
#include <simde/x86/avx512/dpbusd.h>
#include <simde/x86/avx512/fmadd.h>
#include <simde/x86/avx512/madd.h>
#include <simde/x86/avx512/maddubs.h>
#include <simde/x86/avx512/set1.h>

namespace quire::emulated {

#define QUIRE_EMULATED static inline __attribute__((always_inline))

QUIRE_EMULATED __m128i half(__m256i x, int i) {
  return i == 0 ? _mm256_castsi256_si128(x) : _mm256_extracti128_si256(x, 1);
}

QUIRE_EMULATED __m512i cvtepu16_epi32(__m256i x) {
  const __m256i halves[] = {_mm256_cvtepu16_epi32(half(x, 0)), _mm256_cvtepu16_epi32(half(x, 1))};
  __m512i result;
  __builtin_memcpy(&result, halves, sizeof result);
  return result;
}

QUIRE_EMULATED __m512 cvtph_ps(__m256i x) {
  const __m256 halves[] = {_mm256_cvtph_ps(half(x, 0)), _mm256_cvtph_ps(half(x, 1))};
  __m512 result;
  __builtin_memcpy(&result, halves, sizeof result);
  return result;
}

QUIRE_EMULATED __m256i cvtps_ph(__m512 x) {
  __m256 halves[2];
  __builtin_memcpy(halves, &x, sizeof x);
  return _mm256_set_m128i(_mm256_cvtps_ph(halves[1], _MM_FROUND_TO_NEAREST_INT),
                          _mm256_cvtps_ph(halves[0], _MM_FROUND_TO_NEAREST_INT));
}

#undef QUIRE_EMULATED

}  // namespace quire::emulated

#define _mm512_set1_ps(x) ((__m512)simde_mm512_set1_ps(x))
#define _mm512_set1_epi16(x) ((__m512i)simde_mm512_set1_epi16(x))
#define _mm512_fmadd_ps(a, b, c) ((__m512)simde_mm512_fmadd_ps((simde__m512)(a), (simde__m512)(b), (simde__m512)(c)))
#define _mm512_maddubs_epi16(a, b) ((__m512i)simde_mm512_maddubs_epi16((simde__m512i)(a), (simde__m512i)(b)))
#define _mm512_madd_epi16(a, b) ((__m512i)simde_mm512_madd_epi16((simde__m512i)(a), (simde__m512i)(b)))
#define _mm512_dpbusd_epi32(sum, a, b) \
  ((__m512i)simde_mm512_dpbusd_epi32((simde__m512i)(sum), (simde__m512i)(a), (simde__m512i)(b)))
#define _mm512_dpbf16_ps(sum, a, b) \
  ((__m512)simde_mm512_dpbf16_ps((simde__m512)(sum), (simde__m512bh)(a), (simde__m512bh)(b)))
// Their masks let all lanes through.
#define _mm512_maskz_cvtepu16_epi32(mask, x) (quire::emulated::cvtepu16_epi32(x))
#define _mm512_maskz_cvtph_ps(mask, x) (quire::emulated::cvtph_ps(x))
#define _mm512_maskz_cvtps_ph(mask, x, rounding) (quire::emulated::cvtps_ph(x))

#define __AVX512F__ 1
#define __AVX512BW__ 1
#if defined(QUIRE_EMULATE_VNNI)
#define __AVX512VNNI__ 1
#endif
#if defined(QUIRE_EMULATE_BF16)
#define __AVX512BF16__ 1
#endif
