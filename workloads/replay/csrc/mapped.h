// A cache over bitmaps of positions: a step's hits, misses and residents are found and moved many at a time.
//
// What a selection costs is one bit, in a map that stays in the nearest cache. Only misses and victims are looked at
// one by one, if the rule needs that at all. A rule is a class with
//   Rule(slots, options)
//   kMisses                          whether fetch is to be given the misses one by one
//   hits(sets, step)                 the token's hits are what is in sets.selected and in sets.resident
//   fetch(sets, step, missing, evictions)   brings the misses in, listed in selection order, and takes so many
//                                    residents that are not in sets.pinned, which there are, out of sets.resident
//   add(sets, position)              one that comes without a fetch, to a free slot
//   forget(sets, position)           a resident that is no longer valid
// and sets.resident and sets.pinned have the misses when fetch is called.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "bits.h"
#include "cached.h"

namespace replay {

struct Sets {
  Bitmap selected;  // by this token, below the newest
  Bitmap resident;
  const Word* pinned = nullptr;  // selected by this step
};

struct MapStep {
  const Token& token;
  int32_t newest;
  bool ascending;  // the selection, as it stands, each position once
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
    const Row row = look_at(t, newest);
    const MapStep step{t, newest, row.ascending, words_of(newest)};
    Counts counts = row.ascending ? list_ascending(row) : list_any(row, newest);
    pin(step);
    rule_.hits(sets_, step);
    const int64_t missing = admit(step.words);
    if constexpr (!Rule::kMisses) counts.misses = static_cast<int32_t>(missing);
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
    for (auto* map : {&sets_.selected, &sets_.resident, &step_}) map->resize(words + words / 4, 0);
  }

  // Both mark what the token selects and list what of it misses.
  Counts list_ascending(const Row& row) {
    const auto selected = static_cast<int32_t>(row.n);
    if constexpr (!Rule::kMisses) {
      mark_ascending(row.positions, row.n, sets_.selected.data());
      return {selected, 0};
    }
    missing_.resize(row.n + kSlack);
    missing_.resize(mark_and_list(row.positions, row.n, sets_.selected.data(), sets_.resident.data(), missing_.data()));
    return {selected, static_cast<int32_t>(missing_.size())};
  }
  Counts list_any(const Row& row, int32_t newest) {
    missing_.clear();
    int32_t selected = 0;
    for (int64_t j = 0; j < row.n; ++j) {
      const auto p = static_cast<int32_t>(row.positions[j]);
      if (p < 0 || p >= newest || bit_of(sets_.selected.data(), p)) continue;
      set_bit(sets_.selected.data(), p);
      ++selected;
      if (!bit_of(sets_.resident.data(), p)) missing_.push_back(p);
    }
    return {selected, static_cast<int32_t>(missing_.size())};
  }

  void pin(const MapStep& step) {
    const Word* const __restrict selected = sets_.selected.data();
    Word* const __restrict all = step_.data();
    if (step.token.begins_step && step.token.ends_step) {
      sets_.pinned = selected;
      return;
    }
    if (step.token.begins_step) std::fill(step_.begin(), step_.end(), 0);
    for (int64_t w = 0; w < step.words; ++w) all[w] |= selected[w];
    sets_.pinned = all;
  }

  // Makes what is selected resident; returns how much was not.
  int64_t admit(int64_t words) {
    const Word* const __restrict selected = sets_.selected.data();
    Word* const __restrict resident = sets_.resident.data();
    int64_t missing = 0;
    for (int64_t w = 0; w < words; ++w) {
      if constexpr (!Rule::kMisses) missing += __builtin_popcountll(selected[w] & ~resident[w]);
      resident[w] |= selected[w];
    }
    return missing;
  }

  const int64_t slots_;
  Sets sets_;
  Bitmap step_;  // selected by this step, if it has several tokens
  std::vector<int32_t> missing_;
  int64_t residents_ = 0;
  Rule rule_;
};

}  // namespace replay
