// fifo, lru_plain, random and clock.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "mapped.h"
#include "recency.h"

namespace replay {

struct MapRule {
  static constexpr bool kHits = false, kMisses = true, kPins = true;
  void hits(Sets&, const MapStep&) {}
};

// The resident that came first leaves first.
class Fifo : public MapRule {
 public:
  Fifo(int64_t, const Options&) {}
  void fetch(Sets& sets, const MapStep&, const std::vector<int32_t>& missing, int64_t evictions) {
    if (evictions > 0) evict(sets, evictions);
    queue_.insert(queue_.end(), missing.begin(), missing.end());
  }
  void add(Sets&, int32_t position) { queue_.push_back(position); }
  void forget(Sets&, int32_t position) { queue_.erase(std::find(queue_.begin() + begin_, queue_.end(), position)); }

 private:
  // Pinned ones that the search passes over keep their places at the front.
  void evict(Sets& sets, int64_t n) {
    leaving_.resize(n + 1);
    passed_.resize(queue_.size() - begin_ + 1);
    const Word* const pinned = sets.pinned.data();
    int64_t found = 0, passed = 0;
    while (found < n) {
      const int32_t p = queue_[begin_++];
      const bool stays = bit_of(pinned, p);
      leaving_[found] = passed_[passed] = p;
      found += !stays;
      passed += stays;
    }
    begin_ -= passed;
    std::copy_n(passed_.begin(), passed, queue_.begin() + begin_);
    for (int64_t i = 0; i < n; ++i) clear_bit(sets.resident.data(), leaving_[i]);
    if (begin_ > queue_.size() / 2) {
      queue_.erase(queue_.begin(), queue_.begin() + begin_);
      begin_ = 0;
    }
  }

  std::vector<int32_t> queue_, leaving_, passed_;
  size_t begin_ = 0;
};

// The textbook's list: what was selected last is the most recent, in selection order, hit or miss.
class LruPlain : public MapRule {
 public:
  static constexpr bool kMisses = false, kPins = false;
  LruPlain(int64_t, const Options&) {}
  void fetch(Sets& sets, const MapStep& step, const std::vector<int32_t>&, int64_t evictions) {
    if (step.ascending) {
      order_.push(sets.selected.data(), step.words);
    } else {
      list_by_last(step, sets);
      order_.push(sets.selected.data(), step.words, &listed_);
    }
    if (evictions > 0) order_.take(evictions, sets.resident.data(), sets.resident.size());
    order_.tidy(sets.resident.data(), sets.resident.size());
  }
  void add(Sets& sets, int32_t position) {
    order_.add(position);
    order_.tidy(sets.resident.data(), sets.resident.size());
  }
  void forget(Sets&, int32_t) {}

 private:
  // Each selected position where the token has it last.
  void list_by_last(const MapStep& step, Sets& sets) {
    listed_.clear();
    Bitmap left(sets.selected.begin(), sets.selected.begin() + step.words);
    for (int64_t j = step.token.k; j-- > 0;) {
      const int32_t p = step.token.selection[j];
      if (p < 0 || p >= step.newest || !bit_of(left.data(), p)) continue;
      clear_bit(left.data(), p);
      listed_.push_back(p);
    }
    std::reverse(listed_.begin(), listed_.end());
  }

  Recency order_;
  std::vector<int32_t> listed_;
};

// Residents in numbered slots, which fetch fills one after another.
class Slotted : public MapRule {
 public:
  explicit Slotted(int64_t slots) : positions_(slots, -1) {
    for (int64_t slot = slots; slot-- > 0;) free_.push_back(static_cast<int32_t>(slot));
  }
  void add(Sets&, int32_t position) {
    positions_[free_.back()] = position;
    free_.pop_back();
  }
  void forget(Sets&, int32_t position) {
    const auto at = std::find(positions_.begin(), positions_.end(), position);
    *at = -1;
    free_.push_back(static_cast<int32_t>(at - positions_.begin()));
  }

