// Sets of positions as bitmaps: a selection turned into one, and the positions of a sparse one listed again.
//
// A bitmap over a context of 100,000 positions has 12.5 kB and stays in the nearest cache, where unions, differences
// and counts take a few hundred vector instructions; only the loops below look at single positions.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>
#include "lanes.h"
#include "policy.h"

namespace replay {

using Bitmap = std::vector<Word>;

inline bool bit_of(const Word* map, int32_t position) { return map[position >> 6] >> (position & 63) & 1; }
inline void set_bit(Word* map, int32_t position) { map[position >> 6] |= Word{1} << (position & 63); }
inline void clear_bit(Word* map, int32_t position) { map[position >> 6] &= ~(Word{1} << (position & 63)); }
inline int64_t words_of(int64_t positions) { return (positions + 63) / 64; }
inline Word below(int64_t position) { return (Word{1} << (position & 63)) - 1; }  // within its word

#ifdef REPLAY_LANES
// The bits of an ascending row, 16 positions at a time: those of one half word are gathered in the lane of its last
// position, by doubling shifts that reach back into the 16 before, and written once they are; of lanes that write the
// same place the last one counts. each(p, at, bits, some): the positions, their half words and their bits therein.
template <class Each>
inline void mark_ascending(const uint32_t* row, int64_t n, Word* map, Each each) {
  __m512i last_at = _mm512_set1_epi32(-1), last_bits = _mm512_setzero_si512();
  for (int64_t j = 0; j < n; j += 16) {
    const __mmask16 some = first_lanes(n - j);
    const __m512i p = _mm512_maskz_loadu_epi32(some, row + j);
    const __m512i at = _mm512_srli_epi32(p, 5);
    __m512i bits = bit_in_half(p);
    each(p, at, bits, some);
    const auto join = [&](auto back) {
      const __mmask16 same = _mm512_cmpeq_epi32_mask(at, _mm512_alignr_epi32(at, last_at, 16 - back()));
      bits = _mm512_mask_or_epi32(bits, same, bits, _mm512_alignr_epi32(bits, last_bits, 16 - back()));
      return same;
    };
    join([] { return 1; });
    join([] { return 2; });
    if (join([] { return 4; })) {  // five and more in one half word
      join([] { return 8; });
      bits = _mm512_mask_or_epi32(bits, _mm512_cmpeq_epi32_mask(at, last_at), bits, last_bits);
    }
    _mm512_mask_i32scatter_epi32(map, some, at, bits, 4);
    last_at = at;
    last_bits = bits;
  }
}

inline void mark_ascending(const uint32_t* row, int64_t n, Word* map) {
  mark_ascending(row, n, map, [](__m512i, __m512i, __m512i, __mmask16) {});
}

// Marks an ascending row in `map`, which is empty, and lists what of it `held` does not have into out, which has room
// for n and 16 more; returns how many.
inline int64_t mark_and_list(const uint32_t* row, int64_t n, Word* map, const Word* held, int32_t* out) {
  int64_t count = 0;
  mark_ascending(row, n, map, [&](__m512i p, __m512i at, __m512i bits, __mmask16 some) {
    const __m512i there = _mm512_mask_i32gather_epi32(p, some, at, held, 4);
    count += put(out + count, _mm512_mask_testn_epi32_mask(some, there, bits), p);
  });
  return count;
}
#else
// The bits of a part of an ascending row, collected word by word: a word is written once for each of its bits and
// never read.
struct Run {
  const uint32_t* from;
  uint32_t word = 0;
  Word bits = 0;
  void step(int64_t j, Word* map) {
    const uint32_t p = from[j], w = p >> 6;
    bits = (bits & -Word{w == word}) | Word{1} << (p & 63);
    word = w;
    map[w] = bits;
  }
};

// Three runs side by side, each of words of its own: one alone would wait for its own results.
inline void mark_ascending(const uint32_t* row, int64_t n, Word* map) {
  int64_t second = n / 3, third = second * 2;
  while (second > 0 && row[second] >> 6 == row[second - 1] >> 6) --second;
  while (third > second && row[third] >> 6 == row[third - 1] >> 6) --third;
  Run a{row}, b{row + second}, c{row + third};
  const int64_t together = std::min({second, third - second, n - third});
  for (int64_t j = 0; j < together; ++j) {
    a.step(j, map);
    b.step(j, map);
    c.step(j, map);
  }
  for (int64_t j = together; j < second; ++j) a.step(j, map);
  for (int64_t j = together; j < third - second; ++j) b.step(j, map);
  for (int64_t j = together; j < n - third; ++j) c.step(j, map);
}

inline int64_t mark_and_list(const uint32_t* row, int64_t n, Word* map, const Word* held, int32_t* out) {
  mark_ascending(row, n, map);
  int64_t count = 0;
  for (int64_t j = 0; j < n; ++j) {
    out[count] = static_cast<int32_t>(row[j]);
    count += !bit_of(held, row[j]);
  }
  return count;
}
#endif

// What a token selects below `newest`.
struct Row {
  const uint32_t* positions;  // as unsigned, padding is the highest
  int64_t n;                  // what comes after these does not count
  bool ascending;             // they all count, and no position comes twice
  bool has_newest;            // somewhere
};

inline Row look_at(const Token& t, int32_t newest) {
  Row row{reinterpret_cast<const uint32_t*>(t.selection), t.k, false, false};
  const uint32_t limit = newest > 0 ? newest : 0;
  for (; row.n > 0 && row.positions[row.n - 1] >= limit; --row.n) row.has_newest |= t.selection[row.n - 1] == newest;
  uint32_t falls = 0;
  for (int64_t j = 0; j + 1 < row.n; ++j) falls |= row.positions[j] >= row.positions[j + 1];
  row.ascending = !falls;
  for (int64_t j = 0; falls && j < row.n; ++j) row.has_newest |= t.selection[j] == newest;
  return row;
}

// Adds it to a map that is empty.
inline Row mark(const Token& t, int32_t newest, Word* map) {
  const Row row = look_at(t, newest);
  if (row.ascending) {
    mark_ascending(row.positions, row.n, map);
    return row;
  }
  for (int64_t j = 0; j < row.n; ++j) {
    const bool counts = row.positions[j] < static_cast<uint32_t>(newest);
    map[counts ? row.positions[j] >> 6 : 0] |= Word{counts} << (row.positions[j] & 63);
  }
  return row;
}

inline int64_t count_bits(const Word* map, int64_t words) {
  int64_t count = 0;
  for (int64_t w = 0; w < words; ++w) count += __builtin_popcountll(map[w]);
  return count;
}

// The words that are not 0, by number, into out, which has room for all and 8 more; returns how many.
inline int64_t list_words(const Word* map, int64_t words, int32_t* out) {
  int64_t count = 0, w = 0;
#ifdef REPLAY_LANES
  __m256i at = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  for (; w + 8 <= words; w += 8) {
    const __m512i eight = _mm512_loadu_si512(map + w);
    const __mmask8 some = _mm512_test_epi64_mask(eight, eight);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + count), _mm256_maskz_compress_epi32(some, at));
    count += __builtin_popcount(some);
    at = _mm256_add_epi32(at, _mm256_set1_epi32(8));
  }
