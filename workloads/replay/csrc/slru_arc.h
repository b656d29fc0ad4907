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
 protected:
  static void fit(const Sets& sets, Bitmap& map) {
    if (map.size() < sets.resident.size()) map.resize(sets.resident.size(), 0);
  }
  // A token's hits join an order, in selection order.
  void join(Recency& order, const Sets& sets, const MapStep& step) {
    const Word *const selected = sets.selected.data(), *const resident = sets.resident.data();
    if (step.ascending) return order.push(selected, step.words, resident);
    list_hits(sets, step);
    order.push(selected, step.words, resident, &listed_);
  }
  void list_hits(const Sets& sets, const MapStep& step) {
    rest_.resize(step.words);
    for (int64_t w = 0; w < step.words; ++w) rest_[w] = sets.selected[w] & sets.resident[w];
    listed_.clear();
    list_selected(step, rest_.data(), listed_);
  }

  Bitmap rest_;
  std::vector<int32_t> listed_, leaving_;
};

// Segmented LRU (Karedla et al., 1994): probation for what came, protected (at most `first` percent of B) for what
// was hit there; what overflows from the latter goes back to the former.
class Slru : public OrderRule {
 public:
  Slru(int64_t slots, const Options& o) : room_(slots * o.first / 100) {}
  void hits(Sets& sets, const MapStep& step) {
    for (Bitmap& map : in_) fit(sets, map);
    if (!step.ascending || !promote_all(sets, step.words)) {
      list_hits(sets, step);
      for (const int32_t p : listed_) hit(p);
      protected_.close();
    }
    protected_.tidy(in_[1].data(), in_[1].size());
  }
  void fetch(Sets& sets, const MapStep&, const std::vector<int32_t>& missing, int64_t evictions) {
    if (evictions > 0) {
      leaving_.clear();
      const int64_t done = probation_.take(evictions, in_[0].data(), sets.pinned, stamps_, leaving_);
      leave(sets, leaving_.data(), done);
      if (done < evictions) {
        const auto& more = protected_.take(evictions - done, in_[1].data(), in_[1].size(), sets.pinned);
        leave(sets, more.data(), more.size());
        size_ -= more.size();
      }
    }
    put_on_probation(missing.data(), missing.size());
  }
  void add(Sets& sets, int32_t position) {
    for (Bitmap& map : in_) fit(sets, map);
    put_on_probation(&position, 1);
  }
  void forget(Sets&, int32_t position) {
    size_ -= bit_of(in_[1].data(), position);
    for (Bitmap& map : in_) clear_bit(map.data(), position);
  }

 private:
  void put_on_probation(const int32_t* positions, int64_t n) {
    stamps_.fit(in_[0].size());
    for (int64_t i = 0; i < n; ++i) set_bit(in_[0].data(), positions[i]);
    probation_.push(positions, n, stamps_);
  }
  void hit(int32_t position) {
    if (bit_of(in_[0].data(), position)) {
      clear_bit(in_[0].data(), position);
      set_bit(in_[1].data(), position);
      ++size_;
    }
    protected_.add(position);
    if (size_ <= room_) return;
    const int32_t oldest = protected_.oldest(in_[1].data(), in_[1].size());
    clear_bit(in_[1].data(), oldest);
    --size_;
    put_on_probation(&oldest, 1);
  }

  // The hits of a token in ascending order, as `hit` would one by one: of those, only what is promoted or demoted is
  // looked at. False, with nothing done, if the protected has no room for all hits, so that some demote others.
  bool promote_all(const Sets& sets, int64_t words) {
    const Word* const __restrict selected = sets.selected.data();
    const Word* const __restrict resident = sets.resident.data();
    Word* const __restrict probation = in_[0].data();
    Word* const __restrict kept = in_[1].data();
    rest_.resize(words);
    Word* const __restrict promoted = rest_.data();
    int64_t hits = 0;
    for (int64_t w = 0; w < words; ++w) {
      hits += __builtin_popcountll(selected[w] & resident[w]);
      promoted[w] = selected[w] & probation[w];
    }
    if (hits > room_) return false;
    listed_.clear();
    lister_.list(rest_.data(), words, listed_);
    const int64_t demoted = demote(selected);
    size_ += static_cast<int64_t>(listed_.size()) - demoted;
    for (int64_t w = 0; w < words; ++w) {
      probation[w] &= ~selected[w];
      kept[w] |= selected[w] & resident[w];
    }
    protected_.push(selected, words, resident);
    return true;
  }

