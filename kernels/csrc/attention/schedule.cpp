#include "attention/schedule.h"

#include <algorithm>
#include <string>

#include "common/error.h"
#include "common/pool.h"

namespace quire {
namespace {

// Rows of a query tile: enough to pay for widening the keys once per tile, few enough to stay in L1 with them.
constexpr int kTileRows = 48;

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

// Keys that a token of the sequence sees on average, roughly.
double keys_seen(const AttentionCall& call, const AttentionSequence& s) {
  const int all = s.context - s.num_tokens / 2;
  return call.window > 0 ? std::min(all, call.window) : all;
}

// Items per thread that even out how long each takes.
constexpr int64_t kItemsPerThread = 16;
// Of which one knows the next and asks for its keys: the more, the better is memory used; the fewer, the more evenly threads are.
constexpr int64_t kMostInRun = 4, kRunsPerThread = 4;
// Bytes of a token's keys that an item reads in one piece: a tile of them, of their values and of the tile that follows stay in
// the second-level cache.
constexpr int64_t kMostTokenBytes = 1024;
// Floats of all partial results, however many threads there are and however long the contexts.
constexpr int64_t kMostPartials = int64_t(4) << 20;

// One item per partition of a tile, the longest tiles first, until there are enough to keep all threads busy. record: floats of
// a row's partial result.
void split_tiles(AttentionSchedule& schedule, int threads, int group, int64_t record) {
  std::vector<AttentionItem> parts;
  int64_t whole = int64_t(schedule.items.size()), partials = 0;
  for (const AttentionItem& tile : schedule.items) {
    const int64_t cuts = (tile.last_key - tile.first_key + kPartition - 1) / kPartition;
    const int64_t floats = cuts * tile.num_heads * tile.num_tokens * group * record;
    --whole;
    if (int64_t(parts.size()) + whole >= kItemsPerThread * threads || partials + floats > kMostPartials) {
      parts.push_back(tile);
      continue;
    }
    partials += floats;
    const auto begin = int32_t(parts.size());
    for (int first = tile.first_key; first < tile.last_key; first += kPartition) {
      AttentionItem part = tile;
      part.first_key = first;
      part.last_key = std::min(first + kPartition, tile.last_key);
      parts.push_back(part);
    }
    const int32_t count = int32_t(parts.size()) - begin;
    if (count > 1) schedule.spans.push_back({begin, count});
  }
  schedule.items = std::move(parts);
}

}  // namespace

std::vector<AttentionSequence> read_sequences(const AttentionCall& call, const Tensor& query_start,
                                              const Tensor& context_lens) {
  const int32_t* starts = query_start.as<int32_t>();
  const int32_t* contexts = context_lens.as<int32_t>();
  const int count = int(context_lens.shape[0]);
  if (starts[0] != 0 || starts[count] > call.query.shape[0])
    throw ArgumentError("query_start must begin with 0 and end at most at the " + std::to_string(call.query.shape[0]) +
                        " rows of query, got " + std::to_string(starts[0]) + ".." + std::to_string(starts[count]));
  std::vector<AttentionSequence> sequences;
  sequences.reserve(size_t(count));
  for (int s = 0; s < count; ++s) {
    const int64_t length = int64_t(starts[s + 1]) - starts[s];
    check_sequence(s, length, contexts[s], call);
    if (length > 0) sequences.push_back({s, starts[s], int(length), contexts[s]});
  }
  return sequences;
}

int attention_threads(const AttentionCall& call, const std::vector<AttentionSequence>& sequences) {
  double work = 0;
  for (const AttentionSequence& s : sequences)
    work += double(s.num_tokens) * keys_seen(call, s) * call.num_kv_heads * call.group * call.head_size * 2;
  return threads_for(work);
}

AttentionSchedule schedule_attention(const AttentionCall& call, std::vector<AttentionSequence> sequences, int threads) {
  // Longest first, so that the last item to finish is a short one.
  std::stable_sort(sequences.begin(), sequences.end(), [](const AttentionSequence& a, const AttentionSequence& b) {
    return int64_t(a.context) * std::min(a.num_tokens, kTileRows) > int64_t(b.context) * std::min(b.num_tokens, kTileRows);
  });

  // Where there are plenty of sequences, an item of a decoding one has many of its KV heads: it then reads the cache in
  // the order in which it lies in memory. A prompt's items are bound by arithmetic and stay one per head.
  const bool plenty = int64_t(sequences.size()) >= 4 * int64_t(threads);
  const int64_t head_bytes = call.head_size * size_of(call.key_cache.type);
  const int most_heads = int(std::clamp<int64_t>(kMostTokenBytes / head_bytes, 1, call.num_kv_heads));
  const int tile_tokens = std::max(1, kTileRows / call.group);
  AttentionSchedule schedule;
  schedule.group_ = call.group;
  schedule.record_ = 2 + padded_head(call.head_size);
  int most_rows = 0;
  for (const AttentionSequence& s : sequences)
    for (int last = s.num_tokens; last > 0; last -= tile_tokens) {  // later tokens see more keys
      const int first = std::max(0, last - tile_tokens), tokens = last - first;
      const int position = s.context - s.num_tokens + first;
      const int heads = plenty && tokens == 1 ? most_heads : 1;
      most_rows = std::max(most_rows, tokens * call.group * heads);
      for (int head = 0; head < call.num_kv_heads; head += heads)
        schedule.items.push_back({s.index, head, std::min(heads, call.num_kv_heads - head), s.first_row + first, tokens, position,
                                  call.first_seen(position) / kPartition * kPartition, position + tokens, nullptr});
    }
  schedule.scratch_floats = attention_scratch(most_rows, call.head_size);
  if (threads > 1 && int64_t(schedule.items.size()) < 4 * int64_t(threads)) split_tiles(schedule, threads, call.group, schedule.record_);
  schedule.run = int32_t(std::clamp<int64_t>(int64_t(schedule.items.size()) / (kRunsPerThread * threads), 1, kMostInRun));
  for (const auto& [first, count] : schedule.spans)
    for (int32_t i = first; i < first + count; ++i)
      schedule.partial_floats +=
          int64_t(schedule.items[size_t(i)].num_heads) * schedule.items[size_t(i)].num_tokens * call.group * schedule.record_;
  return schedule;
}

AttentionBounds attention_bounds(int num_kv_heads, int group, int head_size, int64_t longest, int threads) {
  const int tile_rows = std::max(1, kTileRows / group) * group;
  // Tiles of one head are cut until there are enough parts; the last one may bring as many as the longest context has.
  const int64_t parts = kItemsPerThread * threads + (longest + kPartition - 1) / kPartition;
  const int64_t partials = std::min(kMostPartials, parts * tile_rows * (2 + padded_head(head_size)));
  return {attention_scratch(std::max(tile_rows, group * num_kv_heads), head_size), threads > 1 ? partials : 0};
}

void AttentionSchedule::attend(const Kernels& kernels, const AttentionCall& call, int64_t index, float* scratch) const {
  const int64_t first = index * run;
  kernels.attend(call, &items[size_t(first)], int(std::min<int64_t>(run, int64_t(items.size()) - first)), scratch);
}

void AttentionSchedule::place(float* partials) {
  for (const auto& [first, count] : spans)
    for (int32_t i = first; i < first + count; ++i) {
      AttentionItem& item = items[size_t(i)];
      item.partial = partials;
      partials += int64_t(item.num_heads) * item.num_tokens * group_ * record_;
    }
}

}  // namespace quire
