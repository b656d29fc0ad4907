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
  int64_t size() const { return end_ - head_ + num_passed_; }
  void reserve(int64_t more) {  // to be called before so many pushes
    if (end_ + more > static_cast<int64_t>(entries_.size())) entries_.resize(2 * (end_ + more));
    if (passed_.size() < entries_.size()) passed_.resize(entries_.size());
  }
  void push(int32_t position) { push_if(true, position); }
  void push_if(bool really, int32_t position) {
    entries_[end_] = position;
    end_ += really;
  }
  bool empty() const { return head_ == end_; }
  int32_t pop() { return entries_[head_++]; }
  // What was popped keeps its place at the front, once a token is done.
  void put_back_if(bool really, int32_t position) {
    passed_[num_passed_] = position;
    num_passed_ += really;
  }
  void restore() {
    head_ -= num_passed_;
    std::copy_n(passed_.begin(), num_passed_, entries_.begin() + head_);
    num_passed_ = 0;
    if (head_ <= end_ / 2) return;
    std::copy(entries_.begin() + head_, entries_.begin() + end_, entries_.begin());
    end_ -= head_;
    head_ = 0;
  }
  void remove(int32_t position) {
    end_ = std::remove(entries_.begin() + head_, entries_.begin() + end_, position) - entries_.begin();
  }

 private:
  std::vector<int32_t> entries_, passed_;  // entries_: from head_ to end_
  int64_t head_ = 0, end_ = 0, num_passed_ = 0;
};

// S3-FIFO (Yang et al., SOSP 2023): a small queue (`first` percent of B) filters what is selected once; what leaves it
// after two hits or more goes to the main queue, the rest leaves a ghost, whose return goes to main at once; main
// gives one more round per hit, up to three. The counts of hits are two bitmaps, of their low and their high bits.
class S3Fifo : public MapRule {
 public:
  S3Fifo(int64_t slots, const Options& o)
      : small_room_(std::max<int64_t>(1, slots * o.first / 100)), main_room_(slots - small_room_) {}

  void hits(Sets& sets, const MapStep& step) {
    fit(sets);
    Word* const __restrict low = low_.data();
    Word* const __restrict high = high_.data();
    const Word* const __restrict selected = sets.selected.data();
    const Word* const __restrict resident = sets.resident.data();
    for (int64_t w = 0; w < step.words; ++w) {  // one more, 3 stays
      const Word hit = selected[w] & resident[w], was = low[w];
      low[w] = (was ^ hit) | (high[w] & was);
      high[w] |= was & hit;
    }
  }
  void fetch(Sets& sets, const MapStep&, const std::vector<int32_t>& missing, int64_t evictions) {
    int64_t free = static_cast<int64_t>(missing.size()) - evictions;
    reserve(missing.size());
    for (const int32_t p : missing) {
      if (free-- <= 0) evict(sets);
      insert(p);
    }
    small_.restore();
    main_.restore();
  }
  void add(Sets& sets, int32_t position) {
    fit(sets);
    reserve(1);
    insert(position);
  }
  void forget(Sets&, int32_t position) { (bit_of(in_small_.data(), position) ? small_ : main_).remove(position); }

 private:
  void fit(const Sets& sets) {
    ghosts_.fit(sets.resident.size());
    stamps_.fit(sets.resident.size());
    for (Bitmap* map : {&low_, &high_, &in_small_}) {
      if (map->size() < sets.resident.size()) map->resize(sets.resident.size(), 0);
    }
  }
  void reserve(int64_t coming) {  // each resident goes round three times at most
    small_.reserve(coming);
    main_.reserve(coming + 4 * (small_room_ + main_room_));
  }
  void insert(int32_t position) {
    clear_bit(low_.data(), position);
    clear_bit(high_.data(), position);
    if (bit_of(ghosts_.held(), position)) {
      clear_bit(ghosts_.held(), position);
      --num_ghosts_;
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
    const Word* const pinned = sets.pinned;
    int32_t leaving = small_.size() >= small_room_ ? from_small(pinned) : -1;
    while (leaving < 0) {  // what small sends to main may be all that main can give
      if ((leaving = from_main(pinned)) < 0) leaving = from_small(pinned);
    }
    clear_bit(sets.resident.data(), leaving);
  }
  // Both return the first that leaves, -1 if there is none. What it is to be cannot be predicted, so nothing else
  // branches.
  int32_t from_small(const Word* pinned) {
    while (!small_.empty()) {
      const int32_t p = small_.pop();
      const bool stays = bit_of(pinned, p), often = bit_of(high_.data(), p);  // hit twice or more
      small_.put_back_if(stays, p);
      if (!stays & !often) {
        leave_ghost(p);
        return p;
      }
      main_.push_if(!stays, p);
      const Word moved = Word{!stays} << (p & 63);
      for (Bitmap* map : {&low_, &high_, &in_small_}) (*map)[p >> 6] &= ~moved;
    }
    return -1;
  }
  int32_t from_main(const Word* pinned) {
    while (!main_.empty()) {
      const int32_t p = main_.pop();
      const bool stays = bit_of(pinned, p), low = bit_of(low_.data(), p), high = bit_of(high_.data(), p);
      main_.put_back_if(stays, p);
      if (!stays & !low & !high) return p;
      main_.push_if(!stays, p);
      low_[p >> 6] ^= Word{!stays} << (p & 63);          // one less:
      high_[p >> 6] ^= static_cast<Word>(!stays & !low) << (p & 63);  // 3 2 1 0 is 11 10 01 00
    }
    return -1;
  }
  void leave_ghost(int32_t position) {
    ghosts_.push(&position, 1, stamps_);
    if (num_ghosts_ == main_room_) ghosts_.drop_oldest(stamps_);
    else ++num_ghosts_;
  }

  const int64_t small_room_, main_room_;
  PositionQueue small_, main_;
  Bitmap low_, high_, in_small_;
  Ghosts ghosts_;
  Stamps stamps_;
  int64_t num_ghosts_ = 0;
};

}  // namespace replay
