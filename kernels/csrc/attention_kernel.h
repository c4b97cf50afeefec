// Attention of one query tile, compiled once per instruction set (see isa_*.cpp).
//
// A row is one (token, query head) pair. Per tile of keys: K is widened to fp32 in L1 (or read in place where it is fp32
// already), scores are dot products along the head, the soft-max is online in base 2, V is accumulated key by key. Rows
// are computed kRows at a time to share loads, but each row's own sequence of operations never depends on its
// neighbours: results are the same bit for bit for any tile, batch, chunk or thread. The partitions of kPartition keys are
// reduced separately and folded in order, so splitting them over threads changes nothing either.
#pragma once

#include "vec.h"

namespace quire::QUIRE_ISA {

// Views into the scratch of one item.
struct Workspace {
  float* query;   // [rows][width], scaled by scale * log2(e), zero beyond head_size
  float* acc;     // [rows][width] of the partition
  float* total;   // [rows][width] over the partitions so far
  float* scores;  // [rows][kKeyTile]
  float* keys;    // [kKeyTile][width]
  float* values;  // [kKeyTile][width]
  float *row_max, *row_sum, *total_max, *total_sum, *alpha;  // [rows]
  int64_t width;

  Workspace(float* scratch, int rows, int head_size) : width(padded_head(head_size)) {
    const int64_t state = (rows + 15) / 16 * 16;
    query = scratch;
    acc = query + rows * width;
    total = acc + rows * width;
    keys = total + rows * width;
    values = keys + kKeyTile * width;
    scores = values + kKeyTile * width;
    row_max = scores + rows * kKeyTile;
    row_sum = row_max + state;
    total_max = row_sum + state;
    total_sum = total_max + state;
    alpha = total_sum + state;
  }
};

// scores[r][j] = query[r] . keys[j] for four keys. R rows share the loads of the keys.
template <int R>
QUIRE_INLINE void dot_four(const float* query, int64_t width, const float* const* keys, float* scores) {
  F sums[R][4] = {};
  for (int64_t d = 0; d < width; d += W) {
    F q[R];
    for (int r = 0; r < R; ++r) q[r] = load(query + r * width + d);
    for (int j = 0; j < 4; ++j) {
      const F k = load(keys[j] + d);
      for (int r = 0; r < R; ++r) sums[r][j] = fma(q[r], k, sums[r][j]);
    }
  }
  for (int r = 0; r < R; ++r) {
    const F4 four = sum4(sums[r][0], sums[r][1], sums[r][2], sums[r][3]);
    __builtin_memcpy(scores + r * kKeyTile, &four, sizeof four);
  }
}

template <int R>
void dot_rows(const float* query, int64_t width, const float* const* keys, int count, float* scores) {
  for (int j = 0; j < count; j += 4) dot_four<R>(query, width, keys + j, scores + j);
}

// acc[r] = acc[r] * alpha[r] + sum over j in [begin, end) of weights[r][j] * values[j], for C vectors of the head.
template <int R, int C>
QUIRE_INLINE void accumulate_columns(float* acc, int64_t width, const float* alpha, const float* weights,
                                     const float* const* values, int64_t d, int begin, int end) {
  F sums[R][C];
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) sums[r][c] = load(acc + r * width + d + c * W);
  if (alpha != nullptr)
    for (int r = 0; r < R; ++r)
      for (int c = 0; c < C; ++c) sums[r][c] = sums[r][c] * alpha[r];
  for (int j = begin; j < end; ++j) {
    F v[C];
    for (int c = 0; c < C; ++c) v[c] = load(values[j] + d + c * W);
    for (int r = 0; r < R; ++r) {
      const F weight = splat(weights[r * kKeyTile + j]);
      for (int c = 0; c < C; ++c) sums[r][c] = fma(weight, v[c], sums[r][c]);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) store(sums[r][c], acc + r * width + d + c * W);
}

template <int R>
void accumulate_rows(float* acc, int64_t width, const float* alpha, const float* weights, const float* const* values,
                     int begin, int end) {
  int64_t d = 0;
  for (; d + 4 * W <= width; d += 4 * W) accumulate_columns<R, 4>(acc, width, alpha, weights, values, d, begin, end);
  for (; d < width; d += W) accumulate_columns<R, 1>(acc, width, alpha, weights, values, d, begin, end);
}

using DotRows = void (*)(const float*, int64_t, const float* const*, int, float*);
using AccumulateRows = void (*)(float*, int64_t, const float*, const float*, const float* const*, int, int);

#if defined(__AVX512F__) || QUIRE_LANES == 16
constexpr DotRows kDotRows[] = {dot_rows<1>, dot_rows<2>, dot_rows<3>, dot_rows<4>, dot_rows<5>, dot_rows<6>};
constexpr AccumulateRows kAccumulateRows[] = {accumulate_rows<1>, accumulate_rows<2>, accumulate_rows<3>,
                                              accumulate_rows<4>, accumulate_rows<5>, accumulate_rows<6>};
#else
constexpr DotRows kDotRows[] = {dot_rows<1>, dot_rows<2>, dot_rows<3>};
constexpr AccumulateRows kAccumulateRows[] = {accumulate_rows<1>, accumulate_rows<2>, accumulate_rows<3>};
#endif
static_assert(sizeof kDotRows / sizeof kDotRows[0] == kRows);

// Online soft-max of one row over its n valid scores: they become weights, the row's state and alpha are updated.
QUIRE_INLINE void soft_max_row(float* scores, int n, float& row_max, float& row_sum, float& alpha) {
  const F minus_infinity = splat(-__builtin_inff());
  const I lanes = lane_numbers();
  F high = minus_infinity;
  for (int j = 0; j < n; j += W) {
    const F valid = (lanes + j < n) ? load(scores + j) : minus_infinity;
    store(valid, scores + j);
    high = max(valid, high);
  }
  const float tile_max = maximum(high);
  const float new_max = tile_max > row_max ? tile_max : row_max;
  F total = {};
  for (int j = 0; j < n; j += W) {
    const F weight = exp2(load(scores + j) - new_max);
    store(weight, scores + j);
    total = total + weight;
  }
  alpha = exp2(splat(row_max - new_max))[0];
  row_sum = row_sum * alpha + sum(total);
  row_max = new_max;
}

// Fold one partition's state of a row into the total. The first one is taken as it is.
QUIRE_INLINE void fold_row(float& total_max, float& total_sum, float* total, float row_max, float row_sum,
                           const float* acc, int64_t width) {
  if (total_sum == 0.0f) {
    total_max = row_max;
    total_sum = row_sum;
    for (int64_t d = 0; d < width; d += W) store(load(acc + d), total + d);
    return;
  }
  const float new_max = row_max > total_max ? row_max : total_max;
  const float keep = exp2(splat(total_max - new_max))[0], add = exp2(splat(row_max - new_max))[0];
  total_sum = total_sum * keep + row_sum * add;
  total_max = new_max;
  for (int64_t d = 0; d < width; d += W) store(fma(load(acc + d), splat(add), load(total + d) * keep), total + d);
}

// Walks the slots of one sequence in token order.
struct SlotWalk {
  const Tensor& cache;
  const int32_t* blocks;
  int block_size, kv_head, block, offset;
  char* slot;

