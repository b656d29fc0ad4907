// What ghost lists remember: positions that left the cache, in the order they left.
#pragma once
#include <cstdint>
#include <vector>

#include "bits.h"

namespace replay {

// First in, first out.
class Ghosts {
 public:
  bool holds(int32_t position) const {
    return static_cast<size_t>(position) < 64 * held_.size() && bit_of(held_.data(), position);
  }
  int64_t size() const { return size_; }
  void push(int32_t position) {  // one that it does not hold
    if (static_cast<size_t>(position) >= 64 * held_.size()) {
      for (Bitmap* map : {&held_, &gone_}) map->resize(words_of(position + position / 4 + 1), 0);
      times_gone_.resize(64 * held_.size(), 0);
    }
    set_bit(held_.data(), position);
    entries_.push_back(position);
    ++size_;
  }
  void remove(int32_t position) {  // one that it holds; its entry stays behind
    clear_bit(held_.data(), position);
    set_bit(gone_.data(), position);
    ++times_gone_[position];
    --size_;
  }
  void drop_oldest() {
    while (is_gone(entries_[begin_])) ++begin_;
    clear_bit(held_.data(), entries_[begin_++]);
    --size_;
    if (begin_ > entries_.size() / 2) {
      entries_.erase(entries_.begin(), entries_.begin() + begin_);
      begin_ = 0;
    }
  }

 private:
  // Whether the oldest entry of a position is one that stayed behind, which is counted off.
  bool is_gone(int32_t position) {
    if (!bit_of(gone_.data(), position)) return false;
    if (--times_gone_[position] == 0) clear_bit(gone_.data(), position);
    return true;
  }

  Bitmap held_, gone_;  // gone_: has entries that no longer count
  std::vector<uint32_t> times_gone_;  // by position; read where gone_ says so
  std::vector<int32_t> entries_;
  size_t begin_ = 0;
  int64_t size_ = 0;
};

}  // namespace replay
