// Match one token's selection against a request's cache row: AVSG's way (section 3.3, appendix B), without the copies.
//
// Where match.h keeps an order of the slots and probes them all, this keeps a table from positions to slots between
// tokens and probes only for what is selected, and an 8-bit life per slot instead of the order. A bucket's word is
// fingerprint << 16 | slot. Three passes: refresh the hits, classify, and give dead slots to the misses. The table is
// a hint: a word whose slot no longer holds its position is dead and may be overwritten, writers of one bucket lose
// to the first of the selection, and a hit counts only where the slot holds the very position. What loses its word is
// fetched for this token all the same, and missed next time.
#pragma once
#include "block.h"
#include "match.h"

namespace hisparse {

constexpr uint32_t kHashA = 2654435761u, kHashB = 2246822519u, kHashF = 3266489917u;
constexpr int32_t kFree = -1;

struct AvsgArgs {
  MatchArgs match;  // lru_order is not used; positions that occur twice in a selection take two slots if they miss
  uint8_t* life;    // [num_rows, B]: 0 is dead; `full` after a selection
  int32_t* table;   // [num_rows, buckets]
  int32_t bits;     // buckets = 1 << bits
  int32_t probes;   // buckets looked at after the first (R)
  int32_t full;     // L + 1
  bool decay;       // whether this token is the first of its step
};

struct AvsgScratch {
  int32_t* dead;    // [B]
  int32_t* bucket;  // [k]: where a miss would write
  int32_t* claim;   // [buckets]: the first miss that would write there
};

struct Probing {
  uint32_t at, stride, mask;
  HS_INLINE uint32_t next() {
    const uint32_t here = at;
    at = (at + stride) & mask;
    return here;
  }
};

HS_INLINE Probing probing_of(int32_t position, int32_t bits) {
  const uint32_t p = static_cast<uint32_t>(position), mask = (1u << bits) - 1;
  return {p * kHashA >> (32 - bits), p * kHashB >> (32 - bits) | 1u, mask};
}

HS_INLINE int32_t word_of(int32_t position, int32_t slot) {
  return static_cast<int32_t>(static_cast<uint32_t>(position) * kHashF >> 17 << 16) | slot;
}
HS_INLINE int32_t slot_in(int32_t word) { return word & 0xffff; }

// The slot that holds the position, if the table still leads there; -1 else.
HS_INLINE int32_t probe(const AvsgArgs& a, const int32_t* table, const int32_t* positions, int32_t position) {
  Probing probing = probing_of(position, a.bits);
  for (int32_t round = 0; round <= a.probes; ++round) {
    const int32_t word = table[probing.next()];
    if (word == kFree) return -1;  // words are overwritten, never cleared
    const int32_t slot = slot_in(word);
#if SEEDED_BUG == 21  // the fingerprint is taken for the position
    if (word == word_of(position, slot)) return slot;
#else
    if (word == word_of(position, slot) && positions[slot] == position) return slot;
#endif
  }
  return -1;
}

// The first bucket whose word leads nowhere; -1 if the rounds end before one comes.
HS_INLINE int32_t reusable(const AvsgArgs& a, const int32_t* table, const int32_t* positions, int32_t position) {
  Probing probing = probing_of(position, a.bits);
  for (int32_t round = 0; round <= a.probes; ++round) {
    const uint32_t bucket = probing.next();
    const int32_t word = table[bucket];
    if (word == kFree) return bucket;
    const int32_t slot = slot_in(word), held = positions[slot];
    if (held < 0 || word != word_of(held, slot)) return bucket;
  }
  return -1;
}

// How many slots are dead once all have aged by `age`.
HS_INLINE int32_t count_dead(const Block& block, const uint8_t* life, int64_t num_slots, int32_t age) {
  Reg<int> count;
  block.phase([&](int t) {
    int dead = 0;
    for (int64_t s = t; s < num_slots; s += block.threads) dead += life[s] <= age;
    count[t] = dead;
  });
  return block.scan(count);
}

HS_INLINE void age_all(const Block& block, uint8_t* life, int64_t num_slots, int32_t age) {
  block.phase([&](int t) {
    for (int64_t s = t; s < num_slots; s += block.threads) life[s] = life[s] > age ? life[s] - age : 0;
  });
}

// The least further age at which `needed` slots are dead (appendix B: decay until enough die), by bisection.
HS_INLINE int32_t forced_age(const Block& block, const uint8_t* life, int64_t num_slots, int32_t needed, int32_t full) {
  if (count_dead(block, life, num_slots, 0) >= needed) return 0;
  int32_t low = 0, high = full;  // not enough at low, enough at high
  while (high - low > 1) {
    const int32_t middle = (low + high) / 2;
    (count_dead(block, life, num_slots, middle) >= needed ? high : low) = middle;
  }
#if SEEDED_BUG == 23  // a year too much
  return high < full ? high + 1 : high;
#else
  return high;
#endif
}

HS_INLINE void avsg_row(const Block& block, const AvsgArgs& args, const AvsgScratch& s, int64_t i) {
  const MatchArgs& a = args.match;
  const int threads = block.threads;
  const int64_t k = a.k, num_slots = a.num_slots, row = a.rows[i];
  const int32_t* const selection = a.selection + i * k;
  int32_t* const out = a.out + i * k;
  if (row < 0 || row >= a.num_rows) return publish_none(block, a, i);
  int32_t* const positions = a.slot_positions + row * num_slots;
  uint8_t* const life = args.life + row * num_slots;
  int32_t* const table = args.table + (row << args.bits);
  const int32_t newest = a.seq_lens[i] - 1;
  const auto wanted = [&](int32_t p) { return p >= 0 && p < newest; };

  // 1. Refresh: every slot ages with the step, what is hit is young again.
#if SEEDED_BUG == 22  // every token ages the slots, not only the first of its step
  age_all(block, life, num_slots, 1);
#else
  if (args.decay) age_all(block, life, num_slots, 1);
#endif
  block.phase([&](int t) {
    for (int64_t j = t; j < k; j += threads) {
      out[j] = wanted(selection[j]) ? probe(args, table, positions, selection[j]) : -1;
      if (out[j] >= 0) life[out[j]] = static_cast<uint8_t>(args.full);
    }
  });

  // 2. Classify: rank the misses.
  int32_t num_misses = 0;
  for (int64_t base = 0; base < k; base += threads) {
    Reg<int> rank;
    Reg<bool> missing;
    block.phase([&](int t) {
      const int64_t j = base + t;
      missing[t] = j < k && wanted(selection[j]) && out[j] < 0;
      rank[t] = missing[t];
    });
    const int found = block.scan(rank);
    block.phase([&](int t) {
      if (base + t < k) s.bucket[base + t] = missing[t] ? num_misses + rank[t] : kNone;
    });
    num_misses += found;
  }

  // 3. Allocate: the first dead slots, by slot number, to the misses in selection order.
  if (num_misses > 0) {
    const int32_t age = forced_age(block, life, num_slots, num_misses, args.full);
    if (age > 0) age_all(block, life, num_slots, age);
    int32_t num_dead = 0;
    for (int64_t base = 0; base < num_slots; base += threads) {
      Reg<int> rank;
      Reg<bool> is_dead;
      block.phase([&](int t) {
        is_dead[t] = base + t < num_slots && life[base + t] == 0;
        rank[t] = is_dead[t];
      });
      const int found = block.scan(rank);
      block.phase([&](int t) {
        if (is_dead[t]) s.dead[num_dead + rank[t]] = static_cast<int32_t>(base + t);
      });
      num_dead += found;
    }
    block.phase([&](int t) {
      for (int32_t b = t; b < 1 << args.bits; b += threads) s.claim[b] = kNone;
      for (int64_t j = t; j < k; j += threads) {
        if (s.bucket[j] == kNone) continue;
        const int32_t r = s.bucket[j], slot = s.dead[r];
        out[j] = slot;
        positions[slot] = selection[j];
        life[slot] = static_cast<uint8_t>(args.full);
        a.miss_slots[i * k + r] = slot;
        a.miss_positions[i * k + r] = selection[j];
      }
    });
    block.phase([&](int t) {
      for (int64_t j = t; j < k; j += threads) {
        if (s.bucket[j] == kNone) continue;
        const int32_t bucket = reusable(args, table, positions, selection[j]);
        s.bucket[j] = bucket < 0 ? kNone : bucket;
        if (bucket >= 0) atomic_min(&s.claim[bucket], static_cast<int32_t>(j));
      }
    });
  }

  // Write the words, and publish.
  block.phase([&](int t) {
    for (int64_t j = t; j < k; j += threads) {
      const int32_t p = selection[j], bucket = s.bucket[j];
#if SEEDED_BUG == 20  // a loser of a bucket writes its slot under the winner's fingerprint
      if (bucket != kNone) table[bucket] = word_of(selection[s.claim[bucket]], out[j]);
#else
      if (bucket != kNone && s.claim[bucket] == j) table[bucket] = word_of(p, out[j]);
#endif
      int64_t slot = wanted(p) ? out[j] : -1;
      if (p >= 0 && p == newest) slot = num_slots;
      out[j] = slot < 0 ? -1 : static_cast<int32_t>(row * (num_slots + 1) + slot);
    }
    if (t == 0) a.per_row[i] = num_misses;
  });
}

}  // namespace hisparse