#endif
  for (; w < words; ++w) {
    out[count] = static_cast<int32_t>(w);
    count += map[w] != 0;
  }
  return count;
}

// Lists the positions of sparse bitmaps, ascending.
class BitLister {
 public:
  // Appends the positions of map to out; returns how many.
  int64_t list(const Word* map, int64_t words, std::vector<int32_t>& out) {
    numbers_.resize(words + 8);
    const int64_t some = list_words(map, words, numbers_.data());
    const size_t before = out.size();
    out.resize(before + count_bits(map, words) + kAtOnce);
    int32_t* to = out.data() + before;
    for (int64_t i = 0; i < some; ++i) {  // how many bits a word has cannot be predicted: the first few cost no branch
      const int32_t base = numbers_[i] * 64;
      Word bits = map[numbers_[i]];
      const int64_t count = __builtin_popcountll(bits);
      for (int64_t b = 0; b < kAtOnce; ++b) {
        to[b] = base + __builtin_ctzll(bits | Word{1} << 63);
        bits &= bits - 1;
      }
      for (int64_t b = kAtOnce; bits; ++b, bits &= bits - 1) to[b] = base + __builtin_ctzll(bits);
      to += count;
    }
    out.resize(to - out.data());
    return static_cast<int64_t>(out.size() - before);
  }

 private:
  static constexpr int64_t kAtOnce = 3;
  std::vector<int32_t> numbers_;
};

}  // namespace replay
