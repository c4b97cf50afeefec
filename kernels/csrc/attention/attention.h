// Attention as an operation of its own. Shapes and types were checked by module/module.cpp.
#pragma once

#include "common/types.h"

namespace quire {

// Checks the values that could lead out of bounds, then computes on the pool. Throws ArgumentError.
void paged_attention(const Kernels& kernels, AttentionCall call, const Tensor& query_start, const Tensor& context_lens);

}  // namespace quire
