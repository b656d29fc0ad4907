// An order of positions by when they were last pushed, oldest first, kept by whole selections.
//
// Pushing a selection keeps a copy of its bitmap and nothing else; a position's place is the last selection that has
// it. Only when the oldest are wanted are the selections gone through, newest first, and turned into one list, which
// then serves for as long as it has entries that were not pushed again. So most pushes never cost anything.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "bits.h"

namespace replay {

// members, wherever it is asked for: the positions that are in the order at all; what is taken must leave it.
class Recency {
 public:
  // A selection; in ascending order, unless `order` lists it, each position once.
  void push(const Word* map, int64_t words, const std::vector<int32_t>* order = nullptr) {
    Pushed& pushed = open(words);
    std::copy_n(map, words, pushed.map.begin());
    if (order) pushed.order = *order;
    for (int64_t w = 0; w < words; ++w) since_[w] |= map[w];
    is_open_ = false;
  }

  // One position; several in a row, each once, are kept together until `close`.
  void add(int32_t position) {
    const int64_t words = words_of(position + 1);
    if (!is_open_ || static_cast<int64_t>(pushed_[count_ - 1].map.size()) < words ||
        bit_of(pushed_[count_ - 1].map.data(), position)) {
      open(std::max(words, static_cast<int64_t>(since_.size())));
    }
    is_open_ = true;
    set_bit(pushed_[count_ - 1].map.data(), position);
    pushed_[count_ - 1].order.push_back(position);
    set_bit(since_.data(), position);
  }
  void close() { is_open_ = false; }

  // Keeps memory within bounds; to be called once a token.
  void tidy(const Word* members, int64_t words) {
    if (count_ >= kMost) list(members, words);
  }

  // The oldest, -1 if there is none; it stays the oldest until it leaves members or is pushed again.
  int32_t oldest(const Word* members, int64_t words) {
    for (;;) {
      for (; head_ < listed_.size(); ++head_) {
        const int32_t p = listed_[head_];
        if (valid(members, p)) return p;
      }
      if (count_ == 0) return -1;
      list(members, words);
    }
  }

  // Takes the n oldest, of which there are as many, out of members.
  void take(int64_t n, Word* members, int64_t words) {
    taken_.resize(n + 1);
    while (n > 0) {
      if (head_ >= listed_.size()) list(members, words);
      int64_t found = 0;
      size_t at = head_;
      for (; at < listed_.size() && found < n; ++at) {
        const int32_t p = listed_[at];
        taken_[found] = p;
        found += valid(members, p);
      }
      head_ = at;
      for (int64_t i = 0; i < found; ++i) clear_bit(members, taken_[i]);
      n -= found;
    }
  }

  // Leaves in `some` all but the n of them that were pushed last.
  void drop_newest(int64_t n, Word* some, int64_t words) {
    for (size_t i = count_; i-- > 0 && n > 0;) {
      const Bitmap& map = pushed_[i].map;
      const int64_t both = std::min<int64_t>(words, map.size());
      int64_t found = 0;
      for (int64_t w = 0; w < both; ++w) found += __builtin_popcountll(map[w] & some[w]);
      if (found > n) return drop_last(n, pushed_[i], some, both);
      for (int64_t w = 0; w < both; ++w) some[w] &= ~map[w];
      n -= found;
    }
    for (size_t i = listed_.size(); i-- > head_ && n > 0;) {
      n -= bit_of(some, listed_[i]);
      clear_bit(some, listed_[i]);
    }
  }

 private:
  static constexpr size_t kMost = 64;
  struct Pushed {
    Bitmap map;
    std::vector<int32_t> order;  // empty: ascending
  };

  bool valid(const Word* members, int32_t p) const { return bit_of(members, p) & !bit_of(since_.data(), p); }

  Pushed& open(int64_t words) {
    if (static_cast<int64_t>(since_.size()) < words) since_.resize(words, 0);
    if (count_ == pushed_.size()) pushed_.emplace_back();
    Pushed& pushed = pushed_[count_++];
    pushed.map.assign(words, 0);
    pushed.order.clear();
    return pushed;
  }

  void drop_last(int64_t n, const Pushed& pushed, Word* some, int64_t words) {
    if (!pushed.order.empty()) {
      for (size_t i = pushed.order.size(); n > 0;) {
        const int32_t p = pushed.order[--i];
        n -= bit_of(some, p);
        clear_bit(some, p);
      }
      return;
    }
    for (int64_t w = words; n > 0;) {
      Word bits = pushed.map[--w] & some[w];
      for (; bits && n > 0; --n) {
        const Word highest = Word{1} << (63 - __builtin_clzll(bits));
        bits ^= highest;
        some[w] ^= highest;
      }
    }
  }

  // All that is in the order becomes one list.
  void list(const Word* members, int64_t words) {
    words = std::min<int64_t>(words, since_.size());
    size_t kept = 0;
    for (; head_ < listed_.size(); ++head_) {
      listed_[kept] = listed_[head_];
      kept += valid(members, listed_[head_]);
    }
    listed_.resize(kept);
    head_ = 0;
    left_.assign(members, members + words);
    for (size_t i = count_; i-- > 0;) {  // a position counts where it was pushed last
      Word* const __restrict map = pushed_[i].map.data();
      const int64_t both = std::min<int64_t>(words, pushed_[i].map.size());
      for (int64_t w = 0; w < both; ++w) {
        const Word in = map[w];
        map[w] = in & left_[w];
        left_[w] &= ~in;
      }
    }
    for (size_t i = 0; i < count_; ++i) {
      const Pushed& pushed = pushed_[i];
      const int64_t both = std::min<int64_t>(words, pushed.map.size());
      if (pushed.order.empty()) lister_.list(pushed.map.data(), both, listed_);
      for (const int32_t p : pushed.order) {
        if (p < both * 64 && bit_of(pushed.map.data(), p)) listed_.push_back(p);
      }
    }
    std::fill(since_.begin(), since_.end(), 0);
    count_ = 0;
    is_open_ = false;
  }

  std::vector<Pushed> pushed_;  // the first count_, oldest first: what was pushed since the list was made
  size_t count_ = 0;
  Bitmap since_, left_;          // since_: all of it
  std::vector<int32_t> listed_;  // older, from head_ on
  std::vector<int32_t> taken_;
  size_t head_ = 0;
  bool is_open_ = false;
  BitLister lister_;
};

}  // namespace replay
