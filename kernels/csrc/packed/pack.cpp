// Laying weights out in panels, panel by panel on all threads.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <string>

#include "common/error.h"
#include "common/pool.h"
#include "packed/blocks.h"
#include "packed/weight.h"

namespace quire {
namespace {

using packing::QuantBlock;

void place(const PackedMatrix& m, uint8_t* block, int64_t lane, const QuantBlock& from) {
  auto* scales = reinterpret_cast<packing::f16*>(block) + lane;
  scales[0] = from.scale[0];
  if (m.halves) scales[kPanelRows] = from.scale[1];
  packing::f16* minima = scales + (1 + m.halves) * kPanelRows;
  if (m.minima) *minima = from.minimum;
  auto* quants = reinterpret_cast<uint8_t*>(minima + m.minima * kPanelRows - lane) + lane * 4;
  const int groups = m.format == Format::q8 ? 8 : 4;
  for (int g = 0; g < groups; ++g) std::memcpy(quants + g * 4 * kPanelRows, from.quant + g * 4, 4);
}

// write(row of the part, lane, its panel) for all rows of a part; lanes without a row are zeros.
template <class Write>
void for_rows(const PackedMatrix& m, Write write) {
  const auto panel = [&](int64_t p) {
    auto* to = const_cast<uint8_t*>(m.panel(p));
    std::memset(to, 0, size_t(m.panel_bytes()));
    for (int64_t row = p * kPanelRows; row < std::min(m.rows, (p + 1) * kPanelRows); ++row)
      write(row, row % kPanelRows, to);
  };
  const int64_t threads = std::min<int64_t>(num_threads(), 1 + m.rows * m.cols / 65536);
  parallel_for(m.num_panels(), int(threads), panel);
}

template <class Get>
void place_floats(const PackedMatrix& m, int64_t lane, uint8_t* panel, Get get) {
  const auto each = [&](auto put) {
    for (int64_t k = 0; k < m.cols; ++k) put(k, get(k));
  };
  auto* floats = reinterpret_cast<float*>(panel) + lane;
  auto* halves = reinterpret_cast<packing::f16*>(panel) + lane;
  auto* pairs = reinterpret_cast<packing::bf16*>(panel) + lane * 2;
  switch (m.format) {
    case Format::f32: return each([&](int64_t k, float x) { floats[k * kPanelRows] = x; });
    case Format::f16: return each([&](int64_t k, float x) { packing::narrow(x, halves + k * kPanelRows); });
    default: return each([&](int64_t k, float x) { packing::narrow(x, pairs + k / 2 * kPanelRows * 2 + k % 2); });
  }
}

// False where a number is not finite, or too large for a scale in float16.
template <class Get>
bool quantize_floats(const PackedMatrix& m, const float* importance, int64_t lane, uint8_t* panel, Get get) {
  for (int64_t first = 0; first < m.cols; first += kQuantBlock, panel += m.block_bytes()) {
    float x[kQuantBlock] = {};
    const int64_t count = std::min<int64_t>(kQuantBlock, m.cols - first);
    for (int64_t i = 0; i < count; ++i) {
      x[i] = get(first + i);
      if (!(std::fabs(x[i]) <= 32768.0f)) return false;
    }
    QuantBlock block{};
    m.format == Format::q8 ? packing::quantize_q8(x, block) : packing::quantize_q4(x, importance + first, block);
    place(m, panel, lane, block);
  }
  return true;
}

// importance: of each input, padded with zeros to whole blocks.
void fill(const PackedMatrix& m, const Tensor& weight, const float* importance) {
  std::atomic<int64_t> bad{-1};
  for_rows(m, [&](int64_t row, int64_t lane, uint8_t* panel) {
    packing::with_type(weight.type, [&](auto* type) {
      const auto* from = reinterpret_cast<const decltype(type)>(weight.at(row));
      const auto get = [&](int64_t k) { return packing::widen(from[k]); };
      if (m.input() != InputKind::int8) return place_floats(m, lane, panel, get);
      if (quantize_floats(m, importance, lane, panel, get)) return;
      int64_t first = bad;
      while ((first < 0 || row < first) && !bad.compare_exchange_weak(first, row)) {
      }
    });
  });
  if (bad >= 0)
    throw ArgumentError("weight[" + std::to_string(bad) +
                        "] holds a number that is not finite or above 32768, which has no quants; pack it as f32 or bf16");
}

void fill(const PackedMatrix& m, const packing::GgufType& type, const uint8_t* raw) {
  const int64_t parts = type.elements / kQuantBlock, row_bytes = m.cols / type.elements * type.bytes;
  for_rows(m, [&](int64_t row, int64_t lane, uint8_t* panel) {
    for (int64_t b = 0; b < blocks_of(m.cols); ++b, panel += m.block_bytes()) {
      QuantBlock block{};
      type.split(raw + row * row_bytes + b / parts * type.bytes, int(b % parts), block);
      place(m, panel, lane, block);
    }
  });
}

Tensor matrix_of(const uint8_t* raw, DType type, int64_t rows, int64_t cols) {
  Tensor t;
  t.data = reinterpret_cast<char*>(const_cast<uint8_t*>(raw));
  t.type = type;
  t.shape[0] = rows;
  t.shape[1] = cols;
  t.stride[0] = cols;
  t.stride[1] = 1;
  return t;
}

PackedMatrix sized(PackedMatrix like, int64_t rows, int64_t cols) {
  like.rows = rows;
  like.cols = cols;
  return like;
}

}  // namespace

PackedMatrix layout_of(Format format, int64_t rows, int64_t cols) {
  PackedMatrix like;
  if (format == Format::q8) like = packing::quants(format, false, false, 128, 255);
  if (format == Format::q4) like = packing::quants(format, true, false, 0, 15);
  like.format = format;
  return sized(like, rows, cols);
}

PackedMatrix layout_of_gguf(int ggml_type, int64_t rows, int64_t cols) {
  if (const packing::GgufType* type = packing::gguf_type(ggml_type)) return sized(type->like, rows, cols);
  switch (ggml_type) {
    case 0: return layout_of(Format::f32, rows, cols);
    case 1: return layout_of(Format::f16, rows, cols);
    case 30: return layout_of(Format::bf16, rows, cols);
    default: refuse("ggml_type " + std::to_string(ggml_type) + " is not supported");
  }
}

std::unique_ptr<PackedWeight> pack(const std::vector<FloatPart>& parts, const float* importance) {
  const int64_t cols = parts.front().weight.shape[1];
  std::vector<PackedMatrix> likes;
  for (const FloatPart& part : parts)
    likes.push_back(layout_of(part.format, part.weight.shape[0], part.weight.shape[1]));
  std::vector<float> weights(size_t(blocks_of(cols) * kQuantBlock));
  for (int64_t i = 0; i < cols; ++i) weights[size_t(i)] = importance == nullptr ? 1.0f : importance[i];
  auto packed = std::make_unique<PackedWeight>(std::move(likes));
  for (size_t i = 0; i < parts.size(); ++i) fill(packed->parts()[i], parts[i].weight, weights.data());
  return packed;
}

std::unique_ptr<PackedWeight> pack_gguf(const std::vector<GgufPart>& parts, int64_t cols) {
  std::vector<PackedMatrix> likes;
  for (const GgufPart& part : parts) likes.push_back(layout_of_gguf(part.ggml_type, part.rows, cols));
  auto packed = std::make_unique<PackedWeight>(std::move(likes));
  for (size_t i = 0; i < parts.size(); ++i) {
    const PackedMatrix& matrix = packed->parts()[i];
    if (const packing::GgufType* type = packing::gguf_type(parts[i].ggml_type)) {
      fill(matrix, *type, parts[i].raw);
    } else {
      const DType types[] = {DType::f32, DType::f16, DType::bf16};
      fill(matrix, matrix_of(parts[i].raw, types[int(matrix.format)], matrix.rows, cols), nullptr);
    }
  }
  return packed;
}

}  // namespace quire
