// Registers the class DecoderPlan with the Python module.
#pragma once

#include <nanobind/nanobind.h>

namespace quire {

void bind_decoder(nanobind::module_& module);

}  // namespace quire
