// Sparse decode attention on a CPU: one query per request over the records of its selected slots.
//
// One formulation for GQA and MLA: of a record, KV head g has its key at g * key_dim and its value at value_offset +
// g * value_dim. GQA: value_offset = G * key_dim; MLA: G = 1, value_offset = 0 and value_dim = kv_lora_rank, since the
// value is the latent part of the key. Sums are in float32; a request without a valid slot gives zeros.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "buffer.h"

namespace hisparse {

struct BFloat16 {
  uint16_t bits;
};

inline float to_float(float x) { return x; }
inline float to_float(_Float16 x) { return static_cast<float>(x); }
inline float to_float(BFloat16 x) {
  const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
inline void from_float(float x, float& to) { to = x; }
inline void from_float(float x, _Float16& to) { to = static_cast<_Float16>(x); }
inline void from_float(float x, BFloat16& to) {  // to nearest, ties to even
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    to.bits = static_cast<uint16_t>(bits >> 16 | 64);  // stays a NaN
    return;
  }
  to.bits = static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

struct AttendArgs {
  const void* q;         // [n, heads, key_dim]
  const void* pool;      // [records, width]
  const int32_t* slots;  // [n, k], below zero: none
  void* out;             // [n, heads, value_dim]
  int64_t n, k, heads, kv_heads, key_dim, value_dim, value_offset, width, records;
  float scale;
};

struct AttendScratch {
  Buffer<float> query, scores, record, sums;
};

// Request i, KV head g.
template <class T>
void attend_head(const AttendArgs& a, AttendScratch& scratch, int64_t i, int64_t g) {
  const int64_t group = a.heads / a.kv_heads, dk = a.key_dim, dv = a.value_dim;
  const int32_t* const slots = a.slots + i * a.k;
  const T* const q = static_cast<const T*>(a.q) + (i * a.heads + g * group) * dk;
  T* const out = static_cast<T*>(a.out) + (i * a.heads + g * group) * dv;
  const T* const pool = static_cast<const T*>(a.pool);
  float* const query = scratch.query.at_least(group * dk);
  float* const scores = scratch.scores.at_least(group * a.k);
  float* const record = scratch.record.at_least(dk > dv ? dk : dv);
  float* const sums = scratch.sums.at_least(group * dv);
  for (int64_t x = 0; x < group * dk; ++x) query[x] = to_float(q[x]) * a.scale;
  const auto valid = [&](int64_t j) { return slots[j] >= 0 && slots[j] < a.records; };

  for (int64_t j = 0; j < a.k; ++j) {
    if (!valid(j)) continue;
    const T* const key = pool + slots[j] * a.width + g * dk;
    for (int64_t d = 0; d < dk; ++d) record[d] = to_float(key[d]);
    for (int64_t h = 0; h < group; ++h) {
      float dot = 0;
#pragma omp simd reduction(+ : dot)
      for (int64_t d = 0; d < dk; ++d) dot += query[h * dk + d] * record[d];
      scores[h * a.k + j] = dot;
    }
  }
  for (int64_t h = 0; h < group; ++h) {
    float* const row = scores + h * a.k;
    float highest = -std::numeric_limits<float>::infinity(), sum = 0;
    for (int64_t j = 0; j < a.k; ++j)
      if (valid(j) && row[j] > highest) highest = row[j];
    for (int64_t j = 0; j < a.k; ++j)
      if (valid(j)) sum += row[j] = std::exp(row[j] - highest);
    for (int64_t j = 0; j < a.k; ++j)
      if (valid(j)) row[j] /= sum;
  }
  std::memset(sums, 0, group * dv * sizeof(float));
  for (int64_t j = 0; j < a.k; ++j) {
    if (!valid(j)) continue;
    const T* const value = pool + slots[j] * a.width + a.value_offset + g * dv;
    for (int64_t d = 0; d < dv; ++d) record[d] = to_float(value[d]);
    for (int64_t h = 0; h < group; ++h) {
      const float weight = scores[h * a.k + j];
#pragma omp simd
      for (int64_t d = 0; d < dv; ++d) sums[h * dv + d] += weight * record[d];
    }
  }
  for (int64_t x = 0; x < group * dv; ++x) from_float(sums[x], out[x]);
}

}  // namespace hisparse
