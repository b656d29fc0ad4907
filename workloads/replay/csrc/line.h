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
    stamp_of_[position] = ++stamp_;
    entries_.push_back({position, stamp_});
  }

  // -1 if there is none; it stays the oldest until it leaves members.
  int32_t oldest(const Word* members) {
    for (; head_ < entries_.size(); ++head_) {
      if (valid(members, entries_[head_])) return entries_[head_].position;
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
      const bool counts = valid(members, e), stays = bit_of(pinned, e.position);
      taken_[found] = e.position;
      found += counts & !stays;
      if (counts & stays) passed_.push_back(e);
    }
    head_ -= passed_.size();
    std::copy(passed_.begin(), passed_.end(), entries_.begin() + head_);
    taken_.resize(found);
    for (const int32_t p : taken_) clear_bit(members, p);
    if (head_ > entries_.size() / 2) tidy();
    return taken_;
  }

  // Gives back the memory of what left.
  void tidy() {
    entries_.erase(entries_.begin(), entries_.begin() + head_);
    head_ = 0;
  }

 private:
  struct Entry {
    int32_t position;
    uint32_t stamp;
  };
  bool valid(const Word* members, const Entry& e) const {
    return bit_of(members, e.position) & (stamp_of_[e.position] == e.stamp);
  }

  std::vector<uint32_t> stamp_of_;  // by position: that of its last entry
  std::vector<Entry> entries_, passed_;
  std::vector<int32_t> taken_;
  size_t head_ = 0;
  uint32_t stamp_ = 0;
};

}  // namespace replay
