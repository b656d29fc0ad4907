// What ghost lists remember: positions that left the cache, in the order they left.
#pragma once
#include <cstdint>
#include <vector>

#include "bits.h"

namespace replay {

// Positions that left, first in first out, at most `most` of them.
class Ghosts {
 public:
  bool holds(int32_t position) const { return static_cast<size_t>(position) < entry_of_.size() && bit_of(held_.data(), position); }
  int64_t size() const { return size_; }
  void push(int32_t position) {
    if (static_cast<size_t>(position) >= entry_of_.size()) {
      entry_of_.resize(position + position / 4 + 1, 0);
      held_.resize(words_of(entry_of_.size()), 0);
    }
    if (begin_ > entries_.size() / 2) {
      entries_.erase(entries_.begin(), entries_.begin() + begin_);
      begin_ = 0;
    }
    size_ += !bit_of(held_.data(), position);
    set_bit(held_.data(), position);
    entry_of_[position] = ++stamp_;
    entries_.push_back({stamp_, position});
  }
  void remove(int32_t position) {
    if (!holds(position)) return;
    clear_bit(held_.data(), position);
    --size_;
  }
  void drop_oldest() {
    for (;;) {
      const Entry entry = entries_[begin_++];
      if (entry_of_[entry.position] != entry.stamp || !holds(entry.position)) continue;
      return remove(entry.position);
    }
  }

 private:
  struct Entry {
    uint32_t stamp;
    int32_t position;
  };
  Bitmap held_;
  std::vector<uint32_t> entry_of_;  // by position: the stamp of its entry, valid if it is held
  std::vector<Entry> entries_;
  size_t begin_ = 0;
  int64_t size_ = 0;
  uint32_t stamp_ = 0;
};

}  // namespace replay
