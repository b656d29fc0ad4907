// lfu.
#pragma once
#include <cstdint>
#include <vector>

#include "cached.h"

namespace replay {

// Doubly linked lists over slots; a slot is in at most one.
class Links {
 public:
  explicit Links(int64_t slots) : previous_(slots + 2, 0), next_(slots + 2, 0) {}

  struct List {
    Slot oldest = 0, newest = 0;
    int64_t size = 0;
  };

  void push(List& list, Slot slot) {
    previous_[slot] = list.newest;
    next_[slot] = 0;
    (list.newest ? next_[list.newest] : list.oldest) = slot;
    list.newest = slot;
    ++list.size;
  }
  void remove(List& list, Slot slot) {
    const Slot before = previous_[slot], after = next_[slot];
    (before ? next_[before] : list.oldest) = after;
    (after ? previous_[after] : list.newest) = before;
    --list.size;
  }
  Slot next(Slot slot) const { return next_[slot]; }

 private:
  std::vector<Slot> previous_, next_;
};

// Least frequently selected since it came, ties by the longest unselected. One list per count. A selected slot joins
// its list at the end, so the pinned ones are the last of each list: if the first is pinned, all are.
class Lfu : public RuleBase {
 public:
  Lfu(int64_t slots, const Options&) : links_(slots), count_(slots + 2, 0), lists_(2) {}
  void begin_token(int64_t) { low_ = 1; }
  void hit(Slot slot) {
    links_.remove(lists_[count_[slot]], slot);
    if (++count_[slot] == lists_.size()) lists_.emplace_back();
    links_.push(lists_[count_[slot]], slot);
  }
  Slot victim(const Pins& pins) {
    while (!lists_[low_].oldest || pins.pinned(lists_[low_].oldest)) ++low_;
    return lists_[low_].oldest;
  }
  void evict(Slot slot, int32_t) { links_.remove(lists_[count_[slot]], slot); }
  void insert(Slot slot, int32_t) {
    count_[slot] = 1;
    links_.push(lists_[1], slot);
  }
  void forget(Slot slot) { links_.remove(lists_[count_[slot]], slot); }

 private:
  Links links_;
  std::vector<uint32_t> count_;
  std::vector<Links::List> lists_;  // by count
  size_t low_ = 1;
};

}  // namespace replay
