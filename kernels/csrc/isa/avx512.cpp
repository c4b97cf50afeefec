// The kernels for AVX-512 (F, BW, DQ, VL). CMakeLists.txt gives this file its flags.
#define QUIRE_ISA avx512

#include "isa/kernels.h"

namespace quire {

const Kernels kAvx512Kernels = QUIRE_ISA::kKernels;

}  // namespace quire