  // Each promotion of listed_ that finds the protected full demotes the oldest there. That may be a hit of this token:
  // one that went by has been renewed; one that is still to come leaves, and will be one more promotion.
  int64_t demote(const Word* selected) {
    const int64_t first = room_ - size_;  // promotions that find room
    leaving_.clear();
    int64_t demoted = 0;
    while (first + demoted < static_cast<int64_t>(listed_.size())) {
      const int64_t n = static_cast<int64_t>(listed_.size()) - first - demoted;
      for (const int32_t p : protected_.take(n, in_[1].data(), in_[1].size())) {
        if (!bit_of(selected, p)) {
          leaving_.push_back(p);
        } else if (p > listed_[first + demoted]) {
          listed_.insert(std::lower_bound(listed_.begin(), listed_.end(), p), p);
        } else {
          continue;
        }
        ++demoted;
      }
    }
    put_on_probation(leaving_.data(), leaving_.size());
    return demoted;
  }

  const int64_t room_;
  Bitmap in_[2];  // probation, protected
  Queue probation_;
  Stamps stamps_;
  Recency protected_;
  int64_t size_ = 0;  // of the protected
  BitLister lister_;
};

// ARC (Megiddo and Modha, FAST 2003): one list of what was selected in one step, one of what was in several, ghosts
// of both; a miss that finds its ghost moves the share between the lists. How many leave each list is decided miss by
// miss; who they are is looked up for all together, as what the token selects cannot be among them.
class Arc : public OrderRule {
 public:
  Arc(int64_t slots, const Options&) : slots_(slots) {}
  void hits(Sets& sets, const MapStep& step) {
    for (Bitmap& map : in_) fit(sets, map);
    Word* const __restrict once = in_[0].data();
    Word* const __restrict often = in_[1].data();
    const Word* const __restrict selected = sets.selected.data();
    const Word* const __restrict resident = sets.resident.data();
    int64_t moved = 0;
    for (int64_t w = 0; w < step.words; ++w) {
      moved += __builtin_popcountll(once[w] & selected[w]);
      once[w] &= ~selected[w];
      often[w] |= selected[w] & resident[w];
    }
    now_.in[0] -= moved;
    now_.in[1] += moved;
    join(often_, sets, step);
    often_.tidy(in_[1].data(), in_[1].size());
  }
  void fetch(Sets& sets, const MapStep&, const std::vector<int32_t>& missing, int64_t evictions) {
    if (evictions > 0) count_unpinned(sets.pinned);
    bring_in(sets, missing.data(), missing.size(), static_cast<int64_t>(missing.size()) - evictions);
  }
  void add(Sets& sets, int32_t position) {
    for (Bitmap& map : in_) fit(sets, map);
    bring_in(sets, &position, 1, 1);
  }
  void forget(Sets&, int32_t position) {
    for (int i = 0; i < 2; ++i) {
      now_.in[i] -= bit_of(in_[i].data(), position);
      clear_bit(in_[i].data(), position);
    }
  }

 private:
  void count_unpinned(const Word* __restrict pinned) {
    for (int i = 0; i < 2; ++i) {
      const Word* const __restrict in = in_[i].data();
      const int64_t words = in_[i].size();
      int64_t count = 0;
      for (int64_t w = 0; w < words; ++w) count += __builtin_popcountll(in[w] & ~pinned[w]);
      unpinned_[i] = count;
    }
  }

