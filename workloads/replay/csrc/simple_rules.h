// fifo, lru_plain, random, clock and bucketed_lru.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "cached.h"
#include "queue.h"

namespace replay {

// The resident that came first leaves first.
class Fifo : public RuleBase {
 public:
  Fifo(int64_t slots, const Options&) : queue_(slots) {}
  template <class AnyPins>
  Slot victim(const AnyPins& pins) { return queue_.pop(pins); }
  void insert(Slot slot, int32_t) { queue_.push(slot); }
  void forget(Slot slot) { queue_.remove(slot); }
  void end_token() { queue_.restore(); }

 private:
  LazyQueue queue_;
};

// The textbook's list: what was selected last is the most recent, in selection order, hit or miss.
class LruPlain : public RuleBase {
 public:
  static constexpr bool kSelectionOrder = true;
  LruPlain(int64_t slots, const Options&) : queue_(slots) {}
  Slot victim(const Pins& pins) { return queue_.pop(pins); }
  void insert(Slot slot, int32_t) { queue_.push(slot); }
  void used(Slot slot) { queue_.renew(slot); }
  void forget(Slot slot) { queue_.remove(slot); }
  void end_token() { queue_.restore(); }

 private:
  LazyQueue queue_;
};

// xorshift64* (Vigna, 2016), seeded through splitmix64.
class Random64 {
 public:
  explicit Random64(uint64_t seed) {
    uint64_t z = seed + 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    state_ = (z ^ (z >> 31)) | 1;
  }
  uint64_t below(uint64_t n) {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return static_cast<uint64_t>(static_cast<unsigned __int128>(state_ * 0x2545f4914f6cdd1du) * n >> 64);
  }

 private:
  uint64_t state_;
};

// Every unpinned resident is as likely to leave as any other.
class Random : public RuleBase {
 public:
  Random(int64_t slots, const Options& options) : slots_(slots), random_(options.seed) {}
  void begin_token(int64_t) { candidates_.clear(); }
  template <class AnyPins>
  Slot victim(const AnyPins& pins) {
    for (int tries = 0; tries < kTries && candidates_.empty(); ++tries) {
      const Slot slot = static_cast<Slot>(1 + random_.below(slots_));
      if (!pins.pinned(slot)) return slot;
    }
    if (candidates_.empty()) {  // few are left: list them
      for (int64_t slot = 1; slot <= slots_; ++slot) {
        if (!pins.pinned(static_cast<Slot>(slot))) candidates_.push_back(static_cast<Slot>(slot));
      }
    }
    std::swap(candidates_[random_.below(candidates_.size())], candidates_.back());
    const Slot slot = candidates_.back();
    candidates_.pop_back();
    return slot;
  }
  void insert(Slot, int32_t) {}

 private:
  static constexpr int kTries = 16;
  const int64_t slots_;
  Random64 random_;
  std::vector<Slot> candidates_;
};

// Second chance: a hand goes round, spares what was hit since it last came by, once, and takes the rest. It passes
// over pinned slots without a change.
class Clock : public RuleBase {
 public:
  Clock(int64_t slots, const Options&) : slots_(static_cast<Slot>(slots)) {}
  template <class AnyPins>
  Slot victim(const AnyPins& pins) {
    for (;;) {
      hand_ = hand_ == slots_ ? 1 : hand_ + 1;
      if (!pins.pinned(hand_) && !pins.take_mark(hand_)) return hand_;
    }
  }
  void insert(Slot, int32_t) {}

 private:
  const Slot slots_;
  Slot hand_ = 0;
};

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
