// slru and arc. Within a token all hits come before all misses.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "ghosts.h"
#include "line.h"
#include "map_rules.h"
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
      for (; i < listed_.size() && listed_[i] <= reached_; ++i) protected_.add(listed_[i]);
      demote(protected_.oldest(in_[1].data(), in_[1].size()));
      for (; i < listed_.size(); ++i) hit(listed_[i]);
    }
    protected_.close();
    protected_.tidy(in_[1].data(), in_[1].size());
  }
  void fetch(Sets& sets, const MapStep&, const std::vector<int32_t>& missing, int64_t evictions) {
    const Word* const pinned = sets.pinned.data();
    if (evictions > 0) {
      const int64_t done = leave(sets, probation_.take(evictions, in_[0].data(), pinned));
      if (done < evictions) {
        size_ -= leave(sets, protected_.take(evictions - done, in_[1].data(), in_[1].size(), pinned));
      }
    }
    for (const int32_t p : missing) {
      set_bit(in_[0].data(), p);
      probation_.push(p);
    }
  }
  void add(Sets& sets, int32_t position) {
    for (Bitmap& map : in_) fit(sets, map);
    set_bit(in_[0].data(), position);
    probation_.push(position);
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
    protected_.add(position);
    if (size_ > room_) demote(protected_.oldest(in_[1].data(), in_[1].size()));
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
        const int32_t oldest = protected_.oldest(in_[1].data(), in_[1].size(), hits, reached_ + 1);
        if (oldest < 0) return false;
        demote(oldest);
        if (oldest < words * 64 && bit_of(hits, oldest)) set_bit(rest_.data(), oldest);
      }
    }
    protected_.push(hits, words);
    return true;
  }
  void demote(int32_t position) {
    clear_bit(in_[1].data(), position);
    set_bit(in_[0].data(), position);
    probation_.push(position);
    --size_;
  }

  const int64_t room_;
  Bitmap in_[2];  // probation, protected
  Line probation_;
  Recency protected_;
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
    join(often_, step, hits);
    often_.tidy(in_[1].data(), in_[1].size());
  }
  void fetch(Sets& sets, const MapStep&, const std::vector<int32_t>& missing, int64_t evictions) {
    int64_t free = static_cast<int64_t>(missing.size()) - evictions;
    for (const int32_t p : missing) {
      look_up_ghosts(p);
      if (free-- <= 0) evict(sets);
      insert(p);
    }
    often_.close();
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
    const Word* const members = in_[list].data();
    const int32_t p = list == 0 ? once_.oldest(members) : often_.oldest(members, in_[1].size());
    return p >= 0 && bit_of(sets.pinned.data(), p) ? -1 : p;
  }
  void insert(int32_t position) {
    const int to = returns_from_ >= 0;
    set_bit(in_[to].data(), position);
    ++size_[to];
    if (to == 0) once_.push(position);
    else often_.add(position);
  }

  const int64_t slots_;
  Bitmap in_[2];  // selected in one step, in several
  Line once_;
  Recency often_;
  Ghosts ghosts_[2];
  int64_t size_[2] = {0, 0};
  double share_ = 0;  // how many slots the first list is to have
  int returns_from_ = -1;
  bool leaves_ghost_ = true;
};

}  // namespace replay
