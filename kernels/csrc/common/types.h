// Plain types that the drivers and the per-ISA kernels share. No Python, no torch, no std containers: this header is
// compiled once per instruction set, and an inline std function compiled with AVX-512 must never win at link time.
#pragma once

#include <cstddef>
#include <cstdint>

namespace quire {

enum class DType : int { f32, bf16, f16, u8, i32, i64 };

// The few functions here are inlined everywhere: a copy of their own could be compiled with AVX-512 and then be shared.
#define QUIRE_SHARED_INLINE inline __attribute__((always_inline))

QUIRE_SHARED_INLINE constexpr int64_t size_of(DType type) {
  return type == DType::u8 ? 1 : (type == DType::bf16 || type == DType::f16) ? 2 : type == DType::i64 ? 8 : 4;
}

constexpr int kMaxRank = 4;

// A strided tensor that somebody else owns. Strides count elements; missing dimensions have size 1.
struct Tensor {
  char* data = nullptr;
  DType type = DType::f32;
  int64_t shape[kMaxRank] = {1, 1, 1, 1};
  int64_t stride[kMaxRank] = {0, 0, 0, 0};

  template <class T>
  QUIRE_SHARED_INLINE T* as() const {
    return reinterpret_cast<T*>(data);
  }
  // Address of element [i][j][k].
  QUIRE_SHARED_INLINE char* at(int64_t i, int64_t j = 0, int64_t k = 0) const {
    return data + (i * stride[0] + j * stride[1] + k * stride[2]) * size_of(type);
  }
};

// ---- attention ----

// Keys are read in tiles of kKeyTile and reduced in partitions of kPartition, both counted from the first token of the
// sequence. A row's additions are therefore the same whatever shares its batch, its query tile or its thread.
constexpr int kKeyTile = 64;
constexpr int kPartition = 512;

struct AttentionCall {
  Tensor query, key_cache, value_cache, block_tables, out;
  int num_kv_heads, group, head_size, block_size;
  float scale;
  int window;     // newest keys a row sees, its own included; 0: all
  float softcap;  // scores x become softcap * tanh(x / softcap); 0: they stay

  // The first key that the query at a position sees.
  QUIRE_SHARED_INLINE int first_seen(int position) const {
    return window > 0 && position >= window ? position - window + 1 : 0;
  }
  // Whether it sees any of the keys [first, last).
  QUIRE_SHARED_INLINE bool sees(int position, int first, int last) const {
    return first <= position && last > first_seen(position);
  }
};

// One query tile of one sequence and some of its KV heads, over the keys [first_key, last_key).
struct AttentionItem {
  int sequence, kv_head, num_heads;
  int first_row, num_tokens;  // rows of query
  int first_position;         // of first_row, in its sequence
  int first_key, last_key;    // first_key is a multiple of kPartition
  float* partial;             // null: write the result to out. Else a record {max, sum, acc[padded head]} per row
};

// Floats of scratch that attend() needs, 64-byte aligned and initialised (to anything finite).
QUIRE_SHARED_INLINE constexpr int64_t padded_head(int head_size) { return (head_size + 15) / 16 * 16; }
QUIRE_SHARED_INLINE constexpr int64_t attention_scratch(int num_rows, int head_size) {
  return num_rows * (3 * padded_head(head_size) + kKeyTile + 6 * 16) + 2 * kKeyTile * padded_head(head_size);
}

// ---- one table of kernels per instruction set ----

struct Kernels {
  // The items[0..count), one after the other.
  void (*attend)(const AttentionCall&, const AttentionItem* items, int count, float* scratch);
  // Fold the partials of the items[0..count) of one query tile, in order, and write out.
  void (*merge)(const AttentionCall&, const AttentionItem* items, int count, float* scratch);
  void (*copy_row)(const void* from, DType from_type, void* to, DType to_type, int64_t count);
  void (*rms_norm_row)(const void* x, void* residual, const void* weight, void* out, DType type, int64_t count, float eps,
                       float offset);
  void (*rope_row)(void* head, DType type, const float* cos, const float* sin, int64_t half);
  void (*silu_mul_row)(const void* gate, const void* up, void* out, DType type, int64_t count);
  void (*gelu_tanh_mul_row)(const void* gate, const void* up, void* out, DType type, int64_t count);
  void (*softcap_row)(float* x, int64_t count, float cap);  // cap * tanh(x / cap), in place
  void (*dequantize)(const uint8_t* raw, int ggml_type, int64_t blocks, void* out, DType out_type);
};

extern const Kernels kPortableKernels;
#if defined(QUIRE_X86)
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
#endif

}  // namespace quire
