// What module.cpp adds to the extension from elsewhere.
#pragma once

#include <nanobind/nanobind.h>

namespace quire {

void bind_packed(nanobind::module_& m);   // PackedWeight and its functions
void bind_decoder(nanobind::module_& m);  // DecoderPlan

}  // namespace quire
