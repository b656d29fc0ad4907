// A cache for rules that do nothing on a hit: three bitmaps over positions instead of a table.
//
// A selection costs one bit in a map that stays in the first-level cache; hits, misses and distinct positions are then
// counted 64 positions at a time, and only misses are looked at one by one, in selection order. Rules are those of
// cached.h without hit, used and kPicksFree; whoever wants to know the hits as a bitmap has `marks`.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "cached.h"

namespace replay {

inline bool bit_of(const uint64_t* map, int32_t position) { return map[position >> 6] >> (position & 63) & 1; }
inline void set_bit(uint64_t* map, int32_t position) { map[position >> 6] |= uint64_t{1} << (position & 63); }
inline void clear_bit(uint64_t* map, int32_t position) { map[position >> 6] &= ~(uint64_t{1} << (position & 63)); }

// What a rule may ask about a slot: is it selected by this step, was it hit since the mark was last taken off?
struct Maps {
  std::vector<uint64_t> selected, resident, pinned, marks;  // selected: by this token; pinned: by this step
  std::vector<int32_t> positions;                           // by slot, from 1
  bool pinned_slot(Slot slot) const { return bit_of(pinned.data(), positions[slot]); }
};

struct MapPins {
  Maps& maps;
  bool pinned(Slot slot) const { return maps.pinned_slot(slot); }
  bool take_mark(Slot slot) const {
    const bool marked = bit_of(maps.marks.data(), maps.positions[slot]);
    clear_bit(maps.marks.data(), maps.positions[slot]);
    return marked;
  }
};

template <class Rule>
class Bitmapped final : public Policy {
 public:
  Bitmapped(int64_t slots, const Options& options) : slots_(slots), rule_(slots, options) {
    maps_.positions.assign(slots + 1, -1);
    for (int64_t slot = slots; slot > 0; --slot) free_.push_back(static_cast<Slot>(slot));
    reserve(1);
  }

  void begin(int32_t first, int32_t count) override {
    for (int32_t i = 0; i < count; ++i) grow(first + i);
  }

  void grow(int32_t position) override {
    reserve(position + 1);
    if (bit_of(maps_.resident.data(), position)) return;
    std::fill(maps_.pinned.begin(), maps_.pinned.end(), 0);
    place(position);
    rule_.end_token();
  }

  Counts token(const Token& t) override {
    const int32_t newest = t.seq_len - 1;
    reserve(t.seq_len);
    rule_.begin_token(0);
    const bool has_newest = mark_selection(t, newest);
    Counts counts = count(newest, t.begins_step);
    const uint64_t* const resident = maps_.resident.data();
    int64_t missing = 0;
    missing_.resize(t.k + 1);
    for (int64_t j = 0; j < t.k && counts.misses > 0; ++j) {
      const int32_t p = t.selection[j], at = static_cast<uint32_t>(p) < static_cast<uint32_t>(newest) ? p : spare_;
      missing_[missing] = p;
      missing += !bit_of(resident, at);
    }
    for (int64_t i = 0; i < missing; ++i) {
      if (!bit_of(resident, missing_[i])) place(missing_[i]);
    }
    rule_.end_token();
    counts.selected += has_newest;
    return counts;
  }

  void forget(int32_t begin, int32_t end) override {
    for (int64_t slot = 1; slot <= slots_; ++slot) {
      const int32_t p = maps_.positions[slot];
      if (p < begin || p >= end) continue;
      leave(static_cast<Slot>(slot));
      free_.push_back(static_cast<Slot>(slot));
      rule_.forget(static_cast<Slot>(slot));
    }
  }

  int64_t contents(int32_t* out) const override {
    return std::copy_if(maps_.positions.begin(), maps_.positions.end(), out, [](int32_t p) { return p >= 0; }) - out;
  }

 private:
  // Room for positions below limit; one more, which is always resident, stands for all that is not looked up.
  void reserve(int32_t limit) {
    const size_t words = (static_cast<size_t>(limit) + 63) / 64;
    if (words < maps_.resident.size()) return;
    if (!maps_.resident.empty()) clear_bit(maps_.resident.data(), spare_);
    for (auto* map : {&maps_.selected, &maps_.resident, &maps_.pinned, &maps_.marks}) map->resize(words + words / 4 + 1);
    spare_ = static_cast<int32_t>(maps_.resident.size() * 64 - 1);
    set_bit(maps_.resident.data(), spare_);
  }

  bool mark_selection(const Token& t, int32_t newest) {
    uint64_t* const selected = maps_.selected.data();
    bool has_newest = false;
    for (int64_t j = 0; j < t.k; ++j) {
      const int32_t p = t.selection[j];
      set_bit(selected, static_cast<uint32_t>(p) < static_cast<uint32_t>(newest) ? p : spare_);
      has_newest |= p == newest;
    }
    return has_newest;
  }

  Counts count(int32_t newest, bool begins_step) {
    uint64_t* const selected = maps_.selected.data();
    uint64_t* const pinned = maps_.pinned.data();
    uint64_t* const marks = maps_.marks.data();
    const uint64_t* const resident = maps_.resident.data();
    const int64_t words = (static_cast<int64_t>(newest) + 63) / 64;
    const uint64_t keep = begins_step ? 0 : ~uint64_t{0};
    int64_t chosen = 0, missing = 0;
    for (int64_t w = 0; w < words; ++w) {
      const uint64_t now = selected[w];
      chosen += __builtin_popcountll(now);
      missing += __builtin_popcountll(now & ~resident[w]);
      pinned[w] = (pinned[w] & keep) | now;
      marks[w] |= now & resident[w];
      selected[w] = 0;
    }
    clear_bit(selected, spare_);
    return {static_cast<int32_t>(chosen), static_cast<int32_t>(missing)};
  }

  void leave(Slot slot) {
    clear_bit(maps_.resident.data(), maps_.positions[slot]);
    clear_bit(maps_.marks.data(), maps_.positions[slot]);
    maps_.positions[slot] = -1;
  }

  void place(int32_t position) {
    Slot slot;
    if (free_.empty()) {
      slot = rule_.victim(MapPins{maps_});
      leave(slot);
    } else {
      slot = free_.back();
      free_.pop_back();
    }
    maps_.positions[slot] = position;
    set_bit(maps_.resident.data(), position);
    rule_.insert(slot, position);
  }

  const int64_t slots_;
  Maps maps_;
  std::vector<Slot> free_;
  std::vector<int32_t> missing_;
  int32_t spare_ = 0;
  Rule rule_;
};

}  // namespace replay
