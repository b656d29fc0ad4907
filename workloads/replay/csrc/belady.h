// The offline optimum: of what the step does not select, whatever is selected again furthest in the future leaves.
//
// It needs the whole sequence, which it keeps as a bitmap per step; next uses come from a pass backwards. Most of what
// a step selects the next one selects again: that cannot leave in between, so only what pauses, some third, is given a
// place, in a stack of those that come back at the same step. Victims come off the furthest stack. Furthest-in-future
// (Belady, 1966) is optimal here although a step's positions must be resident together: they are no candidates, and
// the rest is ordinary paging.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "bits.h"

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
      : slots_(slots), s_(s), steps_((s.rows + s.tokens - 1) / s.tokens), from_tail_(from_tail) {
    int32_t limit = 1;
    for (int64_t r = 0; r < s_.rows; ++r) limit = std::max(limit, s_.seq_lens[r]);
    words_ = words_of(limit);
    chosen_.assign((steps_ + 2) * words_, 0);
    next_of_.assign(words_ * 64, static_cast<int32_t>(steps_));
    resident_.assign(words_, 0);
    has_newest_.resize(s_.rows);
    for (int64_t r = 0; r < s_.rows; ++r) mark_row(r, chosen(r / s_.tokens));
    look_ahead();
  }

  void run(int32_t* selected, int32_t* misses) {
    for (const Pause& p : first_) enter(p);
    for (int64_t i = 0; i < steps_; ++i) {
      for (; !grown_.empty() && grown_.back().step == i; grown_.pop_back()) {
        if (!bit_of(resident_.data(), grown_.back().pause.position)) enter(grown_.back().pause);
      }
      step(i, selected, misses);
    }
  }

 private:
  struct Pause {  // a resident that is not selected before the step `next`
    int32_t position, next;
  };
  struct Grown {
    int64_t step;
    Pause pause;
  };

  int64_t begin_of(int64_t step) const { return step * s_.tokens; }
  int64_t end_of(int64_t step) const { return std::min(s_.rows, (step + 1) * s_.tokens); }
  Word* chosen(int64_t step) { return chosen_.data() + (step + 1) * words_; }  // -1 and steps_ are empty
  // Positions from here on are invalid once the step is done.
  int64_t valid_below(int64_t step) const { return s_.tokens > 1 ? s_.seq_lens[begin_of(step)] : words_ * 64; }

  Token token(int64_t r) const { return {s_.positions + r * s_.k, s_.k, s_.seq_lens[r], true, true}; }

  // Adds a row to its step's map.
  void mark_row(int64_t r, Word* map) {
    if (s_.tokens > 1) row_.assign(words_, 0);
    Word* const to = s_.tokens == 1 ? map : row_.data();
    has_newest_[r] = mark(token(r), s_.seq_lens[r] - 1, to).has_newest;
    for (int64_t w = 0; s_.tokens > 1 && w < words_; ++w) map[w] |= row_[w];
  }

  // Lists the pauses that begin with each step, and makes room for the stacks.
  void look_ahead() {
    begins_.assign(steps_ + 1, 0);
    room_.assign(steps_ + 2, 0);
    Bitmap edge(words_);
    std::vector<int32_t> listed;
    for (int64_t i = steps_; i-- > 0;) {
      const Word *const before = chosen(i - 1), *const now = chosen(i), *const after = chosen(i + 1);
      listed.clear();
      for (int64_t w = 0; w < words_; ++w) edge[w] = now[w] & ~after[w];
      lister_.list(edge.data(), std::min(words_, words_of(valid_below(i))), listed);
      for (const int32_t p : listed) {
        if (p < valid_below(i)) note({p, next_of_[p]}, pauses_);
      }
      begins_[i] = pauses_.size();
      listed.clear();
      for (int64_t w = 0; w < words_; ++w) edge[w] = now[w] & ~before[w];
      lister_.list(edge.data(), words_, listed);
      for (const int32_t p : listed) next_of_[p] = static_cast<int32_t>(i);
      note_growth(i);
    }
    if (from_tail_ && steps_ > 0) {  // as in Lane::begin_step
      const int32_t old = s_.seq_lens[0] - 2;
      for (int32_t p = old - std::clamp<int64_t>(old, 0, slots_); p < old; ++p) note({p, next_of_[p]}, first_);
    }
    stacks_.assign(steps_ + 2, 0);
    for (int64_t i = 0; i <= steps_; ++i) stacks_[i + 1] = stacks_[i] + room_[i];
    tops_ = stacks_;
    stacked_.resize(stacks_[steps_ + 1]);
  }

  void note(Pause pause, std::vector<Pause>& where) {
    where.push_back(pause);
    ++room_[pause.next];
  }

  void note_growth(int64_t i) {
    const int32_t length = s_.seq_lens[begin_of(i)];
    const int32_t before = i > 0 ? s_.seq_lens[begin_of(i - 1)] : from_tail_ ? length - 1 : length;
    for (int32_t p = length - 2; p >= before - 1; --p) {
      if (p < 0 || p >= slots_) continue;
      const int32_t next = bit_of(chosen(i), p) ? static_cast<int32_t>(i) : next_of_[p];
      grown_.push_back({i, {p, next}});
      ++room_[next];
    }
  }

  void step(int64_t i, int32_t* selected, int32_t* misses) {
    int64_t held = 0, missing = 0;
    for (int64_t r = begin_of(i); r < end_of(i); ++r) {
      const Counts row = look_up(r, i);
      selected[r] = row.selected + has_newest_[r];
      misses[r] = row.misses;
      held += row.selected;
      missing += row.misses;
    }
    if (s_.tokens > 1) held = count_bits(chosen(i), words_);
    int64_t paused = residents_ - (held - missing);
    tops_[i] = stacks_[i];  // they are back
    for (; paused + held > slots_; --paused) {
      while (tops_[furthest_] == stacks_[furthest_]) --furthest_;
      clear_bit(resident_.data(), stacked_[--tops_[furthest_]]);
    }
    if (s_.tokens > 1) held -= invalidate(valid_below(i));
    residents_ = paused + held;
    const size_t end = begins_[i], begin = i + 1 < steps_ ? begins_[i + 1] : 0;
    for (size_t at = begin; at < end; ++at) stack(pauses_[at]);
  }

  // Counts a row and makes it resident.
  Counts look_up(int64_t r, int64_t i) {
    if (s_.tokens > 1) {
      row_.assign(words_, 0);
      mark(token(r), s_.seq_lens[r] - 1, row_.data());
    }
    const Word* const __restrict row = s_.tokens > 1 ? row_.data() : chosen(i);
    Word* const __restrict resident = resident_.data();
    int64_t count = 0, missing = 0;
    for (int64_t w = 0; w < words_; ++w) {
      count += __builtin_popcountll(row[w]);
      missing += __builtin_popcountll(row[w] & ~resident[w]);
      resident[w] |= row[w];
    }
    return {static_cast<int32_t>(count), static_cast<int32_t>(missing)};
  }

  int64_t invalidate(int64_t from) {
    int64_t count = 0;
    for (int64_t p = from; p < words_ * 64; ++p) {
      count += bit_of(resident_.data(), static_cast<int32_t>(p));
      clear_bit(resident_.data(), static_cast<int32_t>(p));
    }
    return count;
  }

  void enter(const Pause& p) {
    set_bit(resident_.data(), p.position);
    ++residents_;
    stack(p);
  }
  void stack(const Pause& p) {
    stacked_[tops_[p.next]++] = p.position;
    furthest_ = std::max<int64_t>(furthest_, p.next);
  }

  const int64_t slots_;
  const Sequence s_;
  const int64_t steps_;
  const bool from_tail_;
  int64_t words_ = 0;
  Bitmap chosen_, resident_, row_;
  std::vector<uint8_t> has_newest_;  // by row
  std::vector<int32_t> next_of_, stacked_;
  std::vector<Pause> pauses_, first_;          // pauses_: those of the last step first
  std::vector<size_t> begins_;                 // by step: where its pauses end; they begin where the next one's end
  std::vector<int64_t> room_, stacks_, tops_;  // stacks_: by step, where its stack begins in stacked_
  std::vector<Grown> grown_;
  BitLister lister_;
  int64_t residents_ = 0, furthest_ = 0;
};

}  // namespace replay
