// The table of kernels of the instruction set this file is compiled for.
#pragma once

#include "attention/kernel.h"
#include "rows/dequantize.h"
#include "rows/kernels.h"

namespace quire::QUIRE_ISA {

constexpr Kernels kKernels = {attend,       merge,        copy_row,          rms_norm_row, rope_row,
                              silu_mul_row, gelu_tanh_mul_row, softcap_row,  dequantize};

}  // namespace quire::QUIRE_ISA
