// The mixture of experts of one layer: which rows go to which expert, and the products of each expert as items. What there is
// to do is known only when the router has answered, so the cut is made in the middle of a step.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "decoder/model.h"
#include "decoder/product.h"

namespace quire {

// Rows of a step sorted by expert. A slot is one of a row's experts_per_token places in that order.
class Routing {
 public:
  // Takes all memory that steps of max_rows rows need.
  Routing(const DecoderModel& model, int64_t max_rows);

  // The chosen experts of a row and their shares, from the router's answers [num_experts]: the largest first, of equals the
  // first. Rows may be chosen for in any order, at once.
  void choose(int64_t row, const float* answers);
  // When all rows have chosen: the slots, by expert and then by row.
  void sort(int64_t num_rows);

  int64_t num_slots() const { return num_slots_; }
  int64_t row_of(int64_t slot) const { return rows_[size_t(slot)]; }
  int32_t expert_of(int64_t slot) const;
  // The slots of an expert are [first_slot(e), first_slot(e + 1)).
  int64_t first_slot(int64_t expert) const { return starts_[size_t(expert)]; }
  // sum += the answers [slots][width] of a row's experts times their shares, in the order in which they were chosen.
  void combine(int64_t row, const float* answers, int64_t width, float* sum) const;

  int64_t num_bytes() const {
    return int64_t(4 * (experts_.size() + shares_.size() + slots_.size() + rows_.size() + starts_.size()));
  }

 private:
  const int64_t num_experts_, chosen_;
  const bool normalise_;
  int64_t num_slots_ = 0;
  std::vector<int32_t> experts_;  // [rows][chosen]
  std::vector<float> shares_;     // [rows][chosen]
  std::vector<int32_t> slots_;    // [rows][chosen]
  std::vector<int32_t> rows_;     // [slots]
  std::vector<int32_t> starts_;   // [experts + 1]
};

// The products of all experts that have rows with one of their weights, as items.
class ExpertItems {
 public:
  explicit ExpertItems(int64_t num_experts) { cuts_.reserve(size_t(num_experts)); }

  // Returns the number of items. weight(expert) is the packed weight.
  template <class Weight>
  int64_t cut(const Routing& routing, int64_t num_experts, int threads, const Weight& weight) {
    cuts_.clear();
    int64_t busy = 0, items = 0;
    for (int64_t e = 0; e < num_experts; ++e) busy += routing.first_slot(e + 1) > routing.first_slot(e);
    // Few experts are cut as finely as any product; of many each is little work.
    const int share = threads == 1 ? 1 : int(std::max<int64_t>(2, threads / std::max<int64_t>(1, busy)));
    for (int64_t e = 0; e < num_experts; ++e) {
      const int64_t rows = routing.first_slot(e + 1) - routing.first_slot(e);
      if (rows == 0) continue;
      cuts_.push_back({int32_t(e), int32_t(items), cut_product(weight(e), rows, share)});
      items += cuts_.back().cut.items;
    }
    return items;
  }

  struct Cut {
    int32_t expert, first_item;
    ProductCut cut;
  };
  const Cut& of(int32_t item) const;

  int64_t num_bytes() const { return int64_t(cuts_.capacity() * sizeof(Cut)); }

 private:
  std::vector<Cut> cuts_;
};

}  // namespace quire
