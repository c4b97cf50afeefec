#include "isa/isa.h"

#include <cstdlib>

// A build that emulates AVX-512 has it on every CPU.
#if defined(QUIRE_EMULATE_AVX512)
#define QUIRE_SUPPORTS_512(feature) true
#else
#define QUIRE_SUPPORTS_512(feature) __builtin_cpu_supports(feature)
#endif

namespace quire {

std::vector<Isa> available_isas() {
  std::vector<Isa> result = {{"portable", &kPortableKernels, &kPortablePacked}};
#if defined(QUIRE_X86)
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("f16c")) return result;
  result.push_back({"avx2", &kAvx2Kernels, &kAvx2Packed});
  if (!QUIRE_SUPPORTS_512("avx512f") || !QUIRE_SUPPORTS_512("avx512bw") || !QUIRE_SUPPORTS_512("avx512dq") ||
      !QUIRE_SUPPORTS_512("avx512vl"))
    return result;
  result.push_back({"avx512", &kAvx512Kernels, &kAvx512Packed});
  if (!QUIRE_SUPPORTS_512("avx512vnni")) return result;
  result.push_back({"avx512_vnni", &kAvx512Kernels, &kAvx512VnniPacked});
  if (QUIRE_SUPPORTS_512("avx512bf16")) result.push_back({"avx512_bf16", &kAvx512Kernels, &kAvx512Bf16Packed});
#endif
  return result;
}

#if defined(QUIRE_X86)
// Intel's processors take two cycles for a vdpbf16ps (Xeon of 2023 and later, measured: 0.74 ns, an fma 0.18): half as many products as fmas with
// weights made floats, and rounded inputs. AMD's take one.
static bool slow_bf16() { return __builtin_cpu_is("intel"); }
#endif

Isa choose_isa(const std::string& forced) {
  const std::vector<Isa> available = available_isas();
  if (forced.empty()) {
#if defined(QUIRE_X86)
    for (const Isa& isa : available)
      if (slow_bf16() && isa.packed == &kAvx512VnniPacked) return isa;
#endif
    return available.back();
  }
  std::string names;
  for (const Isa& isa : available) {
    if (forced == isa.name) return isa;
    names += (names.empty() ? "" : ", ") + std::string(isa.name);
  }
  for (const char* known : {"avx2", "avx512", "avx512_vnni", "avx512_bf16"})
    if (forced == known) throw IsaError("QUIRE_CPU_ISA=" + forced + ": this CPU or build has only " + names);
  throw IsaError("QUIRE_CPU_ISA must be portable, avx2, avx512, avx512_vnni or avx512_bf16, got '" + forced + "'");
}

Isa& current_isa() {
  static Isa chosen = [] {
    const char* forced = std::getenv("QUIRE_CPU_ISA");
    return choose_isa(forced ? forced : "");
  }();
  return chosen;
}

}  // namespace quire
