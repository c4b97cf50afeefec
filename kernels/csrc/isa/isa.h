// Which instruction set the kernels use: the best this CPU has, or the one QUIRE_CPU_ISA names.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

#include "common/types.h"
#include "packed/layout.h"

namespace quire {

struct Isa {
  const char* name;
  const Kernels* kernels;
  const PackedKernels* packed;
};

// Those this CPU and this build have, worst first.
std::vector<Isa> available_isas();

// The instruction set that was asked for cannot be used.
struct IsaError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// forced empty: the best. Otherwise that one; throws IsaError saying why it cannot be.
Isa choose_isa(const std::string& forced);

// The one in use, by QUIRE_CPU_ISA at first; throws IsaError where that cannot be. Assign to change it.
Isa& current_isa();

}  // namespace quire
