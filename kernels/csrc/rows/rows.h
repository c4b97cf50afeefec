// One function per operation on rows: check the values that could lead out of bounds, cut the rows into ranges, run them on
// the pool with the kernels of one instruction set. Shapes and types were checked by module/module.cpp.
#pragma once

#include "common/types.h"

namespace quire {

void write_kv(const Kernels& kernels, const Tensor& key, const Tensor& value, const Tensor& key_cache,
              const Tensor& value_cache, const Tensor& slot_mapping);
void rms_norm(const Kernels& kernels, const Tensor& x, const Tensor* residual, const Tensor& weight, float eps,
              float offset, const Tensor& out);
void head_rms_norm(const Kernels& kernels, const Tensor& query, const Tensor& key, const Tensor& query_weight,
                   const Tensor& key_weight, float eps, float offset);
void rope(const Kernels& kernels, const Tensor& query, const Tensor& key, const Tensor& positions, const Tensor& cos,
          const Tensor& sin);
void silu_mul(const Kernels& kernels, const Tensor& gate_up, const Tensor& out);
void gelu_tanh_mul(const Kernels& kernels, const Tensor& gate_up, const Tensor& out);
void dequantize(const Kernels& kernels, const Tensor& raw, int ggml_type, int64_t block_elements, int64_t block_bytes,
                const Tensor& out);

}  // namespace quire
