// s3fifo. Within a token all hits come before all misses.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "ghosts.h"
#include "map_rules.h"

namespace replay {

// First in, first out, of positions that are in no other queue.
class PositionQueue {
 public:
  int64_t size() const { return size_; }
  void push(int32_t position) {
    entries_.push_back(position);
    ++size_;
  }
  // Takes the first one out that is not pinned; -1 if there is none. Pinned ones before it keep their places: restore.
  int32_t pop(const Word* pinned) {
    while (head_ < entries_.size()) {
      const int32_t p = entries_[head_++];
      if (bit_of(pinned, p)) {
        passed_.push_back(p);
        continue;
      }
      --size_;
      return p;
    }
    return -1;
  }
  // Puts what pop passed over back to the front, once a token is done.
  void restore() {
    head_ -= passed_.size();
    std::copy(passed_.begin(), passed_.end(), entries_.begin() + head_);
    passed_.clear();
    if (head_ <= entries_.size() / 2) return;
    entries_.erase(entries_.begin(), entries_.begin() + head_);
    head_ = 0;
  }
  void remove(int32_t position) {
    entries_.erase(std::find(entries_.begin() + head_, entries_.end(), position));
    --size_;
  }

 private:
  std::vector<int32_t> entries_, passed_;  // entries_: from head_ on
  size_t head_ = 0;
  int64_t size_ = 0;
};

// S3-FIFO (Yang et al., SOSP 2023): a small queue (`first` percent of B) filters what is selected once; what leaves it
// after two hits or more goes to the main queue, the rest leaves a ghost, whose return goes to main at once; main
// gives one more round per hit, up to three. The counts of hits are two bitmaps, of their low and their high bits.
class S3Fifo : public MapRule {
 public:
  static constexpr bool kHits = true;
  S3Fifo(int64_t slots, const Options& o)
      : small_room_(std::max<int64_t>(1, slots * o.first / 100)), main_room_(slots - small_room_) {}

  void hits(Sets& sets, const MapStep& step) {
    fit(sets);
    Word* const __restrict low = low_.data();
    Word* const __restrict high = high_.data();
    const Word* const __restrict hits = sets.hits.data();
    for (int64_t w = 0; w < step.words; ++w) {  // one more, 3 stays
      const Word hit = hits[w], was = low[w];
      low[w] = (was ^ hit) | (high[w] & was);
      high[w] |= was & hit;
    }
  }
  void fetch(Sets& sets, const MapStep&, const std::vector<int32_t>& missing, int64_t evictions) {
    int64_t free = static_cast<int64_t>(missing.size()) - evictions;
    for (const int32_t p : missing) {
      if (free-- <= 0) evict(sets);
      insert(p);
    }
    small_.restore();
    main_.restore();
  }
  void add(Sets& sets, int32_t position) {
    fit(sets);
    insert(position);
  }
  void forget(Sets&, int32_t position) { (bit_of(in_small_.data(), position) ? small_ : main_).remove(position); }

 private:
  void fit(const Sets& sets) {
    for (Bitmap* map : {&low_, &high_, &in_small_}) {
      if (map->size() < sets.resident.size()) map->resize(sets.resident.size(), 0);
    }
  }
  void insert(int32_t position) {
    clear_bit(low_.data(), position);
    clear_bit(high_.data(), position);
    if (ghosts_.holds(position)) {
      ghosts_.remove(position);
      return to_main(position);
    }
    set_bit(in_small_.data(), position);
    small_.push(position);
  }
  void to_main(int32_t position) {
    clear_bit(in_small_.data(), position);
    main_.push(position);
  }
  void evict(Sets& sets) {
    const Word* const pinned = sets.pinned.data();
    int32_t leaving = small_.size() >= small_room_ ? from_small(pinned) : -1;
    while (leaving < 0) {  // what small sends to main may be all that main can give
      if ((leaving = from_main(pinned)) < 0) leaving = from_small(pinned);
    }
    clear_bit(sets.resident.data(), leaving);
  }
  int32_t from_small(const Word* pinned) {
    for (int32_t p; (p = small_.pop(pinned)) >= 0;) {
      if (!bit_of(high_.data(), p)) {  // hit less than twice
        ghosts_.push(p);
        if (ghosts_.size() > main_room_) ghosts_.drop_oldest();
        return p;
      }
      clear_bit(low_.data(), p);
      clear_bit(high_.data(), p);
      to_main(p);
    }
    return -1;
  }
  int32_t from_main(const Word* pinned) {
    for (int32_t p; (p = main_.pop(pinned)) >= 0;) {
      const Word low = low_[p >> 6] >> (p & 63) & 1, high = high_[p >> 6] >> (p & 63) & 1;
      if (!(low | high)) return p;
      low_[p >> 6] ^= Word{1} << (p & 63);             // one less:
      high_[p >> 6] ^= (low ^ Word{1}) << (p & 63);  // 3 2 1 0 is 11 10 01 00
      main_.push(p);
    }
    return -1;
  }

  const int64_t small_room_, main_room_;
  PositionQueue small_, main_;
  Bitmap low_, high_, in_small_;
  Ghosts ghosts_;
};

}  // namespace replay
