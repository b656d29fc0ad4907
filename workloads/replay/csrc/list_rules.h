// lfu, slru, s3fifo and arc. Within a token all hits come before all misses, see cached.h.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "cached.h"
#include "queue.h"

namespace replay {

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

// Segmented LRU (Karedla et al., 1994): probation for what came, protected (at most `first` percent of B) for what
// was hit there; what overflows from the latter goes back to the former.
class Slru : public RuleBase {
 public:
  Slru(int64_t slots, const Options& o)
      : most_protected_(slots * o.first / 100), links_(slots), is_protected_(slots + 2, 0) {}
  void begin_token(int64_t) {
    for (Walk& walk : walks_) walk.restart();
  }
  void hit(Slot slot) {
    links_.remove(list_of(slot), slot);
    is_protected_[slot] = 1;
    links_.push(lists_[1], slot);
    if (lists_[1].size <= most_protected_) return;
    const Slot demoted = lists_[1].oldest;
    links_.remove(lists_[1], demoted);
    is_protected_[demoted] = 0;
    links_.push(lists_[0], demoted);
  }
  Slot victim(const Pins& pins) {
    const Slot found = walks_[0].find(links_, lists_[0], pins);
    return found ? found : walks_[1].find(links_, lists_[1], pins);
  }
  void evict(Slot slot, int32_t) { links_.remove(list_of(slot), slot); }
  void insert(Slot slot, int32_t) {
    is_protected_[slot] = 0;
    links_.push(lists_[0], slot);
  }
  void forget(Slot slot) { links_.remove(list_of(slot), slot); }

 private:
  Links::List& list_of(Slot slot) { return lists_[is_protected_[slot]]; }

  const int64_t most_protected_;
  Links links_;
  std::vector<uint8_t> is_protected_;
  Links::List lists_[2];  // probation, protected
  Walk walks_[2];
};

// Positions that left, first in first out, at most `most` of them.
class Ghosts {
 public:
  bool holds(int32_t position) const { return static_cast<size_t>(position) < entry_of_.size() && entry_of_[position]; }
  int64_t size() const { return size_; }
  void push(int32_t position) {
    if (static_cast<size_t>(position) >= entry_of_.size()) entry_of_.resize(position + position / 4 + 1, 0);
    if (begin_ > entries_.size() / 2) {
      entries_.erase(entries_.begin(), entries_.begin() + begin_);
      begin_ = 0;
    }
    size_ += !entry_of_[position];
    entry_of_[position] = ++stamp_;
    entries_.push_back({stamp_, position});
  }
  void remove(int32_t position) {
    if (!holds(position)) return;
    entry_of_[position] = 0;
    --size_;
  }
  void drop_oldest() {
    for (;;) {
      const Entry entry = entries_[begin_++];
      if (entry_of_[entry.position] != entry.stamp) continue;
      return remove(entry.position);
    }
  }

 private:
  struct Entry {
    uint64_t stamp;
    int32_t position;
  };
  std::vector<uint64_t> entry_of_;  // by position: the stamp of its valid entry
  std::vector<Entry> entries_;
  size_t begin_ = 0;
  int64_t size_ = 0;
  uint64_t stamp_ = 0;
};

// S3-FIFO (Yang et al., SOSP 2023): a small queue (`first` percent of B) filters what is selected once; what leaves it
// after two hits or more goes to the main queue, the rest leaves a ghost, whose return goes to main at once; main
// gives one more round per hit, up to three.
class S3Fifo : public RuleBase {
 public:
  S3Fifo(int64_t slots, const Options& o)
      : small_room_(std::max<int64_t>(1, slots * o.first / 100)), main_room_(slots - small_room_), small_(slots),
        main_(slots), hits_(slots + 2, 0) {}
  void hit(Slot slot) { hits_[slot] = std::min(hits_[slot] + 1, 3); }
  Slot victim(const Pins& pins) {
    for (;;) {
      if (small_.size() >= small_room_) {
        if (const Slot slot = from_small(pins)) return slot;
      }
      if (const Slot slot = from_main(pins)) return slot;
      if (const Slot slot = from_small(pins)) return slot;
    }
  }
  void evict(Slot, int32_t position) {
    if (!leaves_ghost_) return;
    ghosts_.push(position);
    if (ghosts_.size() > main_room_) ghosts_.drop_oldest();
  }
  void insert(Slot slot, int32_t position) {
    hits_[slot] = 0;
    (ghosts_.holds(position) ? main_ : small_).push(slot);
    ghosts_.remove(position);
  }
  void forget(Slot slot) { (small_.holds(slot) ? small_ : main_).remove(slot); }
  void end_token() {
    small_.restore();
    main_.restore();
  }

