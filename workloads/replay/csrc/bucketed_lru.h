// bucketed_lru.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "cached.h"

namespace replay {

// Recency by buckets instead of an order: a slot's age is the number of whole periods of `second` steps since it was
// last selected, at most first - 1; victims come from the oldest bucket that has any, by slot number. This is the
// idea of SPIN's bucketed LRU (arXiv 2604.26837), whose abstract names it; its number and width of buckets are not
// known to us.
class BucketedLru : public RuleBase {
 public:
  BucketedLru(int64_t slots, const Options& o)
      : slots_(slots), oldest_(o.first - 1), width_(o.second), period_(slots + 2, 0), in_bucket_(o.first) {}
  void begin_token(int64_t step) {
    now_ = static_cast<int32_t>(step / width_);
    listed_ = false;
  }
  void hit(Slot slot) { period_[slot] = now_; }
  Slot victim(const Pins& pins) {
    if (!listed_) list(pins);
    return order_[taken_++];
  }
  void insert(Slot slot, int32_t) { period_[slot] = now_; }

 private:
  int64_t age(int64_t slot) const { return std::min<int64_t>(now_ - period_[slot], oldest_); }

  void list(const Pins& pins) {  // a counting sort of the unpinned slots, oldest bucket first
    std::fill(in_bucket_.begin(), in_bucket_.end(), 0);
    for (int64_t slot = 1; slot <= slots_; ++slot) in_bucket_[age(slot)] += !pins.pinned(static_cast<Slot>(slot));
    int64_t total = 0;
    for (int64_t a = oldest_; a >= 0; --a) {
      const int64_t count = in_bucket_[a];
      in_bucket_[a] = total;
      total += count;
    }
    order_.resize(total);
    for (int64_t slot = 1; slot <= slots_; ++slot) {
      if (!pins.pinned(static_cast<Slot>(slot))) order_[in_bucket_[age(slot)]++] = static_cast<Slot>(slot);
    }
    taken_ = 0;
    listed_ = true;
  }

  const int64_t slots_, oldest_, width_;
  std::vector<int32_t> period_;  // of a slot's last selection
  std::vector<int64_t> in_bucket_;
  std::vector<Slot> order_;
  int64_t taken_ = 0;
  int32_t now_ = 0;
  bool listed_ = false;
};

}  // namespace replay
