// Products with packed weights for AVX-512 with VNNI and BF16, which adds products of bfloat16. CMakeLists.txt gives this
// file its flags.
#define QUIRE_ISA avx512_bf16

#include "packed/kernel.h"

namespace quire {

static void multiply(const PackedMatrix& m, const LinearInput& input, int64_t first, int64_t last, const LinearOutput& output) {
  if (m.format != Format::bf16) return kAvx512VnniPacked.multiply(m, input, first, last, output);
  QUIRE_ISA::multiply_bf16(m, input, first, last, output);
}

const PackedKernels kAvx512Bf16Packed = {QUIRE_ISA::prepare_row, multiply, QUIRE_ISA::kMultipliesBf16};

}  // namespace quire
