// Sixteen positions at a time against bitmaps, where the CPU has AVX-512; the loops that use it have a plain form too.
#pragma once
#include <cstdint>

#if defined(__AVX512F__) && defined(__AVX512VL__) && defined(__AVX512CD__) && defined(__BMI2__)
#include <immintrin.h>
#define REPLAY_LANES
#endif

namespace replay {

using Word = uint64_t;
constexpr int64_t kSlack = 16;  // more room in lists that are written 16 at a time

#ifdef REPLAY_LANES
inline __mmask16 first_lanes(int64_t n) { return n >= 16 ? 0xffff : (1u << n) - 1; }

// The bit of each position in the half word that has it.
inline __m512i bit_in_half(__m512i p) {
  return _mm512_sllv_epi32(_mm512_set1_epi32(1), _mm512_and_si512(p, _mm512_set1_epi32(31)));
}

// Which of `some` are in the map.
inline __mmask16 bits_of(const Word* map, __m512i p, __mmask16 some) {
  const __m512i there = _mm512_mask_i32gather_epi32(p, some, _mm512_srli_epi32(p, 5), map, 4);
  return _mm512_mask_test_epi32_mask(some, there, bit_in_half(p));
}

// Writes the lanes of `some`, in order, to `to`, which has room for 16; returns how many.
inline int64_t put(int32_t* to, __mmask16 some, __m512i p) {
  _mm512_storeu_si512(to, _mm512_maskz_compress_epi32(some, p));
  return __builtin_popcount(some);
}

// The lanes up to that of the n-th of `some`, all lanes if there are not that many.
inline __mmask16 lanes_up_to(int64_t n, __mmask16 some) {
  if (__builtin_popcount(some) < n) return 0xffff;
  const uint32_t nth = _pdep_u32(1u << (n - 1), some);
  return static_cast<__mmask16>(nth | (nth - 1));
}
#endif

}  // namespace replay
