// Drivers of the kernels that treat rows one by one, and of dequantisation.
#include "rows/rows.h"

#include <algorithm>
#include <utility>

#include "common/checks.h"
#include "common/pool.h"

namespace quire {
namespace {

// Elements that are worth a thread (about 20 us).
constexpr int64_t kElementsPerThread = 32 * 1024;

// body(first, last) over ranges of rows; a row has `width` elements.
template <class Body>
void for_rows(int64_t rows, int64_t width, const Body& body) {
  if (rows == 0 || width == 0) return;
  const int64_t wanted = std::min<int64_t>(num_threads(), 1 + rows * width / kElementsPerThread);
  if (wanted == 1) return body(0, rows);
  const int64_t chunk = std::max<int64_t>(1, rows / (4 * wanted));
  const auto range = [&](int64_t i) { body(i * chunk, std::min(rows, (i + 1) * chunk)); };
  parallel_for((rows + chunk - 1) / chunk, int(wanted), range);
}

template <class Kernel>
void gated(Kernel kernel, const Tensor& gate_up, const Tensor& out) {
  const int64_t width = out.shape[1];
  for_rows(out.shape[0], width, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row)
      kernel(gate_up.at(row), gate_up.at(row, width), out.at(row), out.type, width);
  });
}

}  // namespace

void write_kv(const Kernels& kernels, const Tensor& key, const Tensor& value, const Tensor& key_cache,
              const Tensor& value_cache, const Tensor& slot_mapping) {
  const int64_t block_size = key_cache.shape[1], heads = key.shape[1], head_size = key.shape[2];
  const int64_t* slots = slot_mapping.as<int64_t>();
  check_range("slot_mapping", slots, slot_mapping.shape[0], -1, key_cache.shape[0] * block_size - 1);
  const auto whole = [&](const Tensor& t, int dimension) { return heads == 1 || t.stride[dimension] == head_size; };
  for_rows(key.shape[0], 2 * heads * head_size, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      if (slots[row] < 0) continue;
      const int64_t block = slots[row] / block_size, offset = slots[row] % block_size;
      for (const auto& [from, to] : {std::pair(&key, &key_cache), std::pair(&value, &value_cache)}) {
        if (whole(*from, 1) && whole(*to, 2)) {
          kernels.copy_row(from->at(row), from->type, to->at(block, offset), to->type, heads * head_size);
          continue;
        }
        for (int64_t head = 0; head < heads; ++head)
          kernels.copy_row(from->at(row, head), from->type, to->at(block, offset, head), to->type, head_size);
      }
    }
  });
}

void rms_norm(const Kernels& kernels, const Tensor& x, const Tensor* residual, const Tensor& weight, float eps,
              float offset, const Tensor& out) {
  for_rows(x.shape[0], x.shape[1], [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row)
      kernels.rms_norm_row(x.at(row), residual ? residual->at(row) : nullptr, weight.data, out.at(row), x.type, x.shape[1],
                           eps, offset);
  });
}

void head_rms_norm(const Kernels& kernels, const Tensor& query, const Tensor& key, const Tensor& query_weight,
                   const Tensor& key_weight, float eps, float offset) {
  const int64_t width = query.shape[2];
  for_rows(query.shape[0], width * (query.shape[1] + key.shape[1]), [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row)
      for (const auto& [heads, weight] : {std::pair(&query, &query_weight), std::pair(&key, &key_weight)})
        for (int64_t head = 0; head < heads->shape[1]; ++head)
          kernels.rms_norm_row(heads->at(row, head), nullptr, weight->data, heads->at(row, head), heads->type, width, eps,
                               offset);
  });
}

void rope(const Kernels& kernels, const Tensor& query, const Tensor& key, const Tensor& positions, const Tensor& cos,
          const Tensor& sin) {
  check_range("positions", positions.as<int64_t>(), positions.shape[0], 0, cos.shape[0] - 1);
  const int64_t half = cos.shape[1];
  for_rows(query.shape[0], 2 * half * (query.shape[1] + key.shape[1]), [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      const int64_t position = positions.as<int64_t>()[row];
      const auto* c = reinterpret_cast<const float*>(cos.at(position));
      const auto* s = reinterpret_cast<const float*>(sin.at(position));
      for (const Tensor* heads : {&query, &key})
        for (int64_t head = 0; head < heads->shape[1]; ++head)
          kernels.rope_row(heads->at(row, head), heads->type, c, s, half);
    }
  });
}

void silu_mul(const Kernels& kernels, const Tensor& gate_up, const Tensor& out) {
  gated(kernels.silu_mul_row, gate_up, out);
}

void gelu_tanh_mul(const Kernels& kernels, const Tensor& gate_up, const Tensor& out) {
  gated(kernels.gelu_tanh_mul_row, gate_up, out);
}

void dequantize(const Kernels& kernels, const Tensor& raw, int ggml_type, int64_t block_elements, int64_t block_bytes,
                const Tensor& out) {
  for_rows(out.shape[0] / block_elements, block_elements, [&](int64_t first, int64_t last) {
    kernels.dequantize(raw.as<const uint8_t>() + first * block_bytes, ggml_type, last - first,
                       out.at(first * block_elements), out.type);
  });
}

}  // namespace quire
