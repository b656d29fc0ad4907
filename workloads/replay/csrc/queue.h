// A queue of slots whose stale entries are found when they come up.
#pragma once
#include <cstdint>
#include <vector>

#include "cached.h"

namespace replay {

// First in, first out. A slot pushed again, or removed, leaves its old entry behind, which no longer counts.
class LazyQueue {
 public:
  explicit LazyQueue(int64_t slots) : entry_of_(slots + 2, 0), slots_(slots), entries_(4 * slots + 4) {}

  void push(Slot slot) {
    if (end_ == entries_.size()) compact();
    entry_of_[slot] = ++stamp_;
    entries_[end_++] = {stamp_, slot};
    size_ += 1;
  }
  // The slot, which is in the queue, goes to its end.
  void renew(Slot slot) {
    --size_;
    push(slot);
  }
  void remove(Slot slot) {
    entry_of_[slot] = 0;
    --size_;
  }
  bool holds(Slot slot) const { return entry_of_[slot] != 0; }
  int64_t size() const { return size_; }

  // Takes the first unpinned slot out; 0 if there is none. Pinned ones before it keep their places: see restore.
  template <class AnyPins>
  Slot pop(const AnyPins& pins) {
    while (begin_ < end_) {
      const Entry entry = entries_[begin_++];
      if (entry_of_[entry.slot] != entry.stamp) continue;
      if (pins.pinned(entry.slot)) {
        skipped_.push_back(entry);
        continue;
      }
      remove(entry.slot);
      return entry.slot;
    }
    return 0;
  }

  // Puts what pop passed over back to the front, once a token is done.
  void restore() {
    while (!skipped_.empty()) {
      const Entry entry = skipped_.back();
      skipped_.pop_back();
      if (entry_of_[entry.slot] == entry.stamp) entries_[--begin_] = entry;
    }
  }

 private:
  struct Entry {
    uint64_t stamp;
    Slot slot;
  };

  void compact() {  // keeps room at the front for what was passed over
    size_t to = skipped_.size();
    std::vector<Entry> kept(entries_.size());
    for (size_t at = begin_; at < end_; ++at) {
      if (entry_of_[entries_[at].slot] == entries_[at].stamp) kept[to++] = entries_[at];
    }
    entries_.swap(kept);
    begin_ = skipped_.size();
    end_ = to;
  }

  std::vector<uint64_t> entry_of_;  // the stamp of a slot's valid entry, 0 for none
  int64_t slots_, size_ = 0;
  std::vector<Entry> entries_;
  std::vector<Entry> skipped_;
  size_t begin_ = 0, end_ = 0;
  uint64_t stamp_ = 0;
};

}  // namespace replay
