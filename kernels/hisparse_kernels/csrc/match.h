// Match one request's selection against its cache row: HiSparse section 3.4 without the copies.
//
// Stage the selection in a hash table, probe the slots from old to new, scan for victims, update the order,
// publish device slots. Victims and hits go to a list of B entries as the scan finds them: evictable slots from
// its front (old to new), hits from its back (old to new, backwards), so one list gives both the i-th victim and
// the new order. The layout of the hash table depends on who wins a race, nothing that is read from it does.
#pragma once
#include "block.h"

namespace hisparse {

constexpr int32_t kEmpty = -1;
constexpr int32_t kNone = 0x7fffffff;
constexpr int kItems = 4;  // slots of one thread in one tile of the probe

struct MatchArgs {
  const int32_t* selection;  // [n, k]
  const int64_t* rows;       // [n]; outside [0, num_rows) is padding
  const int32_t* seq_lens;   // [n]
  int32_t* slot_positions;   // [num_rows, B]
  int32_t* lru_order;        // [num_rows, B]
  int32_t* out;              // [n, k]: device slots
  int32_t* miss_slots;       // [n, k]: the misses of each request, in selection order
  int32_t* miss_positions;   // [n, k]
  int64_t* per_row;          // [n]: how many
  int64_t n, k, num_slots, num_rows;
};

struct MatchScratch {
  int32_t* key;      // [capacity]: a selected position, or kEmpty
  int32_t* first;    // [capacity]: its first index in the selection, which stands for all duplicates
  int32_t* slot;     // [capacity]: its slot, once known
  int32_t* victims;  // [B]
  int32_t capacity;  // a power of two >= 2 k, so that a probe always ends at an empty entry
};

HS_HOST_DEVICE constexpr int32_t table_capacity(int64_t k) {
  int32_t capacity = 32;
  while (capacity < 2 * k) capacity *= 2;
  return capacity;
}

HS_INLINE uint32_t hash_of(int32_t position) { return static_cast<uint32_t>(position) * 2654435761u >> 7; }

// Entry of a position, inserted if absent; -1 only if the table were full.
HS_INLINE int32_t insert(const MatchScratch& s, int32_t position) {
  const uint32_t mask = s.capacity - 1;
  uint32_t h = hash_of(position) & mask;
  for (int32_t tries = 0; tries < s.capacity; ++tries, h = (h + 1) & mask) {
    const int32_t held = atomic_cas(&s.key[h], kEmpty, position);
    if (held == kEmpty || held == position) return h;
  }
  return -1;
}

// Entry of a position, -1 if it is not selected. Reads only: after the barrier that ends the staging.
HS_INLINE int32_t find(const MatchScratch& s, int32_t position) {
  const uint32_t mask = s.capacity - 1;
  uint32_t h = hash_of(position) & mask;
  for (int32_t tries = 0; tries < s.capacity; ++tries, h = (h + 1) & mask) {
    if (s.key[h] == position) return h;
    if (s.key[h] == kEmpty) return -1;
#if SEEDED_BUG == 3  // a collision ends the probe
    return -1;
#endif
  }
  return -1;
}

// Padding: nothing is selected, nothing misses.
HS_INLINE void publish_none(const Block& block, const MatchArgs& a, int64_t i) {
  block.phase([&](int t) {
    for (int64_t j = t; j < a.k; j += block.threads) a.out[i * a.k + j] = -1;
    if (t == 0) a.per_row[i] = 0;
  });
}

struct ProbeItems {
  int32_t slot[kItems];
  bool hit[kItems];
};

HS_INLINE void match_row(const Block& block, const MatchArgs& a, const MatchScratch& s, int64_t i) {
  const int threads = block.threads;
  const int64_t k = a.k, num_slots = a.num_slots, row = a.rows[i];
  const int32_t* const selection = a.selection + i * k;
  int32_t* const out = a.out + i * k;  // holds table entries until the last phase
  if (row < 0 || row >= a.num_rows) return publish_none(block, a, i);
  int32_t* const positions = a.slot_positions + row * num_slots;
  int32_t* const order = a.lru_order + row * num_slots;
  const int32_t newest = a.seq_lens[i] - 1;
  const auto wanted = [&](int32_t p) { return p >= 0 && p < newest; };

  // 1. Stage.
  const auto clear = [&](int t) {
    for (int32_t h = t; h < s.capacity; h += threads) {
      s.key[h] = kEmpty;
      s.first[h] = kNone;
      s.slot[h] = -1;
    }
  };
  const auto stage = [&](int t) {
    for (int64_t j = t; j < k; j += threads) {
      const int32_t p = selection[j];
      if (!wanted(p)) continue;
      const int32_t h = insert(s, p);
#if SEEDED_BUG == 1  // whoever comes last stands for all duplicates
      s.first[h] = static_cast<int32_t>(j);
#else
      atomic_min(&s.first[h], static_cast<int32_t>(j));
#endif
      out[j] = h;
    }
  };
#if SEEDED_BUG == 5  // no barrier between the two
  block.phase([&](int t) {
    clear(t);
    stage(t);
  });
#else
  block.phase(clear);
  block.phase(stage);
#endif

  // 2. Probe the slots from old to new, and 3. scan: evictable ones to the front of the list, hits to its back.
  int64_t num_hits = 0;
  for (int64_t base = 0; base < num_slots; base += static_cast<int64_t>(threads) * kItems) {
    Reg<ProbeItems> items;
    Reg<int> before;
    block.phase([&](int t) {
      int hits = 0;
      for (int u = 0; u < kItems; ++u) {
        const int64_t at = base + t * kItems + u;
        items[t].hit[u] = false;
        if (at >= num_slots) continue;
        const int32_t held_by = order[at];
        const int32_t p = positions[held_by];
        const int32_t h = p >= 0 ? find(s, p) : -1;
        items[t].slot[u] = held_by;
        if (h < 0) continue;
        items[t].hit[u] = true;
        s.slot[h] = held_by;
        ++hits;
      }
      before[t] = hits;
    });
    const int found = block.scan(before);
    block.phase([&](int t) {
      int64_t hits_before = num_hits + before[t];
      for (int u = 0; u < kItems; ++u) {
        const int64_t at = base + t * kItems + u;
        if (at >= num_slots) continue;
        const int64_t place = items[t].hit[u] ? num_slots - 1 - hits_before : at - hits_before;
        if (place >= 0 && place < num_slots) s.victims[place] = items[t].slot[u];
        hits_before += items[t].hit[u];
      }
    });
    num_hits += found;
  }
  const int64_t num_evictable = num_slots - num_hits;

  // 3b. Scan the misses in selection order: miss r takes the r-th victim.
  int64_t num_misses = 0;
  for (int64_t base = 0; base < k; base += threads) {
    Reg<int> rank;
    Reg<bool> missing;
    block.phase([&](int t) {
      const int64_t j = base + t;
      const bool one = j < k && wanted(selection[j]) && s.first[out[j]] == j && s.slot[out[j]] < 0;
      missing[t] = one;
      rank[t] = one;
    });
    const int found = block.scan(rank);
    block.phase([&](int t) {
      const int64_t j = base + t, r = num_misses + rank[t];
      if (!missing[t] || r >= num_evictable) return;  // the second only if the state holds a position twice
#if SEEDED_BUG == 4  // youngest first
      const int32_t victim = s.victims[num_evictable - 1 - r];
#else
      const int32_t victim = s.victims[r];
#endif
      s.slot[out[j]] = victim;
      positions[victim] = selection[j];
      a.miss_slots[i * k + r] = victim;
      a.miss_positions[i * k + r] = selection[j];
    });
    num_misses += found;
  }
  if (num_misses > num_evictable) num_misses = num_evictable;

  // 4. New order, old to new: stale, misses, hits. 5. Publish.
  block.phase([&](int t) {
    for (int64_t e = t; e < num_slots; e += threads) {
      int64_t place = e < num_evictable ? e - num_misses : num_evictable + (num_slots - 1 - e);
#if SEEDED_BUG == 7  // misses in front of the stale slots
      if (e < num_evictable) place = e;
#else
      if (e < num_misses) place = num_evictable - num_misses + e;
#endif
      order[place] = s.victims[e];
    }
    for (int64_t j = t; j < k; j += threads) {
      const int32_t p = selection[j];
      int64_t slot = -1;
      if (p >= 0 && p == newest) slot = num_slots;
#if SEEDED_BUG == 2  // duplicates are lost
      if (wanted(p)) slot = s.first[out[j]] == j ? s.slot[out[j]] : -1;
#else
      if (wanted(p)) slot = s.slot[out[j]];
#endif
      out[j] = slot < 0 ? -1 : static_cast<int32_t>(row * (num_slots + 1) + slot);
    }
    if (t == 0) a.per_row[i] = num_misses;
  });
}

}  // namespace hisparse
