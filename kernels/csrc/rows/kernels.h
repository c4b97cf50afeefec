// Kernels that work on one row: norms, rotary embedding, gated activation, copies between types. Sums are fp32, in one
// fixed order per instruction set.
#pragma once

#include "common/vec.h"

namespace quire::QUIRE_ISA {

// Calls f with a typed null pointer for the element type.
template <class Function>
QUIRE_INLINE void with_type(DType type, Function f) {
  switch (type) {
    case DType::bf16: return f(static_cast<bf16*>(nullptr));
    case DType::f16: return f(static_cast<f16*>(nullptr));
    default: return f(static_cast<float*>(nullptr));
  }
}

template <class T>
QUIRE_INLINE float rounded(float x, T*) {
  T to;
  narrow(x, &to);
  return widen(to);
}
template <class T>
QUIRE_INLINE F rounded(F x, T*) {
  T to[W];
  store(x, to);
  return load(to);
}

template <class From, class To>
void copy(const From* from, To* to, int64_t count) {
  const int64_t whole = count / W * W;
  for (int64_t i = 0; i < whole; i += W) store(load(from + i), to + i);
  for (int64_t i = whole; i < count; ++i) narrow(widen(from[i]), to + i);
}

inline void copy_row(const void* from, DType from_type, void* to, DType to_type, int64_t count) {
  if (from_type == to_type) {
    __builtin_memcpy(to, from, count * size_of(to_type));
    return;
  }
  with_type(from_type, [&](auto* f) {
    with_type(to_type, [&](auto* t) {
      copy(static_cast<const decltype(f)>(const_cast<void*>(from)), static_cast<decltype(t)>(to), count);
    });
  });
}

template <class T>
void rms_norm(const T* x, T* residual, const T* weight, T* out, int64_t count, float eps, float offset, T* type) {
  F squares[4] = {};
  float tail = 0.0f;
  if (residual != nullptr) {
    int64_t i = 0;
    for (; i + W <= count; i += W) store(load(residual + i) + load(x + i), residual + i);
    for (; i < count; ++i) narrow(widen(residual[i]) + widen(x[i]), residual + i);
    x = residual;
  }
  int64_t i = 0;
  for (; i + 4 * W <= count; i += 4 * W)
    for (int c = 0; c < 4; ++c) {
      const F v = load(x + i + c * W);
      squares[c] = fma(v, v, squares[c]);
    }
  for (; i + W <= count; i += W) {
    const F v = load(x + i);
    squares[0] = fma(v, v, squares[0]);
  }
  for (; i < count; ++i) tail += widen(x[i]) * widen(x[i]);
  const F4 sums = sum4(squares[0], squares[1], squares[2], squares[3]);
  const float mean = ((sums[0] + sums[1]) + (sums[2] + sums[3]) + tail) / float(count);
  const float factor = 1.0f / __builtin_sqrtf(mean + eps);
  i = 0;
  if (offset != 0.0f) {  // as Gemma: rounded once
    for (; i + W <= count; i += W) store(load(x + i) * factor * (load(weight + i) + offset), out + i);
    for (; i < count; ++i) narrow(widen(x[i]) * factor * (widen(weight[i]) + offset), out + i);
    return;
  }
  for (; i + W <= count; i += W) store(rounded(load(x + i) * factor, type) * load(weight + i), out + i);
  for (; i < count; ++i) narrow(rounded(widen(x[i]) * factor, type) * widen(weight[i]), out + i);
}

inline void rms_norm_row(const void* x, void* residual, const void* weight, void* out, DType type, int64_t count,
                         float eps, float offset) {
  with_type(type, [&](auto* t) {
    using Pointer = decltype(t);
    rms_norm(static_cast<Pointer>(const_cast<void*>(x)), static_cast<Pointer>(residual),
             static_cast<Pointer>(const_cast<void*>(weight)), static_cast<Pointer>(out), count, eps, offset, t);
  });
}

template <class T>
void rope(T* first, const float* cos, const float* sin, int64_t half) {
  T* second = first + half;
  int64_t i = 0;
  for (; i + W <= half; i += W) {
    const F a = load(first + i), b = load(second + i), c = load(cos + i), s = load(sin + i);
    store(a * c - b * s, first + i);
    store(b * c + a * s, second + i);
  }
  for (; i < half; ++i) {
    const float a = widen(first[i]), b = widen(second[i]);
    narrow(a * cos[i] - b * sin[i], first + i);
    narrow(b * cos[i] + a * sin[i], second + i);
  }
}

inline void rope_row(void* head, DType type, const float* cos, const float* sin, int64_t half) {
  with_type(type, [&](auto* t) { rope(static_cast<decltype(t)>(head), cos, sin, half); });
}

QUIRE_INLINE F silu(F x) {
  const F power = x * splat(-1.4426950408889634f), most = splat(126.0f);
  return power > most ? F{} : x / (exp2(min(power, most)) + 1.0f);
}

// 0.5 x (1 + tanh(z)) with z = sqrt(2 / pi) (x + 0.044715 x^3) is x / (1 + e^-2z).
QUIRE_INLINE F gelu_tanh(F x) {
  const F power = x * splat(-2.3022081984f) * fma(x * x, splat(0.044715f), splat(1.0f)), most = splat(126.0f);
  return power > most ? F{} : x / (exp2(min(power, most)) + 1.0f);
}

template <F (*Activate)(F), class T>
void gated(const T* gate, const T* up, T* out, int64_t count) {
  int64_t i = 0;
  for (; i + W <= count; i += W) store(Activate(load(gate + i)) * load(up + i), out + i);
  for (; i < count; ++i) narrow(Activate(splat(widen(gate[i])))[0] * widen(up[i]), out + i);
}

template <F (*Activate)(F)>
void gated_row(const void* gate, const void* up, void* out, DType type, int64_t count) {
  with_type(type, [&](auto* t) {
    using Pointer = decltype(t);
    gated<Activate>(static_cast<Pointer>(const_cast<void*>(gate)), static_cast<Pointer>(const_cast<void*>(up)),
                    static_cast<Pointer>(out), count);
  });
}

inline void silu_mul_row(const void* gate, const void* up, void* out, DType type, int64_t count) {
  gated_row<silu>(gate, up, out, type, count);
}

inline void gelu_tanh_mul_row(const void* gate, const void* up, void* out, DType type, int64_t count) {
  gated_row<gelu_tanh>(gate, up, out, type, count);
}

inline void softcap_row(float* x, int64_t count, float cap) {
  int64_t i = 0;
  for (; i + W <= count; i += W) store(tanh(load(x + i) / splat(cap)) * splat(cap), x + i);
  for (; i < count; ++i) x[i] = tanh(splat(x[i] / cap))[0] * cap;
}

}  // namespace quire::QUIRE_ISA
