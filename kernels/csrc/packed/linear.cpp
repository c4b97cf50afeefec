// The driver of a single product: records of the rows, then panels, handed out to threads.
#include <algorithm>

#include "common/memory.h"
#include "common/pool.h"
#include "packed/weight.h"

namespace quire {
namespace {

// A thread is worth waking for this long.
constexpr double kThreadUs = 8;

// Microseconds of a panel on one thread, roughly: it comes from memory once, and is multiplied with every row.
double panel_us(const PackedMatrix& m, int64_t rows) {
  const double multiply_adds = double(m.cols) * kPanelRows * double(rows);
  return double(m.panel_bytes()) / 20'000 + multiply_adds / (m.input() == InputKind::int8 ? 80'000 : 40'000);
}

}  // namespace

void packed_linear(const PackedKernels& kernels, const Tensor& x, const PackedWeight& weight, const float* bias,
                   const Tensor& out) {
  LinearInput input;
  input.x = x.as<float>();
  input.stride = x.stride[0];
  input.num_rows = x.shape[0];
  if (input.num_rows == 0 || weight.rows() == 0) return;

  double us = 0;
  for (const PackedMatrix& part : weight.parts()) us += panel_us(part, input.num_rows) * double(part.num_panels());
  const int threads = int(std::min<double>(num_threads(), 1 + us / kThreadUs));

  const InputKind kind = weight.input();
  const int64_t record = kernels.record_bytes(kind, weight.cols());
  if (record > 0) {
    uint8_t* records = thread_memory().bytes.reserve(input.num_rows * record);
    input.records = records;
    const auto prepare = [&](int64_t row) {
      kernels.prepare_row(kind, input.x + row * input.stride, weight.cols(), records + row * record);
    };
    parallel_for(input.num_rows, input.num_rows < 8 ? 1 : threads, prepare);
  }

  LinearOutput output;
  output.out = out.as<float>();
  output.stride = out.stride[0];
  output.bias = bias;
  const int64_t panels = weight.num_panels();
  const int64_t chunk = threads == 1 ? panels : std::max<int64_t>(1, panels / (8 * threads));
  const auto multiply = [&](int64_t i) {
    multiply_panels(kernels, weight, input, i * chunk, std::min(panels, (i + 1) * chunk), output);
  };
  parallel_for((panels + chunk - 1) / chunk, threads, multiply);
}

}  // namespace quire
