// The owner of packed weights, and what is done with whole weights: pack, unpack, multiply.
#pragma once

#include <memory>
#include <vector>

#include "common/memory.h"
#include "packed/layout.h"

namespace quire {

// A stack of matrices that read the same input; output columns follow each other in the order of the parts. Immutable once
// made. All parts have the same input kind.
class PackedWeight {
 public:
  const std::vector<PackedMatrix>& parts() const { return parts_; }
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  int64_t num_panels() const { return num_panels_; }
  int64_t num_bytes() const { return num_bytes_; }
  InputKind input() const { return parts_.front().input(); }

  // All parts, one after the other, each padded to 64 bytes: num_bytes() of them.
  const uint8_t* data() const { return parts_.front().data; }

  // Makes room for the parts, whose data is still to be written (they then point to it). Throws ArgumentError where the
  // parts do not share cols and input kind.
  explicit PackedWeight(std::vector<PackedMatrix> parts);

  // Somebody else's memory that holds what data() of a weight of these parts did; the keeper keeps it alive, and nobody writes to
  // it. Throws ArgumentError where it is not aligned, or not exactly as long as the parts are.
  PackedWeight(std::vector<PackedMatrix> parts, const uint8_t* data, int64_t size, std::shared_ptr<const void> keeper);

 private:
  void add_up();
  void point_to(const uint8_t* data);

  std::vector<PackedMatrix> parts_;
  std::shared_ptr<const void> keeper_;  // of the parts' data
  int64_t rows_ = 0, cols_ = 0, num_panels_ = 0, num_bytes_ = 0;
};

// How a matrix lies that floats are packed to, or the blocks of a type of GGUF (its number). Throws ArgumentError for another
// number.
PackedMatrix layout_of(Format format, int64_t rows, int64_t cols);
PackedMatrix layout_of_gguf(int ggml_type, int64_t rows, int64_t cols);

// A matrix [N, K] of floats, and what it is rounded or quantised to.
struct FloatPart {
  Tensor weight;
  Format format;
};

// Lay out matrices that read the same input. importance: K numbers that weigh the squared errors of the inputs where a grid is
// chosen, or null: all alike. Throws ArgumentError where a number cannot be quantised.
std::unique_ptr<PackedWeight> pack(const std::vector<FloatPart>& parts, const float* importance);

// Rows of a GGUF tensor: its blocks as they lie in the file, and its type's number there.
struct GgufPart {
  const uint8_t* raw;
  int ggml_type;
  int64_t rows;
};

// Lay out the blocks of GGUF tensors [rows, cols] that read the same input, without dequantising. cols is a multiple of each
// type's block. Exact, but for scales and minima of K types: these are rounded to float16.
std::unique_ptr<PackedWeight> pack_gguf(const std::vector<GgufPart>& parts, int64_t cols);

// The outputs of the panels [first, last), numbered through all parts, for all rows of the input.
void multiply_panels(const PackedKernels& kernels, const PackedWeight& weight, const LinearInput& input, int64_t first,
                     int64_t last, const LinearOutput& output);

// out = x W^T (+ bias) for x [M, K] and out [M, N], both f32, on the pool's threads.
void packed_linear(const PackedKernels& kernels, const Tensor& x, const PackedWeight& weight, const float* bias,
                   const Tensor& out);

// Row `row` of the weight (numbered through all parts) in fp32: cols floats. Serves embeddings that are tied to the head.
void unpack_row(const PackedWeight& weight, int64_t row, float* out);

}  // namespace quire
