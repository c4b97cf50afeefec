// Products with packed weights for the portable baseline: what the compiler targets by default (SSE2 on x86-64,
// NEON on AArch64). CMakeLists.txt gives this file its flags.
#define QUIRE_ISA portable

#include "packed/kernel.h"

namespace quire {

const PackedKernels kPortablePacked = {QUIRE_ISA::prepare_row, QUIRE_ISA::multiply};

}  // namespace quire
