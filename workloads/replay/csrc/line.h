// Queues of positions, oldest first, for what comes one by one; an entry of one that left is dropped when it comes up.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "sift.h"

namespace replay {

// The number of each position's last entry, in whatever queue of those that share it.
struct Stamps {
  std::vector<uint32_t> of;  // by position
  uint32_t last = 0;
  void fit(int64_t words) {  // room for the positions of so many words
    if (static_cast<int64_t>(of.size()) < 64 * words) of.resize(64 * words, 0);
  }
};

// members, wherever it is asked for: the positions that are in the queue; what is taken must leave it.
class Queue {
 public:
  // One that is not in the queue.
  void push(int32_t position, Stamps& stamps) {
    positions_.push_back(position);
    numbers_.push_back(stamps.of[position] = ++stamps.last);
  }
  // Several, in this order.
  void push(const int32_t* positions, int64_t n, Stamps& stamps) {
    const size_t before = positions_.size();
    positions_.insert(positions_.end(), positions, positions + n);
    numbers_.resize(before + n);
    uint32_t* const __restrict of = stamps.of.data();
    uint32_t* const __restrict numbers = numbers_.data() + before;
    for (int64_t i = 0; i < n; ++i) of[positions[i]] = numbers[i] = stamps.last + static_cast<uint32_t>(i) + 1;
    stamps.last += static_cast<uint32_t>(n);
  }

  // Adds the n oldest that are not in `pinned` to `taken`, and takes them out of members; fewer if there are no more.
  // Pinned ones that it passes over keep their places. Returns how many.
  int64_t take(int64_t n, Word* members, const Word* pinned, const Stamps& stamps, std::vector<int32_t>& taken) {
    const size_t before = taken.size();
    const int64_t count = positions_.size() - head_;
    taken.resize(before + std::min(n, count) + kSlack);
    passed_.resize(pinned ? count + kSlack : kSlack);
    const auto [seen, found, passed] = sift(positions_.data() + head_, count, n, pinned,
                                            Last{members, stamps.of.data(), numbers_.data() + head_},
                                            taken.data() + before, passed_.data());
    head_ += seen - passed;
    for (int64_t i = 0; i < passed; ++i) {
      positions_[head_ + i] = passed_[i];
      numbers_[head_ + i] = stamps.of[passed_[i]];
    }
    taken.resize(before + found);
    for (size_t i = before; i < taken.size(); ++i) clear_bit(members, taken[i]);
    if (head_ > positions_.size() / 2 && head_ > kMostGone) tidy();
    return found;
  }

  // Drops the entries that do not count any more.
  void keep_valid(const Word* members, const Stamps& stamps) {
    const Last counts{members, stamps.of.data(), numbers_.data()};
    size_t kept = 0;
    for (size_t i = head_; i < positions_.size(); ++i) {
      const bool keep = counts(i, positions_[i]);
      positions_[kept] = positions_[i];
      numbers_[kept] = numbers_[i];
      kept += keep;
    }
    positions_.resize(kept);
    numbers_.resize(kept);
    head_ = 0;
  }
  size_t entries() const { return positions_.size() - head_; }

 private:
  static constexpr size_t kMostGone = 512;
  struct Last {  // whether an entry is its position's last
    const Word* members;
    const uint32_t *stamps, *numbers;
    bool operator()(int64_t j, int32_t p) const { return bit_of(members, p) & (stamps[p] == numbers[j]); }
#ifdef REPLAY_LANES
    __mmask16 operator()(int64_t j, __m512i p, __mmask16 some) const {
      const __mmask16 in = bits_of(members, p, some);
      const __m512i last = _mm512_mask_i32gather_epi32(p, in, p, stamps, 4);
      return _mm512_mask_cmpeq_epi32_mask(in, last, _mm512_maskz_loadu_epi32(in, numbers + j));
    }
#endif
  };

  void tidy() {
    positions_.erase(positions_.begin(), positions_.begin() + head_);
    numbers_.erase(numbers_.begin(), numbers_.begin() + head_);
    head_ = 0;
  }

  std::vector<int32_t> positions_, passed_;
  std::vector<uint32_t> numbers_;
  size_t head_ = 0;
};

}  // namespace replay
