#include "decoder/product.h"

#include <algorithm>

namespace quire {
namespace {

// Items per thread of a product, so that a thread that lost its core for a while delays the others little.
constexpr int64_t kItemsPerThread = 6;
// An item below this many multiply-adds costs more to hand out than it takes.
constexpr int64_t kLeastWork = 32 * 1024;
// Rows of an input that stay in a core's cache, or near it, while an item's panels are read.
constexpr int64_t kBlockBytes = 512 * 1024;

int64_t ceiling(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Panels of an item: about `wanted`, in pairs, which some kernels compute together; of the two even numbers the one that keeps all threads busy longer.
int64_t even_chunk(int64_t panels, int64_t wanted, int threads) {
  const auto idle = [&](int64_t chunk) { return ceiling(ceiling(panels, chunk), threads) * threads * chunk - panels; };
  const int64_t below = std::max<int64_t>(2, wanted / 2 * 2), above = below + 2;
  return wanted > below && idle(above) < idle(below) ? above : below;
}

}  // namespace

ProductCut cut_product(const PackedWeight& weight, int64_t rows, int threads) {
  if (rows == 0) return {0, 0, 0};
  const int64_t panels = weight.num_panels();
  const int64_t row_bytes = weight.input() == InputKind::int8 ? record_bytes(InputKind::int8, weight.cols()) : weight.cols() * 4;
  const int64_t blocks = ceiling(rows, std::max<int64_t>(16, kBlockBytes / (row_bytes + 1) / 16 * 16));
  const int64_t block = std::min(rows, ceiling(ceiling(rows, blocks), 16) * 16);
  const int64_t least = ceiling(kLeastWork, block * weight.cols() * kPanelRows);
  const int64_t wanted = std::max(least, panels / (kItemsPerThread * threads));
  const int64_t chunk = threads == 1 && block == rows ? panels : std::min(panels, even_chunk(panels, wanted, threads));
  return {int32_t(chunk), int32_t(block), ceiling(panels, chunk) * ceiling(rows, block)};
}

void multiply_item(const Isa& isa, const PackedWeight& weight, const LinearInput& input, const LinearOutput& output,
                   const ProductCut& cut, int32_t item) {
  const int64_t blocks = (input.num_rows + cut.rows - 1) / cut.rows;  // of rows; one after the other for the same panels
  const int64_t first_row = item % blocks * cut.rows, first_panel = item / blocks * cut.panels;
  LinearInput part = input;
  part.x += first_row * input.stride;
  part.records += first_row * isa.packed->record_bytes(weight.input(), weight.cols());
  part.num_rows = std::min<int64_t>(cut.rows, input.num_rows - first_row);
  LinearOutput to = output;
  to.out += first_row * output.stride;
  multiply_panels(*isa.packed, weight, part, first_panel, std::min<int64_t>(first_panel + cut.panels, weight.num_panels()), to);
}

}  // namespace quire
