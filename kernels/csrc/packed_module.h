#pragma once

#include <nanobind/nanobind.h>

namespace quire {

// Adds PackedWeight and its functions to the extension.
void bind_packed(nanobind::module_& m);

}  // namespace quire
