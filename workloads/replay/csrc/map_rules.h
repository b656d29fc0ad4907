// fifo, lru_plain, random and clock.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "mapped.h"
#include "recency.h"
#include "sift.h"

namespace replay {

struct MapRule {
  static constexpr bool kMisses = true;
  void hits(Sets&, const MapStep&) {}
  static void leave(Sets& sets, const int32_t* positions, int64_t count) {
    for (int64_t i = 0; i < count; ++i) clear_bit(sets.resident.data(), positions[i]);
  }
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
    leaving_.resize(n + kSlack);
    passed_.resize(queue_.size() - begin_ + kSlack);
    const auto [seen, taken, passed] = sift(queue_.data() + begin_, queue_.size() - begin_, n, sets.pinned, All{},
                                            leaving_.data(), passed_.data());
    begin_ += seen - passed;
    std::copy_n(passed_.begin(), passed, queue_.begin() + begin_);
    leave(sets, leaving_.data(), taken);
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
  static constexpr bool kMisses = false;
  LruPlain(int64_t, const Options&) {}
  void fetch(Sets& sets, const MapStep& step, const std::vector<int32_t>&, int64_t evictions) {
    if (step.ascending) {
      order_.push(sets.selected.data(), step.words);
    } else {
      list_by_last(step, sets);
      order_.push(sets.selected.data(), step.words, nullptr, &listed_);
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

  std::vector<int32_t> positions_;  // by slot
  std::vector<int32_t> free_, leaving_;
};

// splitmix64 (Steele, Lea and Flood, 2014): each number depends on its index only, so many are made at once.
class Random64 {
 public:
  explicit Random64(uint64_t seed) : state_(seed) {}
  template <int64_t N>
  void below(uint32_t n, int32_t* out) {
    for (int64_t i = 0; i < N; ++i) {
      uint64_t z = state_ + (i + 1) * kStep;
      z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
      z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
      out[i] = static_cast<int32_t>(((z ^ (z >> 31)) >> 32) * n >> 32);
    }
    state_ += N * kStep;
  }

 private:
  static constexpr uint64_t kStep = 0x9e3779b97f4a7c15u;
  uint64_t state_;
};

// Every unpinned resident is as likely to leave as any other.
class Random : public Slotted {
 public:
  Random(int64_t slots, const Options& options) : Slotted(slots), random_(options.seed) {}
  void fetch(Sets& sets, const MapStep&, const std::vector<int32_t>& missing, int64_t evictions) {
    const int64_t count = missing.size();
    int64_t done = fill_free(sets, missing, evictions);
    leaving_.resize(count + kSlack);
    for (int64_t taken = 1; done < count && taken > 0; done += taken) {
      random_.below<kDraws>(positions_.size(), slots_);
      taken = take(sets.pinned, missing.data() + done, count - done);
      leave(sets, leaving_.data(), taken);
    }
    if (done < count) take_listed(sets, missing, done);
  }

 private:
  static constexpr int kDraws = 16;

  // Misses take the slots drawn, one after another, but for those whose residents are pinned, as one that came to a
  // slot drawn before is; what had them is in leaving_. Returns how many of up to n misses did.
  int64_t take(const Word* pinned, const int32_t* missing, int64_t n) {
#ifdef REPLAY_LANES
    const __m512i slots = _mm512_loadu_si512(slots_);
    const __m512i p = _mm512_i32gather_epi32(slots, positions_.data(), 4);
    const __mmask16 again = _mm512_test_epi32_mask(_mm512_conflict_epi32(slots), _mm512_set1_epi32(-1));
    const __mmask16 free = ~(again | bits_of(pinned, p, 0xffff)), go = free & lanes_up_to(n, free);
    const __m512i next = _mm512_maskz_loadu_epi32(first_lanes(n), missing);
    _mm512_mask_i32scatter_epi32(positions_.data(), go, slots, _mm512_maskz_expand_epi32(go, next), 4);
    return put(leaving_.data(), go, p);
#else
    int64_t taken = 0;
    for (int i = 0; i < kDraws && taken < n; ++i) {
      const int32_t p = positions_[slots_[i]];
      const bool free = !bit_of(pinned, p);
      leaving_[taken] = p;
      positions_[slots_[i]] = p ^ ((p ^ missing[taken]) & -int32_t{free});
      taken += free;
    }
    return taken;
#endif
  }

  void take_listed(Sets& sets, const std::vector<int32_t>& missing, int64_t done) {  // few are left: list them
    candidates_.clear();
    for (size_t slot = 0; slot < positions_.size(); ++slot) {
      if (!bit_of(sets.pinned, positions_[slot])) candidates_.push_back(static_cast<int32_t>(slot));
    }
    for (; done < static_cast<int64_t>(missing.size()); ++done) {
      random_.below<1>(candidates_.size(), slots_);
      std::swap(candidates_[slots_[0]], candidates_.back());
      leave(sets, &positions_[candidates_.back()], 1);
      positions_[candidates_.back()] = missing[done];
      candidates_.pop_back();
    }
  }

  Random64 random_;
  int32_t slots_[kDraws];
  std::vector<int32_t> candidates_;
};

// Second chance: a hand goes round, spares what was hit since it last came by, once, and takes the rest. It passes
// over pinned slots without a change.
class Clock : public Slotted {
 public:
  Clock(int64_t slots, const Options&) : Slotted(slots) {}
  void hits(Sets& sets, const MapStep& step) {
    if (marks_.size() < sets.resident.size()) marks_.resize(sets.resident.size(), 0);
    const Word* const __restrict selected = sets.selected.data();
    const Word* const __restrict resident = sets.resident.data();
    Word* const __restrict marks = marks_.data();
    for (int64_t w = 0; w < step.words; ++w) marks[w] |= selected[w] & resident[w];
  }
  void fetch(Sets& sets, const MapStep&, const std::vector<int32_t>& missing, int64_t evictions) {
    const int64_t count = missing.size(), slots = positions_.size();
    int64_t done = fill_free(sets, missing, evictions);
    leaving_.resize(slots + kSlack);
    spared_.resize(slots + kSlack);
    while (done < count) {
      if (hand_ == slots) hand_ = 0;
      done += sweep(sets, missing.data() + done, count - done);
    }
  }
  void forget(Sets& sets, int32_t position) {
    if (marks_.size() * 64 > static_cast<size_t>(position)) clear_bit(marks_.data(), position);
    Slotted::forget(sets, position);
  }

 private:
  // The hand goes on to the last slot or until n misses have slots; returns how many have.
  int64_t sweep(Sets& sets, const int32_t* missing, int64_t n) {
    const int64_t slots = positions_.size();
    int64_t taken = 0, spared = 0;
#ifdef REPLAY_LANES
    while (hand_ < slots && taken < n) {
      const __mmask16 some = first_lanes(slots - hand_);
      const __m512i p = _mm512_maskz_loadu_epi32(some, positions_.data() + hand_);
      const __mmask16 free = some & ~bits_of(sets.pinned, p, some), marked = bits_of(marks_.data(), p, free);
      const __mmask16 lanes = some & lanes_up_to(n - taken, free & ~marked), go = free & ~marked & lanes;
      const __m512i next = _mm512_maskz_loadu_epi32(first_lanes(n - taken), missing + taken);
      _mm512_mask_storeu_epi32(positions_.data() + hand_, go, _mm512_maskz_expand_epi32(go, next));
      taken += put(leaving_.data() + taken, go, p);
      spared += put(spared_.data() + spared, marked & lanes, p);
      hand_ += __builtin_popcount(lanes);
    }
#else
    for (; hand_ < slots && taken < n; ++hand_) {
      const int32_t p = positions_[hand_];
      const bool free = !bit_of(sets.pinned, p), marked = bit_of(marks_.data(), p), goes = free & !marked;
      leaving_[taken] = spared_[spared] = p;
      positions_[hand_] = p ^ ((p ^ missing[taken]) & -int32_t{goes});
      taken += goes;
      spared += free & marked;
    }
#endif
    leave(sets, leaving_.data(), taken);
    for (int64_t i = 0; i < spared; ++i) clear_bit(marks_.data(), spared_[i]);
    return taken;
  }

  Bitmap marks_;  // hit since the hand came by
  std::vector<int32_t> spared_;
  int64_t hand_ = 0;  // the next slot
};

}  // namespace replay