 private:
  static constexpr int kPromoted = 2;

  Slot from_small(const Pins& pins) {
    while (const Slot slot = small_.pop(pins)) {
      leaves_ghost_ = true;
      if (hits_[slot] < kPromoted) return slot;
      hits_[slot] = 0;
      main_.push(slot);
    }
    return 0;
  }
  Slot from_main(const Pins& pins) {
    while (const Slot slot = main_.pop(pins)) {
      leaves_ghost_ = false;
      if (hits_[slot] == 0) return slot;
      --hits_[slot];
      main_.push(slot);
    }
    return 0;
  }

  const int64_t small_room_, main_room_;
  LazyQueue small_, main_;
  std::vector<int> hits_;
  Ghosts ghosts_;
  bool leaves_ghost_ = false;
};

// ARC (Megiddo and Modha, FAST 2003): one list of what was selected in one step, one of what was in several, ghosts
// of both; a miss that finds its ghost moves the share between the lists.
class Arc : public RuleBase {
 public:
  Arc(int64_t slots, const Options&) : slots_(slots), links_(slots), often_(slots + 2, 0) {}
  void begin_token(int64_t) {
    for (Walk& walk : walks_) walk.restart();
  }
  void hit(Slot slot) {
    links_.remove(lists_[often_[slot]], slot);
    often_[slot] = 1;
    links_.push(lists_[1], slot);
  }
  // The miss that is to come in, before its victim is asked for.
  void miss(int32_t position) {
    const double once = ghosts_[0].size(), often = ghosts_[1].size();
    returns_from_ = ghosts_[0].holds(position) ? 0 : ghosts_[1].holds(position) ? 1 : -1;
    if (returns_from_ == 0) share_ = std::min(share_ + std::max(often / once, 1.0), static_cast<double>(slots_));
    if (returns_from_ == 1) share_ = std::max(share_ - std::max(once / often, 1.0), 0.0);
    if (returns_from_ >= 0) return ghosts_[returns_from_].remove(position);
    leaves_ghost_ = true;
    if (lists_[0].size + ghosts_[0].size() >= slots_) {
      if (ghosts_[0].size() > 0) {
        ghosts_[0].drop_oldest();
      } else {
        leaves_ghost_ = false;  // the list alone is full
      }
    } else if (lists_[0].size + lists_[1].size + ghosts_[0].size() + ghosts_[1].size() >= 2 * slots_) {
      ghosts_[1].drop_oldest();
    }
  }
  Slot victim(const Pins& pins) {
    const double once = static_cast<double>(lists_[0].size);
    const bool from_once = !leaves_ghost_ || (once >= 1 && (once > share_ || (returns_from_ == 1 && once == share_)));
    const Slot found = walks_[!from_once].find(links_, lists_[!from_once], pins);
    return found ? found : walks_[from_once].find(links_, lists_[from_once], pins);
  }
  void evict(Slot slot, int32_t position) {
    const int list = often_[slot];
    links_.remove(lists_[list], slot);
    if (leaves_ghost_) ghosts_[list].push(position);
  }
  void insert(Slot slot, int32_t) {
    often_[slot] = returns_from_ >= 0;
    links_.push(lists_[often_[slot]], slot);
    leaves_ghost_ = true;
  }
  void forget(Slot slot) { links_.remove(lists_[often_[slot]], slot); }

 private:
  const int64_t slots_;
  Links links_;
  std::vector<uint8_t> often_;  // the list of a slot: 0 selected in one step, 1 in several
  Links::List lists_[2];
  Walk walks_[2];
  Ghosts ghosts_[2];
  double share_ = 0;  // how many slots the first list is to have
  int returns_from_ = -1;
  bool leaves_ghost_ = true;
};

}  // namespace replay
