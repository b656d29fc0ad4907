// `staging`: keeps the current selection and nothing else (HiSparse, section 4.3), so B plays no part.
#pragma once
#include <cstdint>
#include <vector>

#include "policy.h"

namespace replay {

class Staging final : public Policy {
 public:
  explicit Staging(int64_t tokens) : tokens_(tokens) {}

  void begin(int32_t, int32_t) override {}  // a decode instance's first step fetches its whole selection
  void grow(int32_t) override {}

  // A hit is what one of the last `tokens` tokens selected: with MTP, the tokens of a step pass it on to one another.
  Counts token(const Token& t) override {
    const int32_t newest = t.seq_len - 1;
    if (newest > 0 && static_cast<size_t>(newest) > selected_by_.size()) selected_by_.resize(newest + newest / 4, 0);
    ++now_;
    Counts counts{0, 0};
    bool has_newest = false;
    const uint32_t limit = newest > 0 ? newest : 0;
    const int64_t kept_since = std::max<int64_t>(now_ - tokens_, 1);
    for (int64_t j = 0; j < t.k; ++j) {
      const int32_t p = t.selection[j];
      has_newest |= p == newest;
      if (static_cast<uint32_t>(p) >= limit) continue;
      counts.misses += selected_by_[p] < kept_since;
      counts.selected += selected_by_[p] != now_;
      selected_by_[p] = static_cast<int32_t>(now_);
    }
    counts.selected += has_newest;
    return counts;
  }

  void forget(int32_t begin, int32_t end) override {
    for (int32_t p = begin; p < end && p < static_cast<int32_t>(selected_by_.size()); ++p) selected_by_[p] = 0;
  }

  int64_t contents(int32_t* out) const override {
    int64_t count = 0;
    for (size_t p = 0; p < selected_by_.size(); ++p) {
      if (selected_by_[p] > 0 && selected_by_[p] > now_ - tokens_) out[count++] = static_cast<int32_t>(p);
    }
    return count;
  }

 private:
  const int64_t tokens_;
  std::vector<int32_t> selected_by_;  // by position: the last token that selected it
  int64_t now_ = 0;
};

}  // namespace replay
