// Checks of shapes and types, with the same sentences as quire_kernels/checks.py (tests run both through one list).
#pragma once

#include <initializer_list>
#include <string>

#include "common/error.h"
#include "common/types.h"

namespace quire {

// Name and view of an argument.
struct Argument {
  const char* name;
  const Tensor& tensor;
  int rank;
};

inline const char* name_of(DType type) {
  constexpr const char* kNames[] = {"float32", "bfloat16", "float16", "uint8", "int32", "int64"};
  return kNames[int(type)];
}

inline std::string list_of(const int64_t* values, size_t count) {
  std::string text = "[";
  for (size_t i = 0; i < count; ++i) text += (i ? ", " : "") + std::to_string(values[i]);
  return text + "]";
}

inline void check_contiguous(const Argument& a) {
  if (a.tensor.stride[a.rank - 1] != 1 && a.tensor.shape[a.rank - 1] > 1)
    refuse(std::string(a.name) + " must be contiguous in its last dimension, got stride " +
           std::to_string(a.tensor.stride[a.rank - 1]));
}

inline void check_float(const Argument& a) {
  if (int(a.tensor.type) > int(DType::f16))
    refuse(std::string(a.name) + " must be float32, bfloat16 or float16, got " + name_of(a.tensor.type));
  check_contiguous(a);
}

inline void check(const Argument& a, std::initializer_list<int64_t> shape, DType type) {
  const int64_t* expected = shape.begin();
  for (size_t i = 0; i < shape.size(); ++i)
    if (a.tensor.shape[i] != expected[i])
      refuse(std::string(a.name) + " must have shape " + list_of(expected, shape.size()) + ", got " +
             list_of(a.tensor.shape, shape.size()));
  if (a.tensor.type != type)
    refuse(std::string(a.name) + " must be " + name_of(type) + ", got " + name_of(a.tensor.type));
  check_contiguous(a);
}

// Every one of the values is in low..high.
inline void check_range(const char* name, const int64_t* values, int64_t count, int64_t low, int64_t high) {
  for (int64_t i = 0; i < count; ++i)
    if (values[i] < low || values[i] > high)
      refuse(std::string(name) + "[" + std::to_string(i) + "] is " + std::to_string(values[i]) + ", outside " +
             std::to_string(low) + ".." + std::to_string(high));
}

// Returns the number of KV heads.
inline int64_t check_caches(const Tensor& key_cache, const Tensor& value_cache, int64_t head_size) {
  if (key_cache.shape[3] != head_size)
    refuse("key_cache has head size " + std::to_string(key_cache.shape[3]) + ", but the first argument " +
           std::to_string(head_size));
  check_float({"key_cache", key_cache, 4});
  const int64_t* s = key_cache.shape;
  check({"value_cache", value_cache, 4}, {s[0], s[1], s[2], s[3]}, key_cache.type);
  return s[2];
}

}  // namespace quire
