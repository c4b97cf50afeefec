// The kernels for AVX2, FMA and F16C. CMakeLists.txt gives this file its flags.
#define QUIRE_ISA avx2

#include "isa/kernels.h"

namespace quire {

const Kernels kAvx2Kernels = QUIRE_ISA::kKernels;

}  // namespace quire
