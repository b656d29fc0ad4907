// `lifetime`: AVSG's policy (section 3.5, appendix B) over a table that loses nothing; `avsg` has the real one.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "cached.h"

namespace replay {

// A life per slot: `first` + 1 when selected, one less with every step, 0 is dead. Misses go to dead slots by slot
// number; when there are too few, all age further until there are enough.
class Lifetime : public RuleBase {
 public:
  static constexpr bool kPicksFree = true;
  Lifetime(int64_t slots, const Options& o) : full_(static_cast<uint8_t>(o.first + 1)), life_(slots, 0) {}

  void begin_token(int64_t step) {
    if (step == step_) return;
    step_ = step;
    age(1);
  }
  void hit(Slot slot) { life_[slot - 1] = full_; }
  void begin_misses(int32_t count) {
    dead_.clear();
    if (count == 0) return;
    uint8_t further = 0;
    while (dead_after(further) < count) ++further;
    if (further > 0) age(further);
    for (size_t s = 0; static_cast<int32_t>(dead_.size()) < count; ++s) {
      if (life_[s] == 0) dead_.push_back(static_cast<Slot>(s + 1));
    }
    next_ = 0;
  }
  Slot victim(const Pins&) { return dead_[next_++]; }
  void insert(Slot slot, int32_t) { life_[slot - 1] = full_; }
  void forget(Slot slot) { life_[slot - 1] = 0; }

 private:
  int64_t dead_after(uint8_t years) const {
    return std::count_if(life_.begin(), life_.end(), [years](uint8_t life) { return life <= years; });
  }
  void age(uint8_t years) {
    for (uint8_t& life : life_) life = life > years ? life - years : 0;
  }

  const uint8_t full_;
  std::vector<uint8_t> life_;  // by slot - 1
  std::vector<Slot> dead_;
  size_t next_ = 0;
  int64_t step_ = -1;
};

}  // namespace replay
