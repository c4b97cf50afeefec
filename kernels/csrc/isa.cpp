#include "isa.h"

namespace quire {

std::vector<Isa> available_isas() {
  std::vector<Isa> result = {{"portable", &kPortableKernels}};
#if defined(QUIRE_X86)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) {
    result.push_back({"avx2", &kAvx2Kernels});
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
      result.push_back({"avx512", &kAvx512Kernels});
  }
#endif
  return result;
}

Isa choose_isa(const std::string& forced) {
  const std::vector<Isa> available = available_isas();
  if (forced.empty()) return available.back();
  std::string names;
  for (const Isa& isa : available) {
    if (forced == isa.name) return isa;
    names += (names.empty() ? "" : ", ") + std::string(isa.name);
  }
  const bool known = forced == "avx2" || forced == "avx512";
  throw IsaError(known ? "QUIRE_CPU_ISA=" + forced + ": this CPU or build has only " + names
                                 : "QUIRE_CPU_ISA must be portable, avx2 or avx512, got '" + forced + "'");
}

}  // namespace quire
