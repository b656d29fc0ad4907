// A cache over bitmaps of positions: a step's hits, misses and residents are counted and moved many words at a time.
//
// What a selection costs is one bit, in a map that stays in the nearest cache. Only misses and victims are looked at
// one by one, if the rule needs that at all. A rule is a class with
//   Rule(slots, options)
//   kHits, kMisses, kPins            which maps of Sets it reads
//   hits(sets, step)                 the token's hits are in sets.hits; they are counted and pinned already
//   fetch(sets, step, missing, evictions)   brings the misses in and takes so many unpinned residents, which there
//                                    are, out of sets.resident; missing: in selection order, if kMisses
//   add(sets, position)              one that comes without a fetch, to a free slot
//   forget(sets, position)           a resident that is no longer valid
// and sets.resident and sets.pinned have the misses before fetch is called.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "bits.h"
#include "cached.h"

namespace replay {

struct Sets {
  Bitmap selected;  // by this token, below the newest
  Bitmap missing;   // of those, what was not resident
  Bitmap hits;      // and what was
  Bitmap resident, pinned;  // pinned: selected by this step
};

struct MapStep {
  const Token& token;
  int32_t newest;
  bool ascending;  // the selection, as it stands
  int64_t words;   // of the maps that this token can touch
};

// The distinct positions of a map that a token selects, in selection order, each where it comes first; clears them.
inline void list_selected(const MapStep& step, Word* map, std::vector<int32_t>& out) {
  for (int64_t j = 0; j < step.token.k; ++j) {
    const int32_t p = step.token.selection[j];
    if (p < 0 || p >= step.newest || !bit_of(map, p)) continue;
    clear_bit(map, p);
    out.push_back(p);
  }
}

template <class Rule>
class Mapped final : public Policy {
 public:
  Mapped(int64_t slots, const Options& options) : slots_(slots), rule_(slots, options) { reserve(1); }

  void begin(int32_t first, int32_t count) override {
    for (int32_t i = 0; i < count; ++i) grow(first + i);
  }

  void grow(int32_t position) override {
    reserve(position + 1);
    if (bit_of(sets_.resident.data(), position)) return;
    set_bit(sets_.resident.data(), position);
    ++residents_;
    rule_.add(sets_, position);
  }

  Counts token(const Token& t) override {
    const int32_t newest = t.seq_len - 1;
    reserve(t.seq_len);
    const Marked row = mark(t, newest, sets_.selected.data());
    const MapStep step{t, newest, row.ascending, words_of(newest)};
    Counts counts = count(step.words, t.begins_step);
    rule_.hits(sets_, step);
    missing_.clear();
    if (Rule::kMisses && counts.misses > 0) {
      if (row.ascending) lister_.list(sets_.missing.data(), step.words, missing_);
      else list_selected(step, sets_.missing.data(), missing_);
    }
    residents_ += counts.misses;
    const int64_t evictions = std::max<int64_t>(0, residents_ - slots_);
    residents_ -= evictions;
    rule_.fetch(sets_, step, missing_, evictions);
    std::fill_n(sets_.selected.begin(), step.words, 0);
    counts.selected += row.has_newest;
    return counts;
  }

  void forget(int32_t begin, int32_t end) override {
    reserve(end);
    for (int32_t p = begin; p < end; ++p) {
      if (!bit_of(sets_.resident.data(), p)) continue;
      clear_bit(sets_.resident.data(), p);
      --residents_;
      rule_.forget(sets_, p);
    }
  }

  int64_t contents(int32_t* out) const override {
    int64_t count = 0;
    for (int64_t p = 0; p < static_cast<int64_t>(sets_.resident.size()) * 64; ++p) {
      if (bit_of(sets_.resident.data(), p)) out[count++] = static_cast<int32_t>(p);
    }
    return count;
  }

 private:
  void reserve(int32_t limit) {  // room for positions below limit
    const size_t words = words_of(limit);
    if (words <= sets_.resident.size()) return;
    for (auto* map : {&sets_.selected, &sets_.missing, &sets_.hits, &sets_.resident, &sets_.pinned}) {
      map->resize(words + words / 4, 0);
    }
  }

  Counts count(int64_t words, bool begins_step) {
    const Word* const __restrict selected = sets_.selected.data();
    Word* const __restrict hits = sets_.hits.data();
    Word* const __restrict misses = sets_.missing.data();
    Word* const __restrict pinned = sets_.pinned.data();
    Word* const __restrict resident = sets_.resident.data();
    const Word keep = begins_step ? 0 : ~Word{0};
    int64_t chosen = 0, missing = 0;
    for (int64_t w = 0; w < words; ++w) {
      const Word now = selected[w], held = resident[w];
      chosen += __builtin_popcountll(now);
      missing += __builtin_popcountll(now & ~held);
      if constexpr (Rule::kMisses) misses[w] = now & ~held;
      if constexpr (Rule::kHits) hits[w] = now & held;
      if constexpr (Rule::kPins) pinned[w] = (pinned[w] & keep) | now;
      resident[w] = held | now;
    }
    return {static_cast<int32_t>(chosen), static_cast<int32_t>(missing)};
  }

  const int64_t slots_;
  Sets sets_;
  std::vector<int32_t> missing_;
  BitLister lister_;
  int64_t residents_ = 0;
  Rule rule_;
};

}  // namespace replay
