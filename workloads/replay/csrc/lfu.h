// lfu, and what it has in common with the rules of slru_arc.h.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "map_rules.h"
#include "recency.h"

namespace replay {

// What these rules have in common: maps of their own, as long as those of Sets.
class OrderRule : public MapRule {
 public:
  static constexpr bool kHits = true;

 protected:
  static void fit(const Sets& sets, Bitmap& map) {
    if (map.size() < sets.resident.size()) map.resize(sets.resident.size(), 0);
  }
  // A token's hits or misses join an order, in selection order.
  void join(Recency& order, const MapStep& step, const Word* map) {
    if (step.ascending) return order.push(map, step.words);
    rest_.assign(map, map + step.words);
    listed_.clear();
    list_selected(step, rest_.data(), listed_);
    order.push(map, step.words, &listed_);
  }

  Bitmap rest_;
  std::vector<int32_t> listed_;
};

// Least frequently selected since it came, ties by the longest unselected. Counts lie in bitmaps, one for each binary
// digit, so that a step's hits are added up all at once; those of the lowest count leave together.
class Lfu : public OrderRule {
 public:
  Lfu(int64_t, const Options&) : digits_(kLow) {}
  void hits(Sets& sets, const MapStep& step) {
    for (Bitmap& digit : digits_) fit(sets, digit);
    fit(sets, high_);
    carry_.assign(sets.hits.begin(), sets.hits.begin() + step.words);
    for (size_t d = 0; d < kLow; ++d) {
      Word* const __restrict digit = digits_[d].data();
      Word* const __restrict carry = carry_.data();
      for (int64_t w = 0; w < step.words; ++w) {
        const Word both = digit[w] & carry[w];
        digit[w] ^= carry[w];
        carry[w] = both;
      }
    }
    carry_on(step.words);
    join(order_, step, sets.hits.data());
  }
  void fetch(Sets& sets, const MapStep& step, const std::vector<int32_t>& missing, int64_t evictions) {
    if (evictions > 0) evict_lowest(sets, step.words, evictions);
    if (missing.empty()) return;
    for (const int32_t p : missing) set_bit(digits_[0].data(), p);
    for (const int32_t p : missing) order_.add(p);
    order_.close();
    order_.tidy(sets.resident.data(), sets.resident.size());
  }
  void add(Sets& sets, int32_t position) {
    fit(sets, digits_[0]);
    set_bit(digits_[0].data(), position);
    order_.add(position);
    order_.tidy(sets.resident.data(), sets.resident.size());
  }
  void forget(Sets&, int32_t position) {
    if (high_.size() * 64 > static_cast<size_t>(position)) clear_bit(high_.data(), position);
    for (Bitmap& digit : digits_) {
      if (digit.size() * 64 > static_cast<size_t>(position)) clear_bit(digit.data(), position);
    }
  }

 private:
  static constexpr size_t kLow = 3;  // digits that every hit may change; few carry on into the higher ones

  void carry_on(int64_t words) {
    numbers_.resize(words + 8);
    const int64_t some = list_words(carry_.data(), words, numbers_.data());
    for (int64_t i = 0; i < some; ++i) {
      const int32_t w = numbers_[i];
      Word carry = carry_[w];
      high_[w] |= carry;
      for (size_t d = kLow; carry; ++d) {
        if (d == digits_.size()) digits_.emplace_back(high_.size(), 0);
        const Word both = digits_[d][w] & carry;
        digits_[d][w] ^= carry;
        carry = both;
      }
    }
  }

  // The n lowest counts leave, found from the highest digit down; of equal counts those longest unselected.
  void evict_lowest(Sets& sets, int64_t words, int64_t n) {
    left_.resize(words);  // of these n are to leave
    zeros_.resize(words);
    leaving_.assign(words, 0);
    for (int64_t w = 0; w < words; ++w) left_[w] = sets.resident[w] & ~sets.pinned[w];
    size_t digits = kLow;
    if (!narrow(high_.data(), words, n)) digits = digits_.size();
    while (digits-- > 0) narrow(digits_[digits].data(), words, n);
    const int64_t count = count_bits(left_.data(), words);
    if (count > n) order_.drop_newest(count - n, left_.data(), words);
    for (int64_t w = 0; w < words; ++w) leaving_[w] |= left_[w];
    numbers_.resize(words + 8);
    const int64_t some = list_words(leaving_.data(), words, numbers_.data());
    remove(sets.resident.data(), some);
    remove(high_.data(), some);
    for (Bitmap& digit : digits_) remove(digit.data(), some);
  }
  // Those without the digit if they are enough, and true; else they leave, and the rest is left.
  bool narrow(const Word* digit, int64_t words, int64_t& n) {
    const int64_t count = split(digit, words);
    if (count >= n) {
      left_.swap(zeros_);
      return true;
    }
    for (int64_t w = 0; w < words; ++w) leaving_[w] |= zeros_[w];
    for (int64_t w = 0; w < words; ++w) left_[w] &= ~zeros_[w];
    n -= count;
    return false;
  }
  int64_t split(const Word* digit, int64_t words) {
    Word* const __restrict zeros = zeros_.data();
    const Word* const __restrict left = left_.data();
    int64_t count = 0;
    for (int64_t w = 0; w < words; ++w) {
      zeros[w] = left[w] & ~digit[w];
      count += __builtin_popcountll(zeros[w]);
    }
    return count;
  }
  void remove(Word* map, int64_t some) const {
    for (int64_t i = 0; i < some; ++i) map[numbers_[i]] &= ~leaving_[numbers_[i]];
  }

  std::vector<Bitmap> digits_;  // lowest first
  Bitmap high_;  // of any of the digits above the low ones
  Bitmap carry_, left_, zeros_, leaving_;
  std::vector<int32_t> numbers_;
  Recency order_;
};

}  // namespace replay