  // Misses in selection order, the first `free` of which need no victim.
  void bring_in(Sets& sets, const int32_t* missing, int64_t n, int64_t free) {
    stamps_.fit(in_[0].size());
    for (Ghosts& list : ghosts_) list.fit(in_[0].size());
    come_.resize(2 * n);  // what joins the first list; from n on, what joins the second
    int64_t again = 0;
    for (int64_t i = 0; i < n; ++i) {
      const int32_t p = missing[i];
      const bool from_once = bit_of(ghosts_[0].held(), p), from_often = bit_of(ghosts_[1].held(), p);
      const bool returns = from_once | from_often;
      bool leaves_ghost = true;  // the victim; none is left if the first list alone is full
      if (returns) return_ghost(p, from_once);
      else leaves_ghost = make_ghost_room(sets);
      if (i >= free) evict(sets, from_often, leaves_ghost);
      now_.in[0] += !returns;
      now_.in[1] += returns;
      come_[returns ? n + again : i - again] = p;
      again += returns;
    }
    settle(sets);
    join_lists(n, again);
  }
  void join_lists(int64_t n, int64_t again) {
    const int32_t* const come = come_.data();
    for (int64_t i = 0; i < n - again; ++i) set_bit(in_[0].data(), come[i]);
    for (int64_t i = n; i < n + again; ++i) set_bit(in_[1].data(), come[i]);
    once_.push(come, n - again, stamps_);
    if (again > 0) often_.push(come + n, again);
  }

  void return_ghost(int32_t position, bool from_once) {
    const double once = static_cast<double>(now_.ghosts[0]), often = static_cast<double>(now_.ghosts[1]);
    const double more = std::min(share_ + std::max(often / once, 1.0), static_cast<double>(slots_));
    const double less = std::max(share_ - std::max(once / often, 1.0), 0.0);
    share_ = from_once ? more : less;
    clear_bit(ghosts_[!from_once].held(), position);
    --now_.ghosts[!from_once];
  }
  // For the ghost of a victim whose miss has none itself. False if there is to be none.
  bool make_ghost_room(Sets& sets) {
    const int64_t first = now_.in[0] + now_.ghosts[0];
    if (first >= slots_ && now_.ghosts[0] == 0) return false;
    if (first >= slots_) drop_ghost(sets, 0);
    else if (first + now_.in[1] + now_.ghosts[1] >= 2 * slots_) drop_ghost(sets, 1);
    return true;
  }
  void drop_ghost(Sets& sets, int list) {
    if (now_.ghosts[list] == leaving_from_[list]) settle(sets);
    ghosts_[list].drop_oldest(stamps_);
    --now_.ghosts[list];
  }
  void evict(Sets& sets, bool from_often, bool leaves_ghost) {
    const double once = static_cast<double>(now_.in[0]);
    int from = leaves_ghost & !((once >= 1) & ((once > share_) | (from_often & (once == share_))));
    if (unpinned_[from] == 0) from = 1 - from;
    --unpinned_[from];
    --now_.in[from];
    if (leaves_ghost) {
      ++now_.ghosts[from];
      ++leaving_from_[from];
    } else {
      settle(sets);
      take(sets, from, 1);
    }
  }
  // The victims so far leave.
  void settle(Sets& sets) {
    for (int i = 0; i < 2; ++i) {
      if (leaving_from_[i] == 0) continue;
      const std::vector<int32_t>& gone = take(sets, i, leaving_from_[i]);
      ghosts_[i].push(gone.data(), gone.size(), stamps_);
      leaving_from_[i] = 0;
    }
  }
  const std::vector<int32_t>& take(Sets& sets, int list, int64_t n) {
    Word* const members = in_[list].data();
    leaving_.clear();
    if (list == 0) once_.take(n, members, sets.pinned, stamps_, leaving_);
    else leaving_ = often_.take(n, members, in_[1].size(), sets.pinned);
    leave(sets, leaving_.data(), leaving_.size());
    return leaving_;
  }

  const int64_t slots_;
  Bitmap in_[2];  // selected in one step, in several
  Queue once_;
  Recency often_;
  Ghosts ghosts_[2];
  Stamps stamps_;  // a position is in one list or has one ghost
  struct {
    int64_t in[2] = {0, 0}, ghosts[2] = {0, 0};  // with what is still to leave as ghosts already
  } now_;
  int64_t unpinned_[2] = {0, 0}, leaving_from_[2] = {0, 0};
  double share_ = 0;  // how many slots the first list is to have
  std::vector<int32_t> come_;
};

}  // namespace replay
