// What packed weights are made of, and what reads them back.
#include "packed/weight.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#define QUIRE_ISA packing
#include "common/error.h"
#include "common/vec.h"
#include "packed/memory.h"

namespace quire {
namespace {

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
  add_up();
  const std::shared_ptr<uint8_t> memory = weight_memory(num_bytes_);
  keeper_ = memory;
  point_to(memory.get());
  for (const PackedMatrix& part : parts_) {  // what is between parts may be written to a file
    const int64_t bytes = part.num_panels() * part.panel_bytes();
    std::memset(const_cast<uint8_t*>(part.data) + bytes, 0, size_t(aligned(bytes) - bytes));
  }
}

PackedWeight::PackedWeight(std::vector<PackedMatrix> parts, const uint8_t* data, int64_t size,
                           std::shared_ptr<const void> keeper)
    : parts_(std::move(parts)), keeper_(std::move(keeper)) {
  for (const PackedMatrix& part : parts_) {
    if (part.rows < 1 || part.cols < 1)
      refuse("a part must have at least one row and one column, got " + std::to_string(part.rows) + " and " +
             std::to_string(part.cols));
    // A panel has a byte and more for each column: beyond these bounds sizes could overflow.
    if (part.cols > size || part.rows > size || part.num_panels() > size / part.panel_bytes())
      refuse("a part of " + std::to_string(part.rows) + " rows and " + std::to_string(part.cols) + " columns is more than data's " +
             std::to_string(size) + " bytes");
  }
  add_up();
  if (num_bytes_ != size)
    refuse("data must have " + std::to_string(num_bytes_) + " bytes, got " + std::to_string(size));
  if (reinterpret_cast<uintptr_t>(data) % kAlignment != 0)
    refuse("data must begin at a multiple of " + std::to_string(kAlignment) + " bytes of memory");
  point_to(data);
}

void PackedWeight::add_up() {
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
}

void PackedWeight::point_to(const uint8_t* data) {
  for (PackedMatrix& part : parts_) {
    part.data = data;
    data += aligned(part.num_panels() * part.panel_bytes());
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
