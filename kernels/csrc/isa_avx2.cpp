// The kernels for AVX2, FMA and F16C. CMakeLists.txt gives this file its flags.
#define QUIRE_ISA avx2

#include "attention_kernel.h"
#include "dequantize_kernel.h"
#include "row_kernels.h"

namespace quire {

const Kernels kAvx2Kernels = {QUIRE_ISA::attend,       QUIRE_ISA::merge,    QUIRE_ISA::copy_row,
                    QUIRE_ISA::rms_norm_row, QUIRE_ISA::rope_row, QUIRE_ISA::silu_mul_row,
                    QUIRE_ISA::gelu_tanh_mul_row, QUIRE_ISA::softcap_row, QUIRE_ISA::dequantize};

}  // namespace quire
