// Products with packed weights for AVX-512 with VNNI; it adds nothing to products of floats. CMakeLists.txt gives this file
// its flags.
#define QUIRE_ISA avx512_vnni

#include "packed/kernel.h"

namespace quire {

static void multiply(const PackedMatrix& m, const LinearInput& input, int64_t first, int64_t last, const LinearOutput& output) {
  if (m.input() != InputKind::int8) return kAvx512Packed.multiply(m, input, first, last, output);
  QUIRE_ISA::multiply_int8(m, input, first, last, output);
}

const PackedKernels kAvx512VnniPacked = {QUIRE_ISA::prepare_row, multiply};

}  // namespace quire
