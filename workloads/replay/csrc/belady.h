// The offline optimum: of what the step does not select, whatever is selected again furthest in the future leaves.
//
// It needs the whole sequence: next uses come from a pass backwards. Residents lie in one stack per step of their
// next use. A step's hits are then exactly its own stack, and victims come off the furthest stack, so that no step
// searches and a selection costs a few operations whatever B is. Furthest-in-future (Belady, 1966) is optimal here
// although a step's positions must be resident together: they are no candidates, and the rest is ordinary paging.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "policy.h"

namespace replay {

struct Sequence {
  const int32_t* positions;  // [rows, k]
  const int32_t* seq_lens;   // [rows]
  int64_t rows, k;
  int64_t tokens;  // rows of one step, which follow one another
};

class Belady {
 public:
  Belady(int64_t slots, const Sequence& s, bool from_tail)
      : slots_(slots), s_(s), steps_((s.rows + s.tokens - 1) / s.tokens), from_tail_(from_tail),
        stacks_(steps_ + 1, kNone) {
    look_ahead();
  }

  void run(int32_t* selected, int32_t* misses) {
    if (from_tail_ && steps_ > 0) {  // as in run.h
      const int32_t old = s_.seq_lens[0] - 2;
      for (int32_t p = old - std::clamp<int64_t>(old, 0, slots_); p < old; ++p) push(p, next_of_[p]);
    }
    for (int64_t i = 0; i < steps_; ++i) {
      for (; !grown_.empty() && grown_.back().step == i; grown_.pop_back()) {
        if (!resident_[grown_.back().position]) push(grown_.back().position, grown_.back().next);
      }
      step(i, selected, misses);
    }
  }

 private:
  static constexpr int32_t kNone = -1;     // no node; in next_: not a first selection of its step
  static constexpr int32_t kInvalid = -2;  // in next_: its record is not valid after the step
  struct Node {
    int32_t position, below;
  };
  struct Grown {
    int64_t step;
    int32_t position, next;
  };

  int64_t begin_of(int64_t step) const { return step * s_.tokens; }
  int64_t end_of(int64_t step) const { return std::min(s_.rows, (step + 1) * s_.tokens); }

  // next_[row, j]: the step of the position's next use, steps_ for never, or one of the values above.
  void look_ahead() {
    int32_t limit = 1;
    for (int64_t r = 0; r < s_.rows; ++r) limit = std::max(limit, s_.seq_lens[r]);
    const int32_t never = static_cast<int32_t>(steps_);
    next_of_.assign(limit, never);
    resident_.assign(limit, 0);
    next_.resize(s_.rows * s_.k);
    for (int64_t i = steps_; i-- > 0;) {
      const int32_t valid = s_.tokens > 1 ? s_.seq_lens[begin_of(i)] : limit;
      for (int64_t r = begin_of(i); r < end_of(i); ++r) {
        const uint32_t newest = std::max(s_.seq_lens[r] - 1, 0);
        const int32_t* const row = s_.positions + r * s_.k;
        int32_t* const next = next_.data() + r * s_.k;
        for (int64_t j = 0; j < s_.k; ++j) {
          const int32_t p = row[j];
          next[j] = kNone;
          if (static_cast<uint32_t>(p) >= newest || next_of_[p] == i) continue;
          next[j] = p < valid ? next_of_[p] : kInvalid;
          next_of_[p] = static_cast<int32_t>(i);
        }
      }
      note_growth(i);
    }
  }

  void note_growth(int64_t i) {
    const int32_t length = s_.seq_lens[begin_of(i)];
    const int32_t before = i > 0 ? s_.seq_lens[begin_of(i - 1)] : from_tail_ ? length - 1 : length;
    for (int32_t p = length - 2; p >= before - 1; --p) {
      if (p >= 0 && p < slots_) grown_.push_back({i, p, next_of_[p]});
    }
  }

  void step(int64_t i, int32_t* selected, int32_t* misses) {
    int64_t held = 0;
    for (int64_t r = begin_of(i); r < end_of(i); ++r) {
      const int32_t* const row = s_.positions + r * s_.k;
      const int32_t* const next = next_.data() + r * s_.k;
      const int32_t newest = s_.seq_lens[r] - 1;
      int32_t first = 0, missing = 0;
      bool has_newest = false;
      for (int64_t j = 0; j < s_.k; ++j) {
        const bool counts = next[j] != kNone;
        first += counts;
        missing += counts && !resident_[row[j]];
        has_newest |= row[j] == newest && newest >= 0;
      }
      held += first;
      misses[r] = missing;
      selected[r] = (s_.tokens == 1 ? first : distinct(r)) + has_newest;
    }
    while (stacks_[i] != kNone) pop(i);
    for (; residents_ + held > slots_; pop(furthest_)) {
      while (stacks_[furthest_] == kNone) --furthest_;
    }
    for (int64_t j = begin_of(i) * s_.k; j < end_of(i) * s_.k; ++j) {
      if (next_[j] >= 0) push(s_.positions[j], next_[j]);
    }
  }

  int32_t distinct(int64_t r) {
    seen_.resize(resident_.size(), 0);
    int32_t count = 0;
    for (int64_t j = 0; j < s_.k; ++j) {
      const int32_t p = s_.positions[r * s_.k + j];
      if (p < 0 || p >= s_.seq_lens[r] - 1) continue;
      count += seen_[p] != r + 1;
      seen_[p] = r + 1;
    }
    return count;
  }

  void push(int32_t position, int64_t step) {
    if (free_ == kNone) {
      nodes_.push_back({});
      free_ = static_cast<int32_t>(nodes_.size()) - 1;
      nodes_[free_].below = kNone;
    }
    const int32_t node = free_;
    free_ = nodes_[node].below;
    nodes_[node] = {position, stacks_[step]};
    stacks_[step] = node;
    resident_[position] = 1;
    furthest_ = std::max(furthest_, step);
    ++residents_;
  }

  void pop(int64_t step) {
    const int32_t node = stacks_[step];
    stacks_[step] = nodes_[node].below;
    nodes_[node].below = free_;
    free_ = node;
    resident_[nodes_[node].position] = 0;
    --residents_;
  }

  const int64_t slots_;
  const Sequence s_;
  const int64_t steps_;
  const bool from_tail_;
  std::vector<int32_t> stacks_, next_of_, next_;
  std::vector<Node> nodes_;
  std::vector<Grown> grown_;
  std::vector<int64_t> seen_;  // by position: the row that selected it last, plus 1
  std::vector<uint8_t> resident_;
  int32_t free_ = kNone;
  int64_t residents_ = 0, furthest_ = 0;
};

}  // namespace replay
