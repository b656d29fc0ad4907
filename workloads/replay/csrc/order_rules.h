// lfu, slru and arc. Within a token all hits come before all misses.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "ghosts.h"
#include "mapped.h"
#include "recency.h"

namespace replay {

// What these rules have in common: maps of their own, as long as those of Sets.
class OrderRule : public MapRule {
 public:
  static constexpr bool kHits = true;

 protected:
  static void fit(const Sets& sets, Bitmap& map) {
    if (map.size() < sets.resident.size()) map.resize(sets.resident.size(), 0);
  }
  // A token's hits or misses join an order, in selection order.
  void join(Recency& order, const MapStep& step, const Word* map) {
    if (step.ascending) return order.push(map, step.words);
    rest_.assign(map, map + step.words);
    listed_.clear();
    list_selected(step, rest_.data(), listed_);
    order.push(map, step.words, &listed_);
  }

  Bitmap rest_;
  std::vector<int32_t> listed_;
};

// Least frequently selected since it came, ties by the longest unselected. Counts lie in bitmaps, one for each binary
// digit, so that a step's hits are added up all at once; those of the lowest count leave together.
class Lfu : public OrderRule {
 public:
  Lfu(int64_t, const Options&) : digits_(1) {}
  void hits(Sets& sets, const MapStep& step) {
    for (Bitmap& digit : digits_) fit(sets, digit);
    carry_.assign(sets.hits.begin(), sets.hits.begin() + step.words);
    Word any = 1;
    for (size_t d = 0; any; ++d) {
      if (d == digits_.size()) digits_.emplace_back(sets.resident.size(), 0);
      Word* const __restrict digit = digits_[d].data();
      Word* const __restrict carry = carry_.data();
      any = 0;
      for (int64_t w = 0; w < step.words; ++w) {
        const Word both = digit[w] & carry[w];
        digit[w] ^= carry[w];
        carry[w] = both;
        any |= both;
      }
    }
    join(order_, step, sets.hits.data());
  }
  void fetch(Sets& sets, const MapStep& step, const std::vector<int32_t>& missing, int64_t evictions) {
    if (evictions > 0) evict_lowest(sets, step.words, evictions);
    if (missing.empty()) return;
    for (const int32_t p : missing) set_bit(digits_[0].data(), p);
    for (const int32_t p : missing) order_.add(p);
    order_.close();
    order_.tidy(sets.resident.data(), sets.resident.size());
  }
  void add(Sets& sets, int32_t position) {
    fit(sets, digits_[0]);
    set_bit(digits_[0].data(), position);
    order_.add(position);
  }
  void forget(Sets&, int32_t position) {
    for (Bitmap& digit : digits_) {
      if (digit.size() * 64 > static_cast<size_t>(position)) clear_bit(digit.data(), position);
    }
  }

 private:
  // The n lowest counts leave, found from the highest digit down; of equal counts those longest unselected.
  void evict_lowest(Sets& sets, int64_t words, int64_t n) {
    left_.resize(words);  // of these n are to leave
    zeros_.resize(words);
    leaving_.assign(words, 0);
    for (int64_t w = 0; w < words; ++w) left_[w] = sets.resident[w] & ~sets.pinned[w];
    for (size_t d = digits_.size(); d-- > 0;) {
      const int64_t count = split(digits_[d].data(), words);
      if (count >= n) {
        left_.swap(zeros_);
        continue;
      }
      for (int64_t w = 0; w < words; ++w) leaving_[w] |= zeros_[w];
      for (int64_t w = 0; w < words; ++w) left_[w] &= ~zeros_[w];
      n -= count;
    }
    const int64_t count = count_bits(left_.data(), words);
    if (count > n) order_.drop_newest(count - n, left_.data(), words);
    for (int64_t w = 0; w < words; ++w) leaving_[w] |= left_[w];
    remove(sets.resident.data(), words);
    for (Bitmap& digit : digits_) remove(digit.data(), words);
  }
  int64_t split(const Word* digit, int64_t words) {
    Word* const __restrict zeros = zeros_.data();
    const Word* const __restrict left = left_.data();
    int64_t count = 0;
    for (int64_t w = 0; w < words; ++w) {
      zeros[w] = left[w] & ~digit[w];
      count += __builtin_popcountll(zeros[w]);
    }
    return count;
  }
  void remove(Word* __restrict map, int64_t words) const {
    const Word* const __restrict leaving = leaving_.data();
    for (int64_t w = 0; w < words; ++w) map[w] &= ~leaving[w];
  }

