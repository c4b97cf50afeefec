// Planning of attention: ragged batch to items of one query tile, one KV head and, when there are few, one partition.
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "drivers.h"
#include "pool.h"

namespace quire {
namespace {

// Rows of a query tile: enough to pay for widening the keys once per tile, few enough to stay in L1 with them.
constexpr int kTileRows = 48;

// A thread is worth waking for this many multiply-adds (about 20 us).
constexpr double kWorkPerThread = 400'000;

struct Sequence {
  int index, first_row, num_tokens, context;
};

void check_sequence(int s, int64_t length, int64_t context, const AttentionCall& call) {
  const std::string name = "context_lens[" + std::to_string(s) + "] is " + std::to_string(context);
  if (length < 0) throw ArgumentError("query_start must not decrease, but does at sequence " + std::to_string(s));
  if (context < length)
    throw ArgumentError(name + ", less than the sequence's " + std::to_string(length) + " query tokens");
  const int64_t capacity = call.block_tables.shape[1] * call.block_size;
  if (context > capacity)
    throw ArgumentError(name + ", more than the " + std::to_string(capacity) + " slots a row of block_tables can name");
  if (length == 0) return;
  const int32_t* blocks = call.block_tables.as<int32_t>() + s * call.block_tables.stride[0];
  const auto num_blocks = uint64_t(call.key_cache.shape[0]);
  const int64_t used = (context + call.block_size - 1) / call.block_size;
  bool bad = false;
  for (int64_t i = 0; i < used; ++i) bad |= uint64_t(int64_t(blocks[i])) >= num_blocks;
  for (int64_t i = 0; bad; ++i)
    if (uint64_t(int64_t(blocks[i])) >= num_blocks)
      throw ArgumentError("block_tables[" + std::to_string(s) + "][" + std::to_string(i) + "] is " +
                          std::to_string(blocks[i]) + ", outside 0.." + std::to_string(int64_t(num_blocks) - 1));
}

std::vector<Sequence> read_batch(const AttentionCall& call, const Tensor& query_start, const Tensor& context_lens) {
  const int32_t* starts = query_start.as<int32_t>();
  const int32_t* contexts = context_lens.as<int32_t>();
  const int count = int(context_lens.shape[0]);
  if (starts[0] != 0 || starts[count] > call.query.shape[0])
    throw ArgumentError("query_start must begin with 0 and end at most at the " + std::to_string(call.query.shape[0]) +
                        " rows of query, got " + std::to_string(starts[0]) + ".." + std::to_string(starts[count]));
  std::vector<Sequence> sequences;
  sequences.reserve(size_t(count));
  for (int s = 0; s < count; ++s) {
    const int64_t length = int64_t(starts[s + 1]) - starts[s];
    check_sequence(s, length, contexts[s], call);
    if (length > 0) sequences.push_back({s, starts[s], int(length), contexts[s]});
  }
  return sequences;
}

// Keys that a token of the sequence sees on average, roughly.
double keys_seen(const AttentionCall& call, const Sequence& s) {
  const int all = s.context - s.num_tokens / 2;
  return call.window > 0 ? std::min(all, call.window) : all;
}

void zero_padding(const AttentionCall& call, int64_t first_row) {
  const int64_t bytes = call.head_size * size_of(call.out.type);
  for (int64_t row = first_row; row < call.out.shape[0]; ++row)
    for (int64_t head = 0; head < call.out.shape[1]; ++head) std::fill_n(call.out.at(row, head), bytes, char(0));
}

// Grow-only, per thread, never uninitialised.
float* scratch(int64_t floats) {
  struct Free {
    void operator()(float* p) const { std::free(p); }
  };
  thread_local std::unique_ptr<float, Free> memory;
  thread_local int64_t size = 0;
  if (floats > size) {
    floats = (floats + 15) / 16 * 16;
    size = 0;
    memory.reset();
    memory.reset(static_cast<float*>(std::aligned_alloc(64, size_t(floats) * sizeof(float))));
    if (!memory) throw std::bad_alloc();
    std::fill_n(memory.get(), floats, 0.0f);
    size = floats;
  }
  return memory.get();
}

}  // namespace

void paged_attention(const Kernels& kernels, AttentionCall call, const Tensor& query_start, const Tensor& context_lens) {
  std::vector<Sequence> sequences = read_batch(call, query_start, context_lens);
  zero_padding(call, query_start.as<int32_t>()[context_lens.shape[0]]);

  // Longest first, so that the last item to finish is a short one.
  std::stable_sort(sequences.begin(), sequences.end(), [](const Sequence& a, const Sequence& b) {
    return int64_t(a.context) * std::min(a.num_tokens, kTileRows) > int64_t(b.context) * std::min(b.num_tokens, kTileRows);
  });

  double work = 0;
  for (const Sequence& s : sequences)
    work += double(s.num_tokens) * keys_seen(call, s) * double(call.query.shape[1]) * call.head_size * 2;
  const int threads = int(std::min<double>(num_threads(), 1 + work / kWorkPerThread));

  // Where there are plenty of sequences, a decoding one is a single item for all its KV heads: it then reads the cache in
  // the order in which it lies in memory. A prompt's items are bound by arithmetic and stay one per head.
  const bool plenty = int64_t(sequences.size()) >= 4 * int64_t(threads);
  const int tile_tokens = std::max(1, kTileRows / call.group);
  std::vector<AttentionItem> tiles;
  int most_rows = 0;
  for (const Sequence& s : sequences)
    for (int last = s.num_tokens; last > 0; last -= tile_tokens) {  // later tokens see more keys
      const int first = std::max(0, last - tile_tokens), tokens = last - first;
      const int position = s.context - s.num_tokens + first;
      const int heads = plenty && tokens == 1 ? call.num_kv_heads : 1;
      most_rows = std::max(most_rows, tokens * call.group * heads);
      for (int head = 0; head < call.num_kv_heads; head += heads)
        tiles.push_back({s.index, head, heads, s.first_row + first, tokens, position,
                         call.first_seen(position) / kPartition * kPartition, position + tokens, nullptr});
    }
  if (tiles.empty()) return;

  const int64_t floats = attention_scratch(most_rows, call.head_size);
  if (threads == 1 || int64_t(tiles.size()) >= 4 * int64_t(threads)) {
    const auto attend = [&](int64_t i) { kernels.attend(call, tiles[size_t(i)], scratch(floats)); };
    return parallel_for(int64_t(tiles.size()), threads, attend);
  }

  // Too few tiles to keep all threads busy: one item per partition. The sums are the same, see attention_kernel.h.
  std::vector<AttentionItem> parts;
  std::vector<std::pair<int64_t, int>> spans;  // first part and number of parts of each tile
  int64_t records = 0;
  for (const AttentionItem& tile : tiles) {
    spans.emplace_back(int64_t(parts.size()), 0);
    for (int first = tile.first_key; first < tile.last_key; first += kPartition) {
      AttentionItem part = tile;
      part.first_key = first;
      part.last_key = std::min(first + kPartition, tile.last_key);
      parts.push_back(part);
      ++spans.back().second;
      records += tile.num_heads * tile.num_tokens * call.group;
    }
  }
  const int64_t record = 2 + padded_head(call.head_size);
  const std::unique_ptr<float[]> partials(new float[size_t(records * record)]);
  float* next = partials.get();
  for (AttentionItem& part : parts) {
    part.partial = next;
    next += part.num_heads * part.num_tokens * call.group * record;
  }
  const auto attend = [&](int64_t i) { kernels.attend(call, parts[size_t(i)], scratch(floats)); };
  parallel_for(int64_t(parts.size()), threads, attend);
  const auto merge = [&](int64_t i) {
    const auto [first, count] = spans[size_t(i)];
    kernels.merge(call, &parts[size_t(first)], count, scratch(floats));
  };
  parallel_for(int64_t(spans.size()), 1, merge);
}

}  // namespace quire
