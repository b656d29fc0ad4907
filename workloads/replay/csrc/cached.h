// A cache whose residents are found by a table over positions; the rule decides who leaves.
//
// A rule is a class with
//   Rule(slots, options)        slots are numbered 1..slots
//   begin_token(step)           step: the number of the step
//   kPicksFree                  whether victim picks among the free slots too
//   hit(slot)                   for each distinct hit, in selection order, before any of the misses
//   begin_misses(count)         how many misses the token has, once its hits are known
//   miss(position)              before the victim of a miss is asked for
//   victim(pins)                an unpinned slot; asked only when no slot is free and at least one is unpinned
//   evict(slot, position)       what victim returned has left
//   insert(slot, position)      a miss, in selection order
//   used(slot)                  if kSelectionOrder: every selected slot in selection order, once the misses are in
//   forget(slot)                the slot was freed
//   end_token()
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "policy.h"

namespace replay {

using Slot = uint16_t;
constexpr int64_t kMaxSlots = 65533;  // slot 0 means none, slot B + 1 stands for all that is not looked up

// When each slot was last selected. What this step selected is pinned.
struct Pins {
  std::vector<uint32_t> last;
  uint32_t token = 0, step_begin = 0;
  bool pinned(Slot slot) const { return last[slot] >= step_begin; }
};

struct Options {
  uint64_t seed;
  int64_t first, second;  // the policy's own parameters, see policies.py
};

template <class Rule>
class Cached final : public Policy {
 public:
  Cached(int64_t slots, const Options& options)
      : slots_(static_cast<Slot>(slots)), positions_(slots + 2, -1), rule_(slots, options) {
    pins_.last.assign(slots + 2, 0);
    table_.assign(1, static_cast<Slot>(slots + 1));
    for (int64_t slot = slots; slot > 0; --slot) free_.push_back(static_cast<Slot>(slot));
  }

  void begin(int32_t first, int32_t count) override {
    for (int32_t i = 0; i < count; ++i) grow(first + i);
  }

  void grow(int32_t position) override {
    reserve(position + 1);
    if (table_[position + 1]) return;
    rule_.begin_misses(1);
    pins_.step_begin = ++pins_.token;
    place(position);
    pins_.last[table_[position + 1]] = 0;
    rule_.end_token();
  }

  Counts token(const Token& t) override {
    const int32_t newest = t.seq_len - 1;
    reserve(newest);
    ++pins_.token;
    if (t.begins_step) {
      pins_.step_begin = pins_.token;
      ++step_;
    }
    rule_.begin_token(step_);
    Counts counts{look_up(t, newest), 0};
    for (int32_t i = 0; i < num_hits_; ++i) rule_.hit(hits_[i]);
    counts.misses = drop_duplicates();
    rule_.begin_misses(counts.misses);
    for (int32_t i = 0; i < counts.misses; ++i) place(missing_[i]);
    counts.selected += counts.misses;
    if constexpr (Rule::kSelectionOrder) {
      for (int64_t j = 0; j < t.k; ++j) {
        const int32_t p = t.selection[j];
        if (p >= 0 && p < newest) rule_.used(table_[p + 1]);
      }
    }
    rule_.end_token();
    return counts;
  }

  void forget(int32_t begin, int32_t end) override {
    reserve(end);
    for (int32_t p = begin; p < end; ++p) {
      const Slot slot = table_[p + 1];
      if (!slot) continue;
      table_[p + 1] = 0;
      positions_[slot] = -1;
      pins_.last[slot] = 0;
      free_.push_back(slot);
      rule_.forget(slot);
    }
  }

  int64_t contents(int32_t* out) const override {
    int64_t count = 0;
    for (int64_t slot = 1; slot <= slots_; ++slot) {
      if (positions_[slot] >= 0) out[count++] = positions_[slot];
    }
    return count;
  }

 private:
  void reserve(int32_t limit) {
    if (static_cast<size_t>(limit) + 1 > table_.size()) table_.resize((limit + 1) + (limit + 1) / 4, 0);
  }

  // Pins the hits and lists hits and misses; returns the number of distinct hits, the newest included.
  int32_t look_up(const Token& t, int32_t newest) {
    hits_.resize(t.k + 1);
    missing_.resize(t.k + 1);
    const uint32_t limit = newest > 0 ? newest : 0, now = pins_.token;
    uint32_t* const last = pins_.last.data();
    const Slot* const table = table_.data();
    const Slot nothing = slots_ + 1;
    last[nothing] = now;
    int32_t hits = 0, missing = 0;
    bool has_newest = false;
    for (int64_t j = 0; j < t.k; ++j) {
      const int32_t p = t.selection[j];
      const Slot slot = table[static_cast<uint32_t>(p) < limit ? p + 1 : 0];
      hits_[hits] = slot;
      missing_[missing] = p;
      hits += (last[slot] != now) & (slot != 0);
      missing += slot == 0;
      last[slot] = now;
      has_newest |= p == newest;
    }
    last[0] = 0;
    num_hits_ = hits;
    num_missing_ = missing;
    return hits + has_newest;
  }

  // The first of each position's misses moves to the front of the list; returns how many there are.
  int32_t drop_duplicates() {
    int32_t count = 0;
    for (int32_t i = 0; i < num_missing_; ++i) {
      Slot& slot = table_[missing_[i] + 1];
      if (slot) continue;
      slot = slots_ + 1;  // until it is placed
      missing_[count++] = missing_[i];
    }
    return count;
  }

  void place(int32_t position) {
    Slot slot;
    rule_.miss(position);
    if (Rule::kPicksFree || free_.empty()) {
      slot = rule_.victim(pins_);
      const int32_t old = positions_[slot];
      if (old >= 0) {
        table_[old + 1] = 0;
        rule_.evict(slot, old);
      }
    } else {
      slot = free_.back();
      free_.pop_back();
    }
    table_[position + 1] = slot;
    positions_[slot] = position;
    pins_.last[slot] = pins_.token;
    rule_.insert(slot, position);
  }

  const Slot slots_;
  std::vector<Slot> table_;         // [0]: the stand-in; [p + 1]: the slot of position p, 0 for none
  std::vector<int32_t> positions_;  // by slot
  std::vector<Slot> free_, hits_;
  std::vector<int32_t> missing_;
  Pins pins_;
  Rule rule_;
  int32_t num_hits_ = 0, num_missing_ = 0;
  int64_t step_ = -1;
};

// What a rule that does not care leaves out.
struct RuleBase {
  static constexpr bool kSelectionOrder = false, kPicksFree = false;
  void begin_misses(int32_t) {}
  void begin_token(int64_t) {}
  void hit(Slot) {}
  void miss(int32_t) {}
  void evict(Slot, int32_t) {}
  void used(Slot) {}
  void forget(Slot) {}
  void end_token() {}
};

}  // namespace replay
