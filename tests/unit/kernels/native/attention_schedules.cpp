// How attention is cut into items, for random batches on many threads: every key of every query tile once and in order, every
// item in one run, and memory within the bounds that are planned with.
#include <algorithm>
#include <cstdio>
#include <initializer_list>
#include <map>
#include <memory>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#include "attention/schedule.h"

namespace {

using namespace quire;

std::mt19937 random_bits(1);

int64_t draw(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random_bits); }

template <class T>
T one_of(std::initializer_list<T> values) {
  return values.begin()[draw(0, int64_t(values.size()) - 1)];
}

struct Batch {
  AttentionCall call{};
  std::vector<AttentionSequence> sequences;
  int threads = 1;

  Batch(int kv_heads, int group, int head_size, int window, int threads) : threads(threads) {
    call.num_kv_heads = kv_heads;
    call.group = group;
    call.head_size = head_size;
    call.window = window;
  }

  void add(int tokens, int context) {
    const int rows = sequences.empty() ? 0 : sequences.back().first_row + sequences.back().num_tokens;
    sequences.push_back({int(sequences.size()), rows, tokens, context});
  }

  AttentionSchedule schedule() const { return schedule_attention(call, sequences, threads); }
};

bool fail(const Batch& batch, const char* what) {
  std::printf("%s: %d KV heads of %d for %d, window %d, %d threads", what, batch.call.num_kv_heads, batch.call.head_size,
              batch.call.group, batch.call.window, batch.threads);
  for (const AttentionSequence& s : batch.sequences) std::printf(", %d of %d", s.num_tokens, s.context);
  std::printf("\n");
  return false;
}

constexpr int64_t kMostPartialBytes = 16 << 20;

bool within_bounds(const Batch& batch, const AttentionSchedule& schedule) {
  int64_t longest = 0;
  for (const AttentionSequence& s : batch.sequences) longest = std::max<int64_t>(longest, s.context);
  const AttentionCall& call = batch.call;
  const AttentionBounds bounds = attention_bounds(call.num_kv_heads, call.group, call.head_size, longest, batch.threads);
  if (schedule.partial_floats > bounds.partial_floats) return fail(batch, "more partial results than planned");
  if (schedule.scratch_floats > bounds.scratch_floats) return fail(batch, "more scratch than planned");
  if (bounds.partial_floats * 4 > kMostPartialBytes) return fail(batch, "partial results without a bound");
  return true;
}

bool complete(const Batch& batch, AttentionSchedule schedule) {
  const std::unique_ptr<float[]> partials(new float[size_t(schedule.partial_floats) + 1]);
  schedule.place(partials.get());
  std::vector<bool> folded(schedule.items.size());
  for (const auto& [first, count] : schedule.spans)
    for (int32_t i = first; i < first + count; ++i) folded[size_t(i)] = true;
  const int64_t record = 2 + padded_head(batch.call.head_size);
  int64_t floats = 0;
  std::map<std::pair<int, int>, int> rows;                        // (row, KV head): how often it is computed
  std::map<std::tuple<int, int, int>, std::pair<int, int>> keys;  // of a tile and head: the one that comes next, and the end
  for (size_t i = 0; i < schedule.items.size(); ++i) {
    const AttentionItem& item = schedule.items[i];
    const int first = batch.call.first_seen(item.first_position) / kPartition * kPartition;
    const int last = item.first_position + item.num_tokens;
    const auto [at, is_new] = keys.try_emplace({item.sequence, item.first_row, item.kv_head}, first, last);
    if (item.first_key != at->second.first) return fail(batch, "keys are left out, or out of order");
    at->second.first = item.last_key;
    if (folded[i] != (item.first_key != first || item.last_key != last)) return fail(batch, "a part that is not folded");
    if (folded[i] != (item.partial != nullptr)) return fail(batch, "a part without a place");
    if (folded[i]) {
      if (item.partial != partials.get() + floats) return fail(batch, "places that overlap");
      floats += record * item.num_heads * item.num_tokens * batch.call.group;
    }
    if (is_new)
      for (int row = item.first_row; row < item.first_row + item.num_tokens; ++row)
        for (int head = item.kv_head; head < item.kv_head + item.num_heads; ++head) ++rows[{row, head}];
  }
  if (floats != schedule.partial_floats) return fail(batch, "partial results are not counted");
  size_t expected = 0;
  for (const AttentionSequence& s : batch.sequences) {
    expected += size_t(s.num_tokens) * size_t(batch.call.num_kv_heads);
    for (int row = 0; row < s.num_tokens; ++row)
      for (int head = 0; head < batch.call.num_kv_heads; ++head)
        if (rows[{s.first_row + row, head}] != 1) return fail(batch, "a row that is not computed once");
  }
  if (rows.size() != expected) return fail(batch, "rows that nobody asked for");
  for (const auto& [tile, of] : keys)
    if (of.first != of.second) return fail(batch, "the last keys are left out");
  return true;
}