  std::vector<Bitmap> digits_;  // lowest first
  Bitmap carry_, left_, zeros_, leaving_;
  Recency order_;
};

// Segmented LRU (Karedla et al., 1994): probation for what came, protected (at most `first` percent of B) for what
// was hit there; what overflows from the latter goes back to the former.
class Slru : public OrderRule {
 public:
  Slru(int64_t slots, const Options& o) : room_(slots * o.first / 100) {}
  void hits(Sets& sets, const MapStep& step) {
    for (Bitmap& map : in_) fit(sets, map);
    rest_.assign(sets.hits.begin(), sets.hits.begin() + step.words);
    listed_.clear();
    if (!step.ascending) {
      list_selected(step, rest_.data(), listed_);
      for (const int32_t p : listed_) hit(p);
    } else if (!promote_ascending(sets.hits.data(), step.words)) {
      lister_.list(sets.hits.data(), step.words, listed_);
      size_t i = 0;
      for (; i < listed_.size() && listed_[i] <= reached_; ++i) order_[1].add(listed_[i]);
      demote(order_[1].oldest(in_[1].data(), in_[1].size()));
      for (; i < listed_.size(); ++i) hit(listed_[i]);
    }
    for (Recency& order : order_) order.close();
  }
  void fetch(Sets& sets, const MapStep&, const std::vector<int32_t>& missing, int64_t evictions) {
    const int64_t words = in_[0].size();
    if (evictions > 0) {
      const int64_t done = leave(sets, order_[0].take(evictions, in_[0].data(), words, sets.pinned.data()));
      if (done < evictions) {
        size_ -= leave(sets, order_[1].take(evictions - done, in_[1].data(), words, sets.pinned.data()));
      }
    }
    for (const int32_t p : missing) {
      set_bit(in_[0].data(), p);
      order_[0].add(p);
    }
    for (int i = 0; i < 2; ++i) {
      order_[i].close();
      order_[i].tidy(in_[i].data(), words);
    }
  }
  void add(Sets& sets, int32_t position) {
    for (Bitmap& map : in_) fit(sets, map);
    set_bit(in_[0].data(), position);
    order_[0].add(position);
  }
  void forget(Sets&, int32_t position) {
    size_ -= bit_of(in_[1].data(), position);
    for (Bitmap& map : in_) clear_bit(map.data(), position);
  }

 private:
  static int64_t leave(Sets& sets, const std::vector<int32_t>& positions) {
    for (const int32_t p : positions) clear_bit(sets.resident.data(), p);
    return positions.size();
  }
  void promote(int32_t position) {
    clear_bit(in_[0].data(), position);
    set_bit(in_[1].data(), position);
    ++size_;
  }
  void hit(int32_t position) {
    if (bit_of(in_[0].data(), position)) promote(position);
    order_[1].add(position);
    if (size_ > room_) demote(order_[1].oldest(in_[1].data(), in_[1].size()));
  }
  // A step's hits in ascending order, of which only those in probation are looked at one by one. A hit that is still
  // to come may be the oldest and leave the protected for a moment. False if all that is left to be demoted are hits
  // that went by, up to reached_, which is promoted.
  bool promote_ascending(const Word* hits, int64_t words) {
    for (int64_t w = 0; w < words; ++w) rest_[w] &= in_[0][w];
    for (int64_t w = 0; w < words; ++w) {
      while (rest_[w]) {
        reached_ = static_cast<int32_t>(w * 64 + __builtin_ctzll(rest_[w]));
        rest_[w] &= rest_[w] - 1;
        promote(reached_);
        if (size_ <= room_) continue;
        const int32_t oldest = order_[1].oldest(in_[1].data(), in_[1].size(), hits, reached_ + 1);
        if (oldest < 0) return false;
        demote(oldest);
        if (oldest < words * 64 && bit_of(hits, oldest)) set_bit(rest_.data(), oldest);
      }
    }
    order_[1].push(hits, words);
    return true;
  }
  void demote(int32_t position) {
    clear_bit(in_[1].data(), position);
    set_bit(in_[0].data(), position);
    order_[0].add(position);
    --size_;
  }

