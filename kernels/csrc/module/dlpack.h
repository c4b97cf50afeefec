// Borrowing a Python tensor's data, shape and strides through DLPack's C exchange API: no copy, no capsule, some 50 ns.
// The extension is built without torch's headers and serves any version of it, and any other library that speaks DLPack 1.x.
#pragma once

#include <nanobind/nanobind.h>

#include "common/types.h"

namespace quire {

// The view of a CPU tensor; valid while the object lives and is not resized. Throws ArgumentError that names the argument.
Tensor borrow(nanobind::handle object, int rank, const char* name);

}  // namespace quire
