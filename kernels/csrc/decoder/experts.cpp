#include "decoder/experts.h"

#include <algorithm>
#include <cmath>
#include <iterator>

namespace quire {

Routing::Routing(const DecoderModel& model, int64_t max_rows)
    : num_experts_(model.num_experts), chosen_(model.experts_per_token), normalise_(model.normalise_experts) {
  const auto slots = size_t(max_rows * chosen_);
  experts_.resize(slots);
  shares_.resize(slots);
  slots_.resize(slots);
  rows_.resize(slots);
  starts_.resize(size_t(num_experts_) + 1);
}

// A comparison with NaN is false, so that a row of NaN chooses the first experts; its shares are NaN.
void Routing::choose(int64_t row, const float* answers) {
  int32_t* experts = &experts_[size_t(row * chosen_)];
  float* shares = &shares_[size_t(row * chosen_)];
  for (int64_t i = 0; i < chosen_; ++i) {
    int32_t best = -1;
    for (int32_t e = 0; e < num_experts_; ++e)
      if ((best < 0 || answers[e] > answers[best]) && std::find(experts, experts + i, e) == experts + i) best = e;
    experts[i] = best;
  }
  const float most = answers[experts[0]];
  float all = 0, kept = 0;
  for (int64_t e = 0; e < num_experts_; ++e) all += std::exp(answers[e] - most);
  for (int64_t i = 0; i < chosen_; ++i) kept += shares[i] = std::exp(answers[experts[i]] - most);
  const float whole = (normalise_ ? kept : all) + 0.0f * all;  // NaN where any answer is
  for (int64_t i = 0; i < chosen_; ++i) shares[i] /= whole;
}

void Routing::sort(int64_t num_rows) {
  num_slots_ = num_rows * chosen_;
  std::fill(starts_.begin(), starts_.end(), 0);
  for (int64_t i = 0; i < num_slots_; ++i) ++starts_[size_t(experts_[size_t(i)]) + 1];
  for (size_t e = 1; e < starts_.size(); ++e) starts_[e] += starts_[e - 1];
  for (int64_t i = 0; i < num_slots_; ++i) {
    int32_t& next = starts_[size_t(experts_[size_t(i)])];
    slots_[size_t(i)] = next;
    rows_[size_t(next++)] = int32_t(i / chosen_);
  }
  for (size_t e = starts_.size() - 1; e > 0; --e) starts_[e] = starts_[e - 1];  // each had moved on to the next one's
  starts_[0] = 0;
}

int32_t Routing::expert_of(int64_t slot) const {
  return int32_t(std::upper_bound(starts_.begin(), starts_.end(), int32_t(slot)) - starts_.begin() - 1);
}

void Routing::combine(int64_t row, const float* answers, int64_t width, float* sum) const {
  for (int64_t i = row * chosen_; i < (row + 1) * chosen_; ++i) {
    const float* answer = answers + slots_[size_t(i)] * width;
    const float share = shares_[size_t(i)];
    for (int64_t d = 0; d < width; ++d) sum[d] += share * answer[d];
  }
}

const ExpertItems::Cut& ExpertItems::of(int32_t item) const {
  const auto after = std::upper_bound(cuts_.begin(), cuts_.end(), item, [](int32_t i, const Cut& cut) { return i < cut.first_item; });
  return *std::prev(after);
}

}  // namespace quire