 protected:
  // Returns how many misses found a free slot.
  int64_t fill_free(Sets& sets, const std::vector<int32_t>& missing, int64_t evictions) {
    const int64_t free = static_cast<int64_t>(missing.size()) - evictions;
    for (int64_t i = 0; i < free; ++i) add(sets, missing[i]);
    return free;
  }
  // Whether the resident of the slot leaves for `next`; it does unless it is pinned, or `spared`. No branches: which
  // slot leaves cannot be predicted.
  Word take(Sets& sets, int64_t slot, int32_t next, Word spared) {
    const int32_t p = positions_[slot];
    const Word leaves = ~(sets.pinned[p >> 6] >> (p & 63) | spared) & 1;
    positions_[slot] = p ^ ((p ^ next) & -static_cast<int32_t>(leaves));
    sets.resident[p >> 6] &= ~(leaves << (p & 63));
    return leaves;
  }

  std::vector<int32_t> positions_;  // by slot
  std::vector<int32_t> free_;
};

// xorshift64* (Vigna, 2016), seeded through splitmix64.
class Random64 {
 public:
  explicit Random64(uint64_t seed) {
    uint64_t z = seed + 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    state_ = (z ^ (z >> 31)) | 1;
  }
  uint64_t below(uint64_t n) {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return static_cast<uint64_t>(static_cast<unsigned __int128>(state_ * 0x2545f4914f6cdd1du) * n >> 64);
  }

 private:
  uint64_t state_;
};

// Every unpinned resident is as likely to leave as any other.
class Random : public Slotted {
 public:
  Random(int64_t slots, const Options& options) : Slotted(slots), random_(options.seed) {}
  void fetch(Sets& sets, const MapStep&, const std::vector<int32_t>& missing, int64_t evictions) {
    const int64_t count = missing.size(), slots = positions_.size();
    int64_t done = fill_free(sets, missing, evictions);
    for (int tries = 0; done < count && tries < kTries;) {
      const int taken = static_cast<int>(take(sets, random_.below(slots), missing[done], 0));
      done += taken;
      tries = (tries + 1) & (taken - 1);
    }
    if (done == count) return;
    candidates_.clear();  // few are left: list them
    for (int64_t slot = 0; slot < slots; ++slot) {
      if (!bit_of(sets.pinned.data(), positions_[slot])) candidates_.push_back(slot);
    }
    for (; done < count; ++done) {
      std::swap(candidates_[random_.below(candidates_.size())], candidates_.back());
      take(sets, candidates_.back(), missing[done], 0);
      candidates_.pop_back();
    }
  }

 private:
  static constexpr int kTries = 16;
  Random64 random_;
  std::vector<int64_t> candidates_;
};

// Second chance: a hand goes round, spares what was hit since it last came by, once, and takes the rest. It passes
// over pinned slots without a change.
class Clock : public Slotted {
 public:
  static constexpr bool kHits = true;
  Clock(int64_t slots, const Options&) : Slotted(slots), hand_(slots - 1) {}
  void hits(Sets& sets, const MapStep& step) {
    if (marks_.size() < sets.resident.size()) marks_.resize(sets.resident.size(), 0);
    for (int64_t w = 0; w < step.words; ++w) marks_[w] |= sets.hits[w];
  }
  void fetch(Sets& sets, const MapStep&, const std::vector<int32_t>& missing, int64_t evictions) {
    const int64_t count = missing.size(), last = static_cast<int64_t>(positions_.size()) - 1;
    int64_t done = fill_free(sets, missing, evictions), hand = hand_;
    while (done < count) {
      hand = hand == last ? 0 : hand + 1;
      const int32_t p = positions_[hand];
      const Word marked = marks_[p >> 6] >> (p & 63), pinned = sets.pinned[p >> 6] >> (p & 63);
      marks_[p >> 6] &= ~((~pinned & 1) << (p & 63));
      done += static_cast<int64_t>(take(sets, hand, missing[done], marked));
    }
    hand_ = hand;
  }
  void forget(Sets& sets, int32_t position) {
    if (marks_.size() * 64 > static_cast<size_t>(position)) clear_bit(marks_.data(), position);
    Slotted::forget(sets, position);
  }

 private:
  Bitmap marks_;  // hit since the hand came by
  int64_t hand_;
};

}  // namespace replay
