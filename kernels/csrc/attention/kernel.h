// Attention of one query tile, compiled once per instruction set (see isa/).
//
// A row is one (token, query head) pair; the rows of an item are ordered by KV head, token and query head of the group. Per tile of keys: K is widened to fp32 in L1 (or read in place where that
// pays more), scores are dot products along the head, the soft-max is online in base 2, V is accumulated key by key. Rows
// are computed kRows at a time to share loads, but each row's own sequence of operations never depends on its
// neighbours: results are the same bit for bit for any tile, batch, chunk or thread. The partitions of kPartition keys are
// reduced separately and folded in order, so splitting them over threads changes nothing either.
#pragma once

#include "common/vec.h"

namespace quire::QUIRE_ISA {

// Views into the scratch of one item.
struct Workspace {
  float* query;   // [rows][width], scaled by scale * log2(e) (by scale / softcap where there is one), zero beyond head_size
  float* acc;     // [rows][width] of the partition
  float* total;   // [rows][width] over the partitions so far
  float* scores;  // [rows][kKeyTile]
  float* keys;    // [kKeyTile][width]
  float* values;  // [kKeyTile][width]
  float *row_max, *row_sum, *total_max, *total_sum, *alpha;  // [rows]
  int64_t width;

  // The part of one KV head.
  Workspace from_row(int row) const {
    Workspace part = *this;
    part.query += row * width;
    part.acc += row * width;
    part.total += row * width;
    part.scores += row * kKeyTile;
    part.row_max += row;
    part.row_sum += row;
    part.total_max += row;
    part.total_sum += row;
    part.alpha += row;
    return part;
  }

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
template <int R, class T>
QUIRE_INLINE void dot_four(const float* query, int64_t width, const T* const* keys, float* scores) {
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

// The keys, or the values, of a tile that is to come, asked for bit by bit while another is worked on. In the order in which they lie in memory:
// a block's tokens with all heads of the item follow each other there, and memory answers such a run at twice the rate of single heads. A
// tile has a pass for each head, so head h of the tile at hand asks for the h-th part of the next tile, whichever heads lie in it.
struct Ahead {
  const char* pieces[kKeyTile];  // of a token and a head
  int count = 0, done = 0;
  int64_t bytes = 0;  // of a piece

  QUIRE_SHARED_INLINE void fetch(int most) {
    for (; most > 0 && done < count; --most, ++done)
      for (int64_t byte = 0; byte < bytes; byte += 64) __builtin_prefetch(pieces[done] + byte);
  }
};

template <int R, class T>
void dot_rows(const float* query, int64_t width, const T* const* keys, int count, Ahead& ahead, float* scores) {
  for (int j = 0; j < count; j += 4) {
    ahead.fetch(4);
    dot_four<R>(query, width, keys + j, scores + j);
  }
}

// acc[r] = acc[r] * alpha[r] + sum over j in [begin, end) of weights[r][j] * values[j], for C vectors of the head.
template <int R, int C, class T>
QUIRE_INLINE void accumulate_columns(float* acc, int64_t width, const float* alpha, const float* weights,
                                     const T* const* values, int64_t d, int begin, int end, Ahead& ahead) {
  F sums[R][C];
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) sums[r][c] = load(acc + r * width + d + c * W);
  if (alpha != nullptr)
    for (int r = 0; r < R; ++r)
      for (int c = 0; c < C; ++c) sums[r][c] = sums[r][c] * splat(alpha[r]);
  for (int j = begin; j < end; ++j) {
    F weight[R];  // R weights, R*C sums and one value: all 16 registers of AVX2 for R = 3
    for (int r = 0; r < R; ++r) weight[r] = splat(weights[r * kKeyTile + j]);
    ahead.fetch(1);
    const T* value = values[j] + d;
    for (int c = 0; c < C; ++c) {
      const F v = load(value + c * W);
      for (int r = 0; r < R; ++r) sums[r][c] = fma(weight[r], v, sums[r][c]);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) store(sums[r][c], acc + r * width + d + c * W);
}

template <int R, class T>
void accumulate_rows(float* acc, int64_t width, const float* alpha, const float* weights, const T* const* values,
                     int begin, int end, Ahead& ahead) {
  int64_t d = 0;
  for (; d + 4 * W <= width; d += 4 * W)
    accumulate_columns<R, 4>(acc, width, alpha, weights, values, d, begin, end, ahead);
  for (; d < width; d += W) accumulate_columns<R, 1>(acc, width, alpha, weights, values, d, begin, end, ahead);
}

// The two functions for 1 to kRows rows, by number of rows.
template <class T>
struct RowFunctions {
  using Dot = void (*)(const float*, int64_t, const T* const*, int, Ahead&, float*);
  using Accumulate = void (*)(float*, int64_t, const float*, const float*, const T* const*, int, int, Ahead&);
#if defined(__AVX512F__)
  static constexpr Dot dot[] = {dot_rows<1, T>, dot_rows<2, T>, dot_rows<3, T>,
                                dot_rows<4, T>, dot_rows<5, T>, dot_rows<6, T>};
  static constexpr Accumulate accumulate[] = {accumulate_rows<1, T>, accumulate_rows<2, T>, accumulate_rows<3, T>,
                                              accumulate_rows<4, T>, accumulate_rows<5, T>, accumulate_rows<6, T>};
#else
  static constexpr Dot dot[] = {dot_rows<1, T>, dot_rows<2, T>, dot_rows<3, T>};
  static constexpr Accumulate accumulate[] = {accumulate_rows<1, T>, accumulate_rows<2, T>, accumulate_rows<3, T>};
#endif
  static_assert(sizeof dot / sizeof dot[0] == kRows);
};

// Online soft-max of one row over its n valid scores: they become weights, the row's state and alpha are updated. A score
// that is NaN or +infinity makes row_sum NaN, for good, and with it the result; -infinity is a weight of 0.
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
  const float origin = new_max > -__builtin_inff() ? new_max : 0.0f;  // of infinities no difference is taken
  F total = {};
  for (int j = 0; j < n; j += W) {
    const F weight = exp2(load(scores + j) - origin);
    store(weight, scores + j);
    total = total + weight;
  }
  alpha = exp2(splat(row_max - origin))[0];
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

// Where the rows of n tokens lie in the cache, from token `first` of the sequence on.
template <class T>
void locate(const Tensor& cache, const int32_t* blocks, int block_size, int kv_head, int first, int n, const T** rows) {
  int block = first / block_size, offset = first % block_size;
  for (int j = 0; j < n; ++block, offset = 0) {
    const T* row = reinterpret_cast<const T*>(cache.at(blocks[block], offset, kv_head));
    const int run = block_size - offset < n - j ? block_size - offset : n - j;
    for (int i = 0; i < run; ++i, row += cache.stride[1]) rows[j++] = row;
  }
}

// The keys of a tile that an item reads.
struct Tile {
  const AttentionItem* item;  // null: none
  int first;                  // key

  QUIRE_SHARED_INLINE int count() const {
    const int left = item->last_key - first;
    return left < kKeyTile ? left : kKeyTile;
  }
};

QUIRE_INLINE Tile first_tile(const AttentionCall& call, const AttentionItem* item) {
  if (item == nullptr) return {nullptr, 0};
  const int seen = call.first_seen(item->first_position) / kKeyTile * kKeyTile;
  return {item, seen > item->first_key ? seen : item->first_key};
}

QUIRE_INLINE const int32_t* table_of(const AttentionCall& call, const AttentionItem& item) {
  return call.block_tables.as<int32_t>() + item.sequence * call.block_tables.stride[0];
}

// Part `part` of a tile, of as many as its item has heads.
inline void look_ahead(const AttentionCall& call, const Tensor& cache, const Tile& tile, int part, Ahead& ahead) {
  ahead.count = ahead.done = 0;
  if (tile.item == nullptr || part >= tile.item->num_heads) return;
  const int heads = tile.item->num_heads, size = call.block_size;
  const int64_t head_bytes = cache.stride[2] * size_of(cache.type);
  ahead.count = tile.count();
  ahead.bytes = call.head_size * size_of(cache.type);
  int piece = part * ahead.count, head = piece % heads, token = tile.first + piece / heads;
  const int32_t* block = table_of(call, *tile.item) + token / size;
  int offset = token % size;
  for (int i = 0; i < ahead.count; ++block, offset = 0)
    for (; offset < size && i < ahead.count; ++offset, head = 0) {
      const char* at = cache.at(*block, offset, tile.item->kv_head + head);
      for (; head < heads && i < ahead.count; ++head, at += head_bytes) ahead.pieces[i++] = at;
    }
}

// Widen n rows into buffer, padded with zeros.
template <class T>
void widen_rows(const T* const* rows, int n, Ahead& ahead, int head_size, int64_t width, float* buffer, const float** widened) {
  for (int j = 0; j < n; ++j) {
    ahead.fetch(1);
    const T* row = rows[j];
    float* to = buffer + j * width;
    int64_t d = 0;
    for (; d + W <= head_size; d += W) store(load(row + d), to + d);
    for (; d < head_size; ++d) to[d] = widen(row[d]);
    for (; d < width; ++d) to[d] = 0.0f;
    widened[j] = to;
  }
}

// Calls f(row of the item, row of query, query head).
template <class Function>
QUIRE_INLINE void for_each_row(const AttentionCall& call, const AttentionItem& item, Function f) {
  int row = 0;
  for (int h = 0; h < item.num_heads; ++h)
    for (int t = 0; t < item.num_tokens; ++t)
      for (int g = 0; g < call.group; ++g) f(row++, item.first_row + t, (item.kv_head + h) * call.group + g);
}

template <class T>
void load_query(const AttentionCall& call, const AttentionItem& item, const Workspace& work) {
  const float factor = call.softcap > 0 ? call.scale / call.softcap : call.scale * 1.4426950408889634f;
  for_each_row(call, item, [&](int row, int token, int head) {
    const T* from = reinterpret_cast<const T*>(call.query.at(token, head));
    float* to = work.query + row * work.width;
    int64_t d = 0;
    for (; d + W <= call.head_size; d += W) store(load(from + d) * splat(factor), to + d);
    for (; d < call.head_size; ++d) to[d] = widen(from[d]) * factor;
    for (; d < work.width; ++d) to[d] = 0.0f;
  });
}

template <class T>
void write_out(const AttentionCall& call, const AttentionItem& item, const Workspace& work) {
  for_each_row(call, item, [&](int row, int token, int head) {
    const float inverse = 1.0f / work.total_sum[row];
    const float* from = work.total + row * work.width;
    T* to = reinterpret_cast<T*>(call.out.at(token, head));
    int64_t d = 0;
    for (; d + W <= call.head_size; d += W) store(load(from + d) * splat(inverse), to + d);
    for (; d < call.head_size; ++d) narrow(from[d] * inverse, to + d);
  });
}

inline void write_out(const AttentionCall& call, const AttentionItem& item, const Workspace& work) {
  switch (call.out.type) {
    case DType::bf16: return write_out<bf16>(call, item, work);
    case DType::f16: return write_out<f16>(call, item, work);
    default: return write_out<float>(call, item, work);
  }
}

// Keys [begin(row), end(row)) of a tile that each row may see.
struct Visibility {
  int first, n, first_position, group, window;

  QUIRE_SHARED_INLINE int end(int row) const {
    const int count = first_position + row / group + 1 - first;
    return count < n ? count : n;
  }
  QUIRE_SHARED_INLINE int begin(int row) const {
    const int hidden = window > 0 ? first_position + row / group + 1 - window - first : 0;
    return hidden > 0 ? hidden : 0;
  }
  // Rows before this one see none: the tile is yet to come.
  QUIRE_SHARED_INLINE int first_row() const { return first > first_position ? (first - first_position) * group : 0; }
  // Rows from this one on see none: the tile has left their window.
  QUIRE_SHARED_INLINE int last_row(int rows) const {
    const int64_t tokens = int64_t(first) + n - 1 + window - first_position;
    return window > 0 && tokens * group < rows ? int(tokens * group) : rows;
  }
};

// The cap of the first n scores of a row; `cap` brings them to base 2.
QUIRE_INLINE void cap_row(float* scores, int n, float cap) {
  for (int j = 0; j < n; j += W) store(tanh(load(scores + j)) * splat(cap), scores + j);
}

template <class T>
QUIRE_INLINE void score_tile(const Workspace& work, const Visibility& visible, int rows, const T** keys, Ahead& ahead) {
  for (int j = visible.n; j < visible.n + 3; ++j) keys[j] = keys[visible.n - 1];  // scores of keys that do not exist are not used
  for (int row = visible.first_row(); row < rows; row += kRows) {
    const int count = rows - row < kRows ? rows - row : kRows;
    RowFunctions<T>::dot[count - 1](work.query + row * work.width, work.width, keys, visible.end(row + count - 1), ahead,
                                    work.scores + row * kKeyTile);
  }
}

template <class T>
QUIRE_INLINE void accumulate_tile(const Workspace& work, const Visibility& visible, int rows, const T* const* values,
                                  Ahead& ahead) {
  const int64_t width = work.width;
  for (int row = visible.first_row(); row < rows; row += kRows) {
    const int count = rows - row < kRows ? rows - row : kRows;
    const int begin = visible.begin(row), shared = visible.end(row);  // the first row of the group sees the oldest keys
    if (begin != visible.begin(row + count - 1)) {                    // the window's edge passes through the group
      for (int r = row; r < row + count; ++r)
        accumulate_rows<1>(work.acc + r * width, width, work.alpha + r, work.scores + r * kKeyTile, values,
                           visible.begin(r), visible.end(r), ahead);
      continue;
    }
    RowFunctions<T>::accumulate[count - 1](work.acc + row * width, width, work.alpha + row, work.scores + row * kKeyTile,
                                           values, begin, shared, ahead);
    for (int r = row + 1; r < row + count; ++r)  // never multiply a hidden value by zero: it may be infinite
      if (visible.end(r) > shared)
        accumulate_rows<1>(work.acc + r * width, width, nullptr, work.scores + r * kKeyTile, values, shared,
                           visible.end(r), ahead);
  }
}

// The keys of a tile, for head `head` of its item; `next` is the tile that follows.
template <class T>
void attend_tile(const AttentionCall& call, const Tile& tile, const Workspace& work, int head, const Tile& next) {
  const AttentionItem& item = *tile.item;
  const int first = tile.first, n = tile.count(), kv_head = item.kv_head + head;
  const Visibility visible{first, n, item.first_position, call.group, call.window};
  const int rows = visible.last_row(item.num_tokens * call.group);
  const int32_t* blocks = table_of(call, item);
  // Widening pays when more than one group of rows reads the result; both ways compute the same.
  const bool in_place = call.head_size == work.width && (sizeof(T) == sizeof(float) || rows - visible.first_row() <= kRows);
  const T* stored[kKeyTile + 3];
  const float* widened[kKeyTile + 3];
  Ahead ahead;

  look_ahead(call, call.key_cache, next, head, ahead);
  locate(call.key_cache, blocks, call.block_size, kv_head, first, n, stored);
  if (in_place) {
    score_tile(work, visible, rows, stored, ahead);
  } else {
    widen_rows(stored, n, ahead, call.head_size, work.width, work.keys, widened);
    score_tile(work, visible, rows, widened, ahead);
  }
  ahead.fetch(kKeyTile);  // what is left where this tile is shorter than the next

  for (int row = visible.first_row(); row < rows; ++row) {
    float* scores = work.scores + row * kKeyTile;
    if (call.softcap > 0) cap_row(scores, visible.end(row), call.softcap * 1.4426950408889634f);
    for (int j = 0; j < visible.begin(row); ++j) scores[j] = -__builtin_inff();
    soft_max_row(scores, visible.end(row), work.row_max[row], work.row_sum[row], work.alpha[row]);
  }

  look_ahead(call, call.value_cache, next, head, ahead);
  locate(call.value_cache, blocks, call.block_size, kv_head, first, n, stored);
  if (in_place) {
    accumulate_tile(work, visible, rows, stored, ahead);
  } else {
    widen_rows(stored, n, ahead, call.head_size, work.width, work.values, widened);
    accumulate_tile(work, visible, rows, widened, ahead);
  }
  ahead.fetch(kKeyTile);
}

// next: the item that this thread turns to afterwards, or null.
inline void attend_item(const AttentionCall& call, const AttentionItem& item, const AttentionItem* next, float* scratch) {
  const int head_rows = item.num_tokens * call.group, rows = item.num_heads * head_rows;
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
    const int begin = first_tile(call, &item).first;
    for (int first = part > begin ? part : begin; first < end; first += kKeyTile) {
      const Tile following = first + kKeyTile < item.last_key ? Tile{&item, first + kKeyTile} : first_tile(call, next);
      for (int h = 0; h < item.num_heads; ++h) tile(call, {&item, first}, work.from_row(h * head_rows), h, following);
    }
    for (int row = 0; row < rows; ++row)
      if (call.sees(item.first_position + row % head_rows / call.group, part, end))
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

inline void attend(const AttentionCall& call, const AttentionItem* items, int count, float* scratch) {
  const Tensor* caches[] = {&call.key_cache, &call.value_cache};
  for (const Tensor* cache : caches)  // nobody asked for the first tile yet
    for (int part = 0; part < items[0].num_heads; ++part) {
      Ahead ahead;
      look_ahead(call, *cache, first_tile(call, items), part, ahead);
      ahead.fetch(kKeyTile);
    }
  for (int i = 0; i < count; ++i) attend_item(call, items[i], i + 1 < count ? items + i + 1 : nullptr, scratch);
}

inline void merge(const AttentionCall& call, const AttentionItem* items, int count, float* scratch) {
  const int head_rows = items[0].num_tokens * call.group, rows = items[0].num_heads * head_rows;
  const Workspace work(scratch, rows, call.head_size);
  for (int row = 0; row < rows; ++row) {
    work.total_sum[row] = 0.0f;
    for (int i = 0; i < count; ++i) {
      if (!call.sees(items[i].first_position + row % head_rows / call.group, items[i].first_key, items[i].last_key)) continue;
      const float* record = items[i].partial + row * (2 + work.width);
      fold_row(work.total_max[row], work.total_sum[row], work.total + row * work.width, record[0], record[1], record + 2,
               work.width);
    }
  }
  write_out(call, items[0], work);
}

}  // namespace quire::QUIRE_ISA
