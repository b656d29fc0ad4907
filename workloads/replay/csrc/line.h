// A queue of positions, oldest first, for what comes one by one; an entry of one that left is dropped when it comes up.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "bits.h"

namespace replay {

// members, wherever it is asked for: the positions that are in the queue; what is taken must leave it.
class Line {
 public:
  // One that is not in the queue.
  void push(int32_t position) {
    if (static_cast<size_t>(position) >= stamp_of_.size()) stamp_of_.resize(position + position / 4 + 1, 0);
    if (head_ > entries_.size() / 2 && head_ > kMostGone) tidy();
    stamp_of_[position] = ++stamp_;
    entries_.push_back(Entry{stamp_} << 32 | static_cast<uint32_t>(position));
  }

  // -1 if there is none; it stays the oldest until it leaves members.
  int32_t oldest(const Word* members) {
    for (; head_ < entries_.size(); ++head_) {
      if (valid(members, entries_[head_])) return position_of(entries_[head_]);
    }
    return -1;
  }

  // Takes the n oldest that are not in `pinned` out of members; fewer if there are no more. Pinned ones that it passes
  // over keep their places.
  const std::vector<int32_t>& take(int64_t n, Word* members, const Word* pinned) {
    taken_.resize(n + 1);
    passed_.clear();
    int64_t found = 0;
    for (; head_ < entries_.size() && found < n; ++head_) {
      const Entry e = entries_[head_];
      const bool counts = valid(members, e), stays = bit_of(pinned, position_of(e));
      taken_[found] = position_of(e);
      found += counts & !stays;
      if (counts & stays) passed_.push_back(e);
    }
    head_ -= passed_.size();
    std::copy(passed_.begin(), passed_.end(), entries_.begin() + head_);
    taken_.resize(found);
    for (const int32_t p : taken_) clear_bit(members, p);
    return taken_;
  }

 private:
  using Entry = uint64_t;  // stamp and position, as one number: it is often read just after it was written
  static int32_t position_of(Entry e) { return static_cast<int32_t>(e); }
  static constexpr size_t kMostGone = 512;

  void tidy() {
    entries_.erase(entries_.begin(), entries_.begin() + head_);
    head_ = 0;
  }
  bool valid(const Word* members, Entry e) const {
    return bit_of(members, position_of(e)) && stamp_of_[position_of(e)] == e >> 32;
  }

  std::vector<uint32_t> stamp_of_;  // by position: that of its last entry
  std::vector<Entry> entries_, passed_;
  std::vector<int32_t> taken_;
  size_t head_ = 0;
  uint32_t stamp_ = 0;
};

}  // namespace replay
