#include "isa/isa.h"

#include <cstdlib>

namespace quire {

std::vector<Isa> available_isas() {
  std::vector<Isa> result = {{"portable", &kPortableKernels, &kPortablePacked}};
#if defined(QUIRE_X86)
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("f16c")) return result;
  result.push_back({"avx2", &kAvx2Kernels, &kAvx2Packed});
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512dq") ||
      !__builtin_cpu_supports("avx512vl"))
    return result;
  result.push_back({"avx512", &kAvx512Kernels, &kAvx512Packed});
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
  for (const char* known : {"avx2", "avx512"})
    if (forced == known) throw IsaError("QUIRE_CPU_ISA=" + forced + ": this CPU or build has only " + names);
  throw IsaError("QUIRE_CPU_ISA must be portable, avx2 or avx512, got '" + forced + "'");
}

Isa& current_isa() {
  static Isa chosen = [] {
    const char* forced = std::getenv("QUIRE_CPU_ISA");
    return choose_isa(forced ? forced : "");
  }();
  return chosen;
}

}  // namespace quire
