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
#include "sift.h"

namespace replay {

// members, wherever it is asked for: the positions that are in the order at all; what is taken must leave it.
class Recency {
 public:
  // A selection, or what of it is in `also`; in ascending order, unless `order` lists it, each position once.
  void push(const Word* map, int64_t words, const Word* also = nullptr, const std::vector<int32_t>* order = nullptr) {
    Pushed& pushed = open(words);
    pushed.map.resize(words);
    if (order) pushed.order = *order;
    Word* const __restrict to = pushed.map.data();
    Word* const __restrict since = since_.data();
    if (also) {
      for (int64_t w = 0; w < words; ++w) since[w] |= to[w] = map[w] & also[w];
    } else {
      for (int64_t w = 0; w < words; ++w) since[w] |= to[w] = map[w];
    }
    is_open_ = false;
  }

  // Several positions, in this order, each once.
  void push(const int32_t* positions, int64_t n) {
    const int64_t words = words_of(int64_t{*std::max_element(positions, positions + n)} + 1);
    Pushed& pushed = open(std::max(words, static_cast<int64_t>(since_.size())));
    pushed.map.assign(since_.size(), 0);
    pushed.order.assign(positions, positions + n);
    for (int64_t i = 0; i < n; ++i) set_bit(pushed.map.data(), positions[i]);
    for (int64_t i = 0; i < n; ++i) set_bit(since_.data(), positions[i]);
    is_open_ = false;
  }

  // One position; several in a row, each once, are kept together until `close`.
  void add(int32_t position) {
    const int64_t words = words_of(position + 1);
    if (!is_open_ || static_cast<int64_t>(pushed_[count_ - 1].map.size()) < words ||
        bit_of(pushed_[count_ - 1].map.data(), position)) {
      const int64_t room = std::max(words, static_cast<int64_t>(since_.size()));
      open(room).map.assign(room, 0);
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

  // The oldest, -1 if there is none; it stays the oldest until it leaves members or is pushed again. Those of `passed`
  // below `limit` do not count: they are about to be pushed.
  int32_t oldest(const Word* members, int64_t words, const Word* passed = nullptr, int32_t limit = 0) {
    for (;;) {
      for (; head_ < listed_.size(); ++head_) {
        const int32_t p = listed_[head_];
        if (valid(members, p) && (p >= limit || !bit_of(passed, p))) return p;
      }
      if (count_ == 0) return -1;
      list(members, words);
    }
  }

  // Takes the n oldest that are not in `pinned` out of members; fewer if there are no more. Returns them, oldest first.
  const std::vector<int32_t>& take(int64_t n, Word* members, int64_t words, const Word* pinned = nullptr) {
    taken_.clear();
    for (;;) {
      search(n - static_cast<int64_t>(taken_.size()), members, pinned);
      if (static_cast<int64_t>(taken_.size()) == n || count_ == 0) return taken_;
      list(members, words);
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
    pushed.order.clear();
    return pushed;
  }

  // Takes up to n out of the list; pinned ones that it passes over keep their places.
  void search(int64_t n, Word* members, const Word* pinned) {
    const size_t before = taken_.size();
    taken_.resize(before + n + kSlack);
    passed_.resize(listed_.size() - head_ + kSlack);
    const auto [seen, found, passed] = sift(listed_.data() + head_, listed_.size() - head_, n, pinned,
                                            Among{members, since_.data()}, taken_.data() + before, passed_.data());
    head_ += seen - passed;
    std::copy_n(passed_.begin(), passed, listed_.begin() + head_);
    taken_.resize(before + found);
    for (size_t i = before; i < taken_.size(); ++i) clear_bit(members, taken_[i]);
  }

  // The older half of what was pushed is listed; most of the rest will be pushed again before it is wanted.
  void list(const Word* members, int64_t words) {
    words = std::min<int64_t>(words, since_.size());
    const size_t older = (count_ + 1) / 2;
    keep_valid(members);
    std::fill(since_.begin(), since_.end(), 0);
    for (size_t i = older; i < count_; ++i) {
      const Bitmap& map = pushed_[i].map;
      Word* const __restrict since = since_.data();
      for (size_t w = 0; w < map.size(); ++w) since[w] |= map[w];
    }
    left_.resize(words);
    for (int64_t w = 0; w < words; ++w) left_[w] = members[w] & ~since_[w];
    for (size_t i = older; i-- > 0;) {  // a position counts where it was pushed last
      Word* const __restrict map = pushed_[i].map.data();
      Word* const __restrict left = left_.data();
      const int64_t both = std::min<int64_t>(words, pushed_[i].map.size());
      for (int64_t w = 0; w < both; ++w) {
        const Word in = map[w];
        map[w] = in & left[w];
        left[w] &= ~in;
      }
    }
    for (size_t i = 0; i < older; ++i) append(pushed_[i], words);
    std::rotate(pushed_.begin(), pushed_.begin() + older, pushed_.begin() + count_);
    count_ -= older;
    is_open_ &= count_ > 0;
  }

  void keep_valid(const Word* members) {
    size_t kept = 0;
    for (; head_ < listed_.size(); ++head_) {
      const int32_t p = listed_[head_];
      listed_[kept] = p;
      kept += valid(members, p);
    }
    listed_.resize(kept);
    head_ = 0;
  }

  void append(const Pushed& pushed, int64_t words) {
    const int64_t both = std::min<int64_t>(words, pushed.map.size());
    if (pushed.order.empty()) lister_.list(pushed.map.data(), both, listed_);
    size_t count = listed_.size();
    listed_.resize(count + pushed.order.size());
    for (const int32_t p : pushed.order) {
      listed_[count] = p;
      count += p < both * 64 && bit_of(pushed.map.data(), p);
    }
    listed_.resize(count);
  }

  std::vector<Pushed> pushed_;  // the first count_, oldest first: what was pushed since the list was made
  size_t count_ = 0;
  Bitmap since_, left_;          // since_: all of it
  std::vector<int32_t> listed_;  // older, from head_ on
  std::vector<int32_t> taken_, passed_;
  size_t head_ = 0;
  bool is_open_ = false;
  BitLister lister_;
};

}  // namespace replay
