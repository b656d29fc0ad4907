// What ghost lists remember: positions that left the cache, in the order they left.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "line.h"

namespace replay {

// First in, first out.
class Ghosts {
 public:
  void fit(size_t words) {  // room for the positions of so many words
    if (held_.size() < words) held_.resize(words, 0);
  }
  Word* held() { return held_.data(); }  // which positions it has; one whose bit is cleared is forgotten
  void push(const int32_t* positions, int64_t n, Stamps& stamps) {  // that it does not hold
    queue_.push(positions, n, stamps);
    for (int64_t i = 0; i < n; ++i) set_bit(held_.data(), positions[i]);
  }
  // Forgets the oldest, which there is. The next ones are looked up some at a time, as who was forgotten in between
  // cannot be predicted.
  void drop_oldest(const Stamps& stamps) {
    for (;; ++at_) {
      if (at_ == upcoming_.size()) look_up(stamps);
      const int32_t p = upcoming_[at_];
      if (bit_of(held_.data(), p) && stamps.of[p] == numbers_[at_]) break;
    }
    clear_bit(held_.data(), upcoming_[at_++]);
  }

 private:
  static constexpr int64_t kAtOnce = 128;

  void look_up(const Stamps& stamps) {
    upcoming_.clear();
    at_ = 0;
    queue_.take(kAtOnce, held_.data(), nullptr, stamps, upcoming_);
    numbers_.resize(upcoming_.size());
    for (size_t i = 0; i < upcoming_.size(); ++i) {  // they are still held
      set_bit(held_.data(), upcoming_[i]);
      numbers_[i] = stamps.of[upcoming_[i]];
    }
  }

  Bitmap held_;
  Queue queue_;
  std::vector<int32_t> upcoming_;
  std::vector<uint32_t> numbers_;
  size_t at_ = 0;
};

}  // namespace replay