  const int64_t room_;
  Bitmap in_[2];  // probation, protected
  Recency order_[2];
  int64_t size_ = 0;  // of the protected
  int32_t reached_ = -1;
  BitLister lister_;
};

// ARC (Megiddo and Modha, FAST 2003): one list of what was selected in one step, one of what was in several, ghosts
// of both; a miss that finds its ghost moves the share between the lists.
class Arc : public OrderRule {
 public:
  Arc(int64_t slots, const Options&) : slots_(slots) {}
  void hits(Sets& sets, const MapStep& step) {
    for (Bitmap& map : in_) fit(sets, map);
    Word* const __restrict once = in_[0].data();
    Word* const __restrict often = in_[1].data();
    const Word* const __restrict hits = sets.hits.data();
    int64_t moved = 0;
    for (int64_t w = 0; w < step.words; ++w) {
      moved += __builtin_popcountll(once[w] & hits[w]);
      once[w] &= ~hits[w];
      often[w] |= hits[w];
    }
    size_[0] -= moved;
    size_[1] += moved;
    join(order_[1], step, hits);
  }
  void fetch(Sets& sets, const MapStep&, const std::vector<int32_t>& missing, int64_t evictions) {
    int64_t free = static_cast<int64_t>(missing.size()) - evictions;
    for (const int32_t p : missing) {
      look_up_ghosts(p);
      if (free-- <= 0) evict(sets);
      insert(p);
    }
    for (int i = 0; i < 2; ++i) {
      order_[i].close();
      order_[i].tidy(in_[i].data(), in_[i].size());
    }
  }
  void add(Sets& sets, int32_t position) {
    for (Bitmap& map : in_) fit(sets, map);
    look_up_ghosts(position);
    insert(position);
  }
  void forget(Sets&, int32_t position) {
    for (int i = 0; i < 2; ++i) {
      size_[i] -= bit_of(in_[i].data(), position);
      clear_bit(in_[i].data(), position);
    }
  }

 private:
  // The miss that is to come in, before its victim is looked for.
  void look_up_ghosts(int32_t position) {
    const double once = ghosts_[0].size(), often = ghosts_[1].size();
    returns_from_ = ghosts_[0].holds(position) ? 0 : ghosts_[1].holds(position) ? 1 : -1;
    leaves_ghost_ = true;
    if (returns_from_ == 0) share_ = std::min(share_ + std::max(often / once, 1.0), static_cast<double>(slots_));
    if (returns_from_ == 1) share_ = std::max(share_ - std::max(once / often, 1.0), 0.0);
    if (returns_from_ >= 0) return ghosts_[returns_from_].remove(position);
    if (size_[0] + ghosts_[0].size() >= slots_) {
      if (ghosts_[0].size() > 0) {
        ghosts_[0].drop_oldest();
      } else {
        leaves_ghost_ = false;  // the list alone is full
      }
    } else if (size_[0] + size_[1] + ghosts_[0].size() + ghosts_[1].size() >= 2 * slots_) {
      ghosts_[1].drop_oldest();
    }
  }
  void evict(Sets& sets) {
    const double once = static_cast<double>(size_[0]);
    const bool from_once = !leaves_ghost_ || (once >= 1 && (once > share_ || (returns_from_ == 1 && once == share_)));
    int from = from_once ? 0 : 1;
    int32_t leaving = oldest(sets, from);
    if (leaving < 0) leaving = oldest(sets, from = 1 - from);
    clear_bit(sets.resident.data(), leaving);
    clear_bit(in_[from].data(), leaving);
    --size_[from];
    if (leaves_ghost_) ghosts_[from].push(leaving);
  }
  // What is pinned came to its list last: if the oldest is, all are.
  int32_t oldest(const Sets& sets, int list) {
    const int32_t p = order_[list].oldest(in_[list].data(), in_[list].size());
    return p >= 0 && bit_of(sets.pinned.data(), p) ? -1 : p;
  }
  void insert(int32_t position) {
    const int to = returns_from_ >= 0;
    set_bit(in_[to].data(), position);
    ++size_[to];
    order_[to].add(position);
  }

  const int64_t slots_;
  Bitmap in_[2];  // selected in one step, in several
  Recency order_[2];
  Ghosts ghosts_[2];
  int64_t size_[2] = {0, 0};
  double share_ = 0;  // how many slots the first list is to have
  int returns_from_ = -1;
  bool leaves_ghost_ = true;
};

}  // namespace replay
