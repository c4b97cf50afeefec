// Unpacking of GGUF block formats (the GGUF specification's ggml types). One block at a time to fp32, then rounded to the
// output type. Products and sums are kept apart (no fma), so results equal the gguf package's bit for bit.
#pragma once

#include "rows/kernels.h"

namespace quire::QUIRE_ISA {

QUIRE_INLINE float half_at(const uint8_t* from) {
  f16 half;
  __builtin_memcpy(&half, from, sizeof half);
  return widen(half);
}

struct Q4_0 {  // f16 d; 16 bytes of nibbles
  static constexpr int elements = 32, bytes = 18;
  static void unpack(const uint8_t* b, float* to) {
    const float d = half_at(b);
    for (int i = 0; i < 16; ++i) {
      to[i] = d * float(int(b[2 + i] & 15) - 8);
      to[i + 16] = d * float(int(b[2 + i] >> 4) - 8);
    }
  }
};

struct Q4_1 {  // f16 d, m; 16 bytes of nibbles
  static constexpr int elements = 32, bytes = 20;
  static void unpack(const uint8_t* b, float* to) {
    const float d = half_at(b), m = half_at(b + 2);
    for (int i = 0; i < 16; ++i) {
      to[i] = d * float(int(b[4 + i] & 15)) + m;
      to[i + 16] = d * float(int(b[4 + i] >> 4)) + m;
    }
  }
};

// The fifth bits of 32 elements, each worth 16.
QUIRE_INLINE void fifth_bits(const uint8_t* from, int* to) {
  uint32_t bits;
  __builtin_memcpy(&bits, from, sizeof bits);
  for (int i = 0; i < 32; ++i) to[i] = int((bits >> i) & 1u) << 4;
}

struct Q5_0 {  // f16 d; 32 fifth bits; 16 bytes of nibbles
  static constexpr int elements = 32, bytes = 22;
  static void unpack(const uint8_t* b, float* to) {
    const float d = half_at(b);
    int high[32];
    fifth_bits(b + 2, high);
    for (int i = 0; i < 16; ++i) {
      to[i] = d * float((int(b[6 + i] & 15) | high[i]) - 16);
      to[i + 16] = d * float((int(b[6 + i] >> 4) | high[i + 16]) - 16);
    }
  }
};

struct Q5_1 {  // f16 d, m; 32 fifth bits; 16 bytes of nibbles
  static constexpr int elements = 32, bytes = 24;
  static void unpack(const uint8_t* b, float* to) {
    const float d = half_at(b), m = half_at(b + 2);
    int high[32];
    fifth_bits(b + 4, high);
    for (int i = 0; i < 16; ++i) {
      to[i] = d * float(int(b[8 + i] & 15) | high[i]) + m;
      to[i + 16] = d * float(int(b[8 + i] >> 4) | high[i + 16]) + m;
    }
  }
};

struct Q8_0 {  // f16 d; 32 int8
  static constexpr int elements = 32, bytes = 34;
  static void unpack(const uint8_t* b, float* to) {
    const float d = half_at(b);
    for (int i = 0; i < 32; ++i) to[i] = d * float(int(int8_t(b[2 + i])));
  }
};

// Eight 6-bit scales and eight 6-bit minima in 12 bytes.
QUIRE_INLINE void k_scales(const uint8_t* b, float d, float dmin, float* scale, float* minimum) {
  for (int i = 0; i < 4; ++i) {
    scale[i] = d * float(int(b[i] & 63));
    minimum[i] = dmin * float(int(b[4 + i] & 63));
    scale[4 + i] = d * float(int(b[8 + i] & 15) | int(b[i] >> 6) << 4);
    minimum[4 + i] = dmin * float(int(b[8 + i] >> 4) | int(b[4 + i] >> 6) << 4);
  }
}

struct Q4_K {  // f16 d, dmin; 12 bytes of scales; 128 bytes of nibbles
  static constexpr int elements = 256, bytes = 144;
  static void unpack(const uint8_t* b, float* to) {
    float scale[8], minimum[8];
    k_scales(b + 4, half_at(b), half_at(b + 2), scale, minimum);
    for (int pair = 0; pair < 4; ++pair) {
      const uint8_t* q = b + 16 + 32 * pair;
      float* low = to + 64 * pair;
      for (int i = 0; i < 32; ++i) {
        low[i] = scale[2 * pair] * float(int(q[i] & 15)) - minimum[2 * pair];
        low[i + 32] = scale[2 * pair + 1] * float(int(q[i] >> 4)) - minimum[2 * pair + 1];
      }
    }
  }
};

struct Q5_K {  // f16 d, dmin; 12 bytes of scales; 32 bytes of fifth bits, bit g for group g; 128 bytes of nibbles
  static constexpr int elements = 256, bytes = 176;
  static void unpack(const uint8_t* b, float* to) {
    float scale[8], minimum[8];
    k_scales(b + 4, half_at(b), half_at(b + 2), scale, minimum);
    const uint8_t* high = b + 16;
    for (int pair = 0; pair < 4; ++pair) {
      const uint8_t* q = b + 48 + 32 * pair;
      float* low = to + 64 * pair;
      for (int i = 0; i < 32; ++i) {
        const int first = int(q[i] & 15) | int(high[i] >> (2 * pair) & 1) << 4;
        const int second = int(q[i] >> 4) | int(high[i] >> (2 * pair + 1) & 1) << 4;
        low[i] = scale[2 * pair] * float(first) - minimum[2 * pair];
        low[i + 32] = scale[2 * pair + 1] * float(second) - minimum[2 * pair + 1];
      }
    }
  }
};

struct Q6_K {  // 128 bytes of low nibbles; 64 bytes of high pairs; 16 int8 scales; f16 d
  static constexpr int elements = 256, bytes = 210;
  static void unpack(const uint8_t* b, float* to) {
    const float d = half_at(b + 208);
    float scale[16];
    for (int i = 0; i < 16; ++i) scale[i] = d * float(int(int8_t(b[192 + i])));
    for (int part = 0; part < 8; ++part) {  // 32 elements each
      const uint8_t* low = b + 64 * (part / 4) + 32 * (part % 2);
      const uint8_t* high = b + 128 + 32 * (part / 4);
      const int low_shift = part % 4 / 2 * 4, high_shift = part % 4 * 2;
      for (int i = 0; i < 32; ++i) {
        const int q = (int(low[i] >> low_shift & 15) | int(high[i] >> high_shift & 3) << 4) - 32;
        to[32 * part + i] = scale[2 * part + i / 16] * float(q);
      }
    }
  }
};

// Not compiled for each output type: a block is unpacked to fp32 and copied from there.
template <class Format>
void unpack_blocks(const uint8_t* raw, int64_t blocks, void* out, DType out_type) {
  float buffer[Format::elements];
  auto* to = static_cast<char*>(out);
  for (int64_t block = 0; block < blocks; ++block) {
    if (out_type == DType::f32) {
      Format::unpack(raw, reinterpret_cast<float*>(to));
    } else {
      Format::unpack(raw, buffer);
      copy_row(buffer, DType::f32, to, out_type, Format::elements);
    }
    raw += Format::bytes;
    to += Format::elements * size_of(out_type);
  }
}

inline void dequantize(const uint8_t* raw, int ggml_type, int64_t blocks, void* out, DType out_type) {
  switch (ggml_type) {
    case 0: return copy_row(raw, DType::f32, out, out_type, blocks);
    case 1: return copy_row(raw, DType::f16, out, out_type, blocks);
    case 30: return copy_row(raw, DType::bf16, out, out_type, blocks);
    case 2: return unpack_blocks<Q4_0>(raw, blocks, out, out_type);
    case 3: return unpack_blocks<Q4_1>(raw, blocks, out, out_type);
    case 6: return unpack_blocks<Q5_0>(raw, blocks, out, out_type);
    case 7: return unpack_blocks<Q5_1>(raw, blocks, out, out_type);
    case 8: return unpack_blocks<Q8_0>(raw, blocks, out, out_type);
    case 12: return unpack_blocks<Q4_K>(raw, blocks, out, out_type);
    case 13: return unpack_blocks<Q5_K>(raw, blocks, out, out_type);
    case 14: return unpack_blocks<Q6_K>(raw, blocks, out, out_type);
    default: __builtin_trap();  // quire_kernels.ops refuses other types
  }
}

}  // namespace quire::QUIRE_ISA
