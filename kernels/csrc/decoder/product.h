// A product of a step as items: each has some panels for some rows.
#pragma once

#include <cstdint>

#include "isa/isa.h"
#include "packed/weight.h"

namespace quire {

struct ProductCut {
  int32_t panels, rows;
  int64_t items;
};

ProductCut cut_product(const PackedWeight& weight, int64_t rows, int threads);

void multiply_item(const Isa& isa, const PackedWeight& weight, const LinearInput& input, const LinearOutput& output,
                   const ProductCut& cut, int32_t item);

}  // namespace quire
