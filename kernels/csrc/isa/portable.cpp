// The kernels for the portable baseline: what the compiler targets by default (SSE2 on x86-64,
// NEON on AArch64). CMakeLists.txt gives this file its flags.
#define QUIRE_ISA portable

#include "isa/kernels.h"

namespace quire {

const Kernels kPortableKernels = QUIRE_ISA::kKernels;

}  // namespace quire
