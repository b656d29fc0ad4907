// Sets of positions as bitmaps: a selection turned into one, and the positions of a sparse one listed again.
//
// A bitmap over a context of 100,000 positions has 12.5 kB and stays in the nearest cache, where unions, differences
// and counts take a few hundred vector instructions; only the loops below look at single positions.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>
#if defined(__AVX512F__) && defined(__AVX512VL__)
#include <immintrin.h>
#endif

#include "policy.h"


namespace replay {

using Word = uint64_t;
using Bitmap = std::vector<Word>;

inline bool bit_of(const Word* map, int32_t position) { return map[position >> 6] >> (position & 63) & 1; }
inline void set_bit(Word* map, int32_t position) { map[position >> 6] |= Word{1} << (position & 63); }
inline void clear_bit(Word* map, int32_t position) { map[position >> 6] &= ~(Word{1} << (position & 63)); }
inline int64_t words_of(int64_t positions) { return (positions + 63) / 64; }
inline Word below(int64_t position) { return (Word{1} << (position & 63)) - 1; }  // within its word

#if defined(__AVX512F__) && defined(__AVX512VL__)
// The bits of an ascending row, 16 positions at a time: those of one half word are gathered in the lane of its last
// position, by doubling shifts that reach back into the 16 before, and written once they are; of lanes that write the
// same place the last one counts.
inline void mark_ascending(const uint32_t* row, int64_t n, Word* map) {
  const __m512i one = _mm512_set1_epi32(1);
  __m512i last_at = _mm512_set1_epi32(-1), last_bits = _mm512_setzero_si512();
  for (int64_t j = 0; j < n; j += 16) {
    const __mmask16 some = n - j >= 16 ? 0xffff : (1u << (n - j)) - 1;
    const __m512i p = _mm512_maskz_loadu_epi32(some, row + j);
    const __m512i at = _mm512_srli_epi32(p, 5);  // of the half word
    __m512i bits = _mm512_sllv_epi32(one, _mm512_and_si512(p, _mm512_set1_epi32(31)));
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
#endif

struct Marked {
  bool ascending;   // the row as it stands, padding last
  bool has_newest;  // which is not in the map
};

// Adds what the token selects below `newest` to a map that is empty.
inline Marked mark(const Token& t, int32_t newest, Word* map) {
  const auto* const row = reinterpret_cast<const uint32_t*>(t.selection);  // as unsigned, padding is the highest
  const uint32_t limit = newest > 0 ? newest : 0;
  uint32_t falls = 0, newests = 0;
  for (int64_t j = 0; j + 1 < t.k; ++j) {
    falls |= row[j] > row[j + 1];
    newests |= t.selection[j] == newest;
  }
  newests |= t.k > 0 && t.selection[t.k - 1] == newest;
  int64_t n = t.k;
  if (falls) {
    for (int64_t j = 0; j < n; ++j) {
      const bool counts = row[j] < limit;
      map[counts ? row[j] >> 6 : 0] |= Word{counts} << (row[j] & 63);
    }
    return {false, newests != 0};
  }
  while (n > 0 && row[n - 1] >= limit) --n;
  mark_ascending(row, n, map);
  return {true, newests != 0};
}

inline int64_t count_bits(const Word* map, int64_t words) {
  int64_t count = 0;
  for (int64_t w = 0; w < words; ++w) count += __builtin_popcountll(map[w]);
  return count;
}

// The words that are not 0, by number, into out, which has room for all and 8 more; returns how many.
inline int64_t list_words(const Word* map, int64_t words, int32_t* out) {
  int64_t count = 0, w = 0;
#if defined(__AVX512F__) && defined(__AVX512VL__)
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
