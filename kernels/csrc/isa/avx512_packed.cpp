// Products with packed weights for AVX-512 (F, BW, DQ, VL). CMakeLists.txt gives this file its flags.
#define QUIRE_ISA avx512

#include "packed/kernel.h"

namespace quire {

const PackedKernels kAvx512Packed = {QUIRE_ISA::prepare_row, QUIRE_ISA::multiply};

}  // namespace quire
