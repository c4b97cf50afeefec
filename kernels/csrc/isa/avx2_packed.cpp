// Products with packed weights for AVX2, FMA and F16C. CMakeLists.txt gives this file its flags.
#define QUIRE_ISA avx2

#include "packed/kernel.h"

namespace quire {

const PackedKernels kAvx2Packed = {QUIRE_ISA::prepare_row, QUIRE_ISA::multiply};

}  // namespace quire