std::map<const AttentionItem*, int> attended;

// Runs may be taken in any order: here the last comes first.
bool each_in_one_run(const Batch& batch, const AttentionSchedule& schedule) {
  attended.clear();
  Kernels kernels{};
  kernels.attend = [](const AttentionCall&, const AttentionItem* items, int count, float*) {
    for (int i = 0; i < count; ++i) ++attended[items + i];
  };
  for (int64_t i = schedule.num_runs(); i-- > 0;) schedule.attend(kernels, batch.call, i, nullptr);
  for (const AttentionItem& item : schedule.items)
    if (attended[&item] != 1) return fail(batch, "an item that is not computed once");
  if (attended.size() != schedule.items.size()) return fail(batch, "items that do not exist");
  if (schedule.run > 1 && schedule.num_runs() < 4 * int64_t(batch.threads)) return fail(batch, "runs too long for the threads");
  return true;
}

bool random_batches(int count) {
  while (count-- > 0) {
    Batch batch(one_of({1, 2, 3, 8}), one_of({1, 2, 3, 4, 8, 16, 48, 71}), one_of({1, 64, 80, 128, 256, 512}),
                one_of({0, 0, 1, 500, 4096}), one_of({1, 2, 3, 8, 64, 128, 1024}));
    for (int64_t left = draw(1, 9); left > 0; --left) {
      const auto tokens = int(one_of<int64_t>({1, 1, 1, draw(2, 60), draw(61, 200)}));
      batch.add(tokens, tokens + int(one_of<int64_t>({0, draw(0, 600), draw(0, 9000), draw(0, 200'000)})));
    }
    const AttentionSchedule schedule = batch.schedule();
    if (!within_bounds(batch, schedule) || !complete(batch, schedule) || !each_in_one_run(batch, schedule)) return false;
  }
  return true;
}

// Prompts in chunks at the end of long contexts, beside a few sequences that decode, on large machines.
bool long_contexts() {
  for (const auto& [threads, tokens] : {std::pair(64, 256), std::pair(128, 512), std::pair(8, 16)}) {
    Batch batch(8, 4, 128, 0, threads);  // heads of Llama-3-8B
    batch.add(tokens, 131'072);
    for (int i = 0; i < 9; ++i) batch.add(1, 4000);
    if (!within_bounds(batch, batch.schedule())) return false;
  }
  Batch alone(1, 4, 128, 0, 64);  // its keys are still for all threads
  alone.add(1, 131'072);
  const AttentionSchedule schedule = alone.schedule();
  if (schedule.items.size() < 64) return fail(alone, "threads without work");
  return within_bounds(alone, schedule);
}

// Many sequences that decode: a thread knows what it reads next, and reads a token's heads together as far as a cache bears it.
bool many_decode() {
  for (const auto& [head_size, heads] : {std::pair(64, 3), std::pair(512, 1)}) {
    Batch batch(3, 3, head_size, 0, 2);
    batch.call.key_cache.type = DType::bf16;
    for (int i = 0; i < 64; ++i) batch.add(1, 256);
    const AttentionSchedule schedule = batch.schedule();
    if (schedule.run < 2) return fail(batch, "items one by one");
    for (const AttentionItem& item : schedule.items)
      if (item.num_heads != heads) return fail(batch, "heads that are not read together");
    if (!complete(batch, schedule) || !each_in_one_run(batch, schedule)) return false;
  }
  return true;
}

}  // namespace

int main() { return random_batches(500) && long_contexts() && many_decode() ? 0 : 1; }
