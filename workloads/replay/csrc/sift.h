// Going through a queue of positions for those that leave: the one loop in which most policies spend their time.
#pragma once
#include <cstdint>

#include "bits.h"

namespace replay {

struct Sifted {
  int64_t seen, taken, passed;  // entries from the front of the queue; passed: pinned ones, which stay
};

// Which entries count: those of positions that are in `members`, not in `unless`.
struct Among {
  const Word *members, *unless;
  bool operator()(int64_t, int32_t p) const { return bit_of(members, p) & !(unless && bit_of(unless, p)); }
#ifdef REPLAY_LANES
  __mmask16 operator()(int64_t, __m512i p, __mmask16 some) const {
    const __mmask16 in = bits_of(members, p, some);
    return unless ? in & ~bits_of(unless, p, some) : in;
  }
#endif
};

struct All {
  bool operator()(int64_t, int32_t) const { return true; }
#ifdef REPLAY_LANES
  __mmask16 operator()(int64_t, __m512i, __mmask16 some) const { return some; }
#endif
};

// Goes on until n that count and are not in `pinned` (which may be null) are found. Those go to taken, the pinned ones
// passed over to passed; each has room for one more than may come, and 16. Branches are few: what is stale or pinned
// cannot be predicted.
template <class Counts>
Sifted sift(const int32_t* queue, int64_t count, int64_t n, const Word* pinned, Counts counts, int32_t* taken,
            int32_t* passed) {
  Sifted s{0, 0, 0};
#ifdef REPLAY_LANES
  while (s.seen < count && s.taken < n) {
    const __mmask16 some = first_lanes(count - s.seen);
    const __m512i p = _mm512_maskz_loadu_epi32(some, queue + s.seen);
    const __mmask16 valid = counts(s.seen, p, some);
    const __mmask16 stay = pinned ? bits_of(pinned, p, valid) : 0;
    const __mmask16 go = valid & ~stay, lanes = some & lanes_up_to(n - s.taken, go);
    s.taken += put(taken + s.taken, go & lanes, p);
    if (pinned) s.passed += put(passed + s.passed, stay & lanes, p);
    s.seen += __builtin_popcount(lanes);
  }
#else
  for (; s.seen < count && s.taken < n; ++s.seen) {
    const int32_t p = queue[s.seen];
    const bool valid = counts(s.seen, p), stays = pinned && bit_of(pinned, p);
    taken[s.taken] = passed[s.passed] = p;
    s.taken += valid & !stays;
    s.passed += valid & stays;
  }
#endif
  return s;
}

}  // namespace replay