  SlotWalk(const Tensor& cache, const int32_t* blocks, int block_size, int kv_head, int token)
      : cache(cache), blocks(blocks), block_size(block_size), kv_head(kv_head), block(token / block_size),
        offset(token % block_size), slot(cache.at(blocks[block], offset, kv_head)) {}

  // The current slot; then step. `more` says whether a next one exists: the table is not read beyond it.
  QUIRE_SHARED_INLINE char* next(bool more) {
    char* const current = slot;
    slot += cache.stride[1] * size_of(cache.type);
    if (++offset == block_size && more) {
      offset = 0;
      slot = cache.at(blocks[++block], 0, kv_head);
    }
    return current;
  }
};

// Pointers to n rows of keys or values from token `first` on: in place where they are fp32 and whole vectors, else widened
// into buffer. Of the `ahead` rows that follow, as many as fit in a tile are prefetched.
template <class T>
void gather(const Tensor& cache, const int32_t* blocks, int block_size, int kv_head, int head_size, int first, int n,
            int ahead, float* buffer, int64_t width, const float** rows) {
  SlotWalk walk(cache, blocks, block_size, kv_head, first);
  SlotWalk later(cache, blocks, block_size, kv_head, ahead > 0 ? first + n : first);
  for (int j = 0; j < n; ++j) {
    const T* row = reinterpret_cast<const T*>(walk.next(j + 1 < n));
    if (j < ahead) {
      const char* soon = later.next(j + 1 < ahead);
      for (int64_t byte = 0; byte < head_size * int64_t(sizeof(T)); byte += 64) __builtin_prefetch(soon + byte, 0, 2);
    }
    if constexpr (sizeof(T) == sizeof(float)) {
      if (head_size == width) {
        rows[j] = reinterpret_cast<const float*>(row);
        continue;
      }
    }
    float* to = buffer + j * width;
    int64_t d = 0;
    for (; d + W <= head_size; d += W) store(load(row + d), to + d);
    for (; d < head_size; ++d) to[d] = widen(row[d]);
    for (; d < width; ++d) to[d] = 0.0f;
    rows[j] = to;
  }
}

template <class T>
void load_query(const AttentionCall& call, const AttentionItem& item, const Workspace& work) {
  const float factor = call.scale * 1.4426950408889634f;
  for (int t = 0; t < item.num_tokens; ++t)
    for (int g = 0; g < call.group; ++g) {
      const T* from = reinterpret_cast<const T*>(call.query.at(item.first_row + t, item.kv_head * call.group + g));
      float* to = work.query + (t * call.group + g) * work.width;
      int64_t d = 0;
      for (; d < call.head_size; ++d) to[d] = widen(from[d]) * factor;
      for (; d < work.width; ++d) to[d] = 0.0f;
    }
}

template <class T>
void write_out(const AttentionCall& call, const AttentionItem& item, const Workspace& work) {
  for (int t = 0; t < item.num_tokens; ++t)
    for (int g = 0; g < call.group; ++g) {
      const int row = t * call.group + g;
      const float inverse = 1.0f / work.total_sum[row];
      const float* from = work.total + row * work.width;
      T* to = reinterpret_cast<T*>(call.out.at(item.first_row + t, item.kv_head * call.group + g));
      for (int64_t d = 0; d < call.head_size; ++d) narrow(from[d] * inverse, to + d);
    }
}

inline void write_out(const AttentionCall& call, const AttentionItem& item, const Workspace& work) {
  switch (call.out.type) {
    case DType::bf16: return write_out<bf16>(call, item, work);
    case DType::f16: return write_out<f16>(call, item, work);
    default: return write_out<float>(call, item, work);
  }
}

template <class T>
void attend_tile(const AttentionCall& call, const AttentionItem& item, const Workspace& work, int first, int n,
                 int ahead) {
  const int rows = item.num_tokens * call.group;
  const int64_t width = work.width;
  const int32_t* blocks = call.block_tables.as<int32_t>() + item.sequence * call.block_tables.stride[0];
  const float *keys[kKeyTile + 3], *values[kKeyTile];
  gather<T>(call.key_cache, blocks, call.block_size, item.kv_head, call.head_size, first, n, ahead, work.keys, width, keys);
  for (int j = n; j < n + 3; ++j) keys[j] = keys[n - 1];  // the last four may be fewer; their scores are masked

  // Keys of this tile that a row may see; rows before row_begin see none.
  const auto visible = [&](int row) {
    const int count = item.first_position + row / call.group + 1 - first;
    return count < n ? count : n;
  };
  const int row_begin = first > item.first_position ? (first - item.first_position) * call.group : 0;

  for (int row = row_begin; row < rows; row += kRows) {
    const int count = rows - row < kRows ? rows - row : kRows;
    kDotRows[count - 1](work.query + row * width, width, keys, visible(row + count - 1), work.scores + row * kKeyTile);
  }
  for (int row = row_begin; row < rows; ++row)
    soft_max_row(work.scores + row * kKeyTile, visible(row), work.row_max[row], work.row_sum[row], work.alpha[row]);

  gather<T>(call.value_cache, blocks, call.block_size, item.kv_head, call.head_size, first, n, ahead, work.values, width,
            values);
  for (int row = row_begin; row < rows; row += kRows) {
    const int count = rows - row < kRows ? rows - row : kRows;
    const int shared = visible(row);  // the first row of the group sees least
    kAccumulateRows[count - 1](work.acc + row * width, width, work.alpha + row, work.scores + row * kKeyTile, values, 0,
                               shared);
    for (int r = row + 1; r < row + count; ++r)  // never multiply a hidden value by zero: it may be infinite
      if (visible(r) > shared)
        accumulate_rows<1>(work.acc + r * width, width, nullptr, work.scores + r * kKeyTile, values, shared, visible(r));
  }
}

inline void attend(const AttentionCall& call, const AttentionItem& item, float* scratch) {
  const int rows = item.num_tokens * call.group;
  const Workspace work(scratch, rows, call.head_size);
  const int64_t width = work.width;
  switch (call.query.type) {
    case DType::bf16: load_query<bf16>(call, item, work); break;
    case DType::f16: load_query<f16>(call, item, work); break;
    default: load_query<float>(call, item, work); break;
  }
  const auto tile = call.key_cache.type == DType::bf16  ? attend_tile<bf16>
                    : call.key_cache.type == DType::f16 ? attend_tile<f16>
                                                        : attend_tile<float>;
  for (int row = 0; row < rows; ++row) work.total_sum[row] = 0.0f;
  for (int part = item.first_key; part < item.last_key; part += kPartition) {
    const int end = part + kPartition < item.last_key ? part + kPartition : item.last_key;
    for (int row = 0; row < rows; ++row) work.row_max[row] = -__builtin_inff(), work.row_sum[row] = 0.0f;
    for (int64_t i = 0; i < rows * width; ++i) work.acc[i] = 0.0f;
    for (int first = part; first < end; first += kKeyTile)
      tile(call, item, work, first, end - first < kKeyTile ? end - first : kKeyTile, item.last_key - first - kKeyTile);
    const int row_begin = part > item.first_position ? (part - item.first_position) * call.group : 0;
    for (int row = row_begin; row < rows; ++row)
      fold_row(work.total_max[row], work.total_sum[row], work.total + row * width, work.row_max[row], work.row_sum[row],
               work.acc + row * width, width);
  }
  if (item.partial == nullptr) return write_out(call, item, work);
  for (int row = 0; row < rows; ++row) {
    float* record = item.partial + row * (2 + width);
    record[0] = work.total_max[row];
    record[1] = work.total_sum[row];
    for (int64_t d = 0; d < width; ++d) record[2 + d] = work.total[row * width + d];
  }
}

inline void merge(const AttentionCall& call, const AttentionItem* items, int count, float* scratch) {
  const int rows = items[0].num_tokens * call.group;
  const Workspace work(scratch, rows, call.head_size);
  for (int row = 0; row < rows; ++row) {
    work.total_sum[row] = 0.0f;
    for (int i = 0; i < count; ++i) {
      const float* record = items[i].partial + row * (2 + work.width);
      if (items[i].first_key > items[i].first_position + row / call.group) break;  // sees none of these keys
      fold_row(work.total_max[row], work.total_sum[row], work.total + row * work.width, record[0], record[1], record + 2,
               work.width);
    }
  }
  write_out(call, items[0], work);
}

}  // namespace quire::QUIRE_ISA
