// Memory of packed weights, and what reads it back.
#include "packed/weight.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <string>
#include <utility>

#define QUIRE_ISA packing
#include "common/error.h"
#include "common/vec.h"

namespace quire {
namespace {

constexpr int64_t kHugePage = 2 * 1024 * 1024;

// Weights are read from end to end every step: huge pages spare the walks through page tables.
Memory<uint8_t> allocate_weights(int64_t bytes) {
  if (bytes < kHugePage) return allocate<uint8_t>(bytes);
  void* memory = nullptr;
  if (posix_memalign(&memory, kHugePage, size_t(bytes)) != 0) throw std::bad_alloc();
#if defined(MADV_HUGEPAGE)
  madvise(memory, size_t(bytes), MADV_HUGEPAGE);
#endif
  return Memory<uint8_t>(static_cast<uint8_t*>(memory));
}

float half_at(const uint8_t* from, int64_t i) { return packing::widen(reinterpret_cast<const packing::f16*>(from)[i]); }

void unpack_quants(const PackedMatrix& m, const uint8_t* block, int64_t lane, int64_t count, float* out) {
  const uint8_t* minima = block + (1 + m.halves) * 2 * kPanelRows;
  const uint8_t* quants = minima + m.minima * 2 * kPanelRows;
  const float minimum = m.minima ? half_at(minima, lane) : 0.0f;
  for (int64_t i = 0; i < count; ++i) {
    const float scale = half_at(block, lane + (m.halves ? i / 16 * kPanelRows : 0));
    const int64_t at = (i % 16 / 4 * kPanelRows + lane) * 4 + i % 4;
    const int quant = m.format == Format::q8 ? quants[i / 16 * 256 + at] : quants[at] >> (i / 16 * 4) & 15;
    out[i] = m.minima ? scale * float(quant) + minimum : scale * float(quant - m.zero);
  }
}

void unpack(const PackedMatrix& m, int64_t row, float* out) {
  const uint8_t* panel = m.panel(row / kPanelRows);
  const int64_t lane = row % kPanelRows;
  switch (m.format) {
    case Format::f32:
      for (int64_t k = 0; k < m.cols; ++k) out[k] = reinterpret_cast<const float*>(panel)[k * kPanelRows + lane];
      return;
    case Format::f16:
      for (int64_t k = 0; k < m.cols; ++k) out[k] = half_at(panel, k * kPanelRows + lane);
      return;
    case Format::bf16: {
      const auto* from = reinterpret_cast<const packing::bf16*>(panel);
      for (int64_t k = 0; k < m.cols; ++k) out[k] = packing::widen(from[(k / 2 * kPanelRows + lane) * 2 + k % 2]);
      return;
    }
    default:
      for (int64_t b = 0; b < blocks_of(m.cols); ++b, panel += m.block_bytes(), out += kQuantBlock)
        unpack_quants(m, panel, lane, std::min<int64_t>(kQuantBlock, m.cols - b * kQuantBlock), out);
  }
}

// visit(part, first output of the part, first panel of the part).
template <class Visit>
void for_parts(const PackedWeight& weight, Visit visit) {
  int64_t row = 0, panel = 0;
  for (const PackedMatrix& part : weight.parts()) {
    visit(part, row, panel);
    row += part.rows;
    panel += part.num_panels();
  }
}

}  // namespace

PackedWeight::PackedWeight(std::vector<PackedMatrix> parts) : parts_(std::move(parts)) {
  if (parts_.empty()) throw ArgumentError("a packed weight needs at least one part");
  cols_ = parts_.front().cols;
  for (const PackedMatrix& part : parts_) {
    if (part.cols != cols_)
      throw ArgumentError("all parts of a packed weight must have " + std::to_string(cols_) + " columns, got " +
                          std::to_string(part.cols));
    if (part.input() != parts_.front().input())
      throw ArgumentError(
          "parts that read their input in different forms (bf16, other floats, quants) cannot share a packed weight; pack "
          "them apart");
    rows_ += part.rows;
    num_panels_ += part.num_panels();
    num_bytes_ += aligned(part.num_panels() * part.panel_bytes());
  }
  memory_ = allocate_weights(num_bytes_);
  const uint8_t* next = memory_.get();
  for (PackedMatrix& part : parts_) {
    part.data = next;
    next += aligned(part.num_panels() * part.panel_bytes());
  }
}

void multiply_panels(const PackedKernels& kernels, const PackedWeight& weight, const LinearInput& input, int64_t first,
                     int64_t last, const LinearOutput& output) {
  for_parts(weight, [&](const PackedMatrix& part, int64_t row, int64_t panel) {
    const int64_t begin = std::max<int64_t>(0, first - panel), end = std::min(part.num_panels(), last - panel);
    if (begin >= end) return;
    LinearOutput to = output;
    to.out += row;
    if (to.bias != nullptr) to.bias += row;
    kernels.multiply(part, input, begin, end, to);
  });
}

void unpack_row(const PackedWeight& weight, int64_t row, float* out) {
  for_parts(weight, [&](const PackedMatrix& part, int64_t begin, int64_t) {
    if (row >= begin && row < begin + part.rows) unpack(part, row - begin, out);
  });
}

}  // namespace quire
