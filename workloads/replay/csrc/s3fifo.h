// s3fifo. Within a token all hits come before all misses, see cached.h.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "cached.h"
#include "ghosts.h"
#include "queue.h"

namespace replay {

// S3-FIFO (Yang et al., SOSP 2023): a small queue (`first` percent of B) filters what is selected once; what leaves it
// after two hits or more goes to the main queue, the rest leaves a ghost, whose return goes to main at once; main
// gives one more round per hit, up to three.
class S3Fifo : public RuleBase {
 public:
  S3Fifo(int64_t slots, const Options& o)
      : small_room_(std::max<int64_t>(1, slots * o.first / 100)), main_room_(slots - small_room_), small_(slots),
        main_(slots), hits_(slots + 2, 0) {}
  void hit(Slot slot) { hits_[slot] = std::min(hits_[slot] + 1, 3); }
  Slot victim(const Pins& pins) {
    for (;;) {
      if (small_.size() >= small_room_) {
        if (const Slot slot = from_small(pins)) return slot;
      }
      if (const Slot slot = from_main(pins)) return slot;
      if (const Slot slot = from_small(pins)) return slot;
    }
  }
  void evict(Slot, int32_t position) {
    if (!leaves_ghost_) return;
    ghosts_.push(position);
    if (ghosts_.size() > main_room_) ghosts_.drop_oldest();
  }
  void insert(Slot slot, int32_t position) {
    hits_[slot] = 0;
    (ghosts_.holds(position) ? main_ : small_).push(slot);
    if (ghosts_.holds(position)) ghosts_.remove(position);
  }
  void forget(Slot slot) { (small_.holds(slot) ? small_ : main_).remove(slot); }
  void end_token() {
    small_.restore();
    main_.restore();
  }

 private:
  static constexpr int kPromoted = 2;

  Slot from_small(const Pins& pins) {
    while (const Slot slot = small_.pop(pins)) {
      leaves_ghost_ = true;
      if (hits_[slot] < kPromoted) return slot;
      hits_[slot] = 0;
      main_.push(slot);
    }
    return 0;
  }
  Slot from_main(const Pins& pins) {
    while (const Slot slot = main_.pop(pins)) {
      leaves_ghost_ = false;
      if (hits_[slot] == 0) return slot;
      --hits_[slot];
      main_.push(slot);
    }
    return 0;
  }

  const int64_t small_room_, main_room_;
  LazyQueue small_, main_;
  std::vector<int> hits_;
  Ghosts ghosts_;
  bool leaves_ghost_ = false;
};

}  // namespace replay
