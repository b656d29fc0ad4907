// The CPU's serial path: what `match_row` computes for one request, without blocks and hashing.
//
// A table with one entry per position takes the place of the hash table, and the loops have next to no branches that
// depend on data. The conformance suite holds it bit-identical to the shared source.
#pragma once
#include <chrono>
#include <cstdint>
#include <cstring>

#include "buffer.h"
#include "match.h"

namespace hisparse {

// With HISPARSE_PHASES, seconds spent in each phase since the process began, for the benchmark.
enum Phase { kStage, kProbe, kPublish, kOrder, kFetch, kPhases };
#if defined(HISPARSE_PHASES)
inline double phase_seconds[kPhases];
class PhaseClock {
 public:
  void end_of(Phase phase) {
    const auto now = std::chrono::steady_clock::now();
    phase_seconds[phase] += std::chrono::duration<double>(now - began_).count();
    began_ = now;
  }

 private:
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};
#else
struct PhaseClock {
  void end_of(Phase) {}
};
#endif

constexpr int64_t kFastContext = 1 << 22;  // longer sequences take the shared source: the table would not fit a cache
constexpr int64_t kFastTopK = 65534;       // the table holds selection index + 1 in 16 bits

struct FastScratch {
  Buffer<uint16_t> table;  // by position: first selection index + 1; all zero between calls
  Buffer<int32_t> slot_of, evictable, hits;
};

// Returns false, and does nothing, for a request beyond the limits above.
inline bool match_row_fast(const MatchArgs& a, FastScratch& scratch, int64_t i) {
  const int64_t k = a.k, num_slots = a.num_slots, row = a.rows[i];
  const int32_t* const selection = a.selection + i * k;
  int32_t* const out = a.out + i * k;
  if (row < 0 || row >= a.num_rows) {
    std::memset(out, 0xff, k * sizeof(int32_t));
    a.per_row[i] = 0;
    return true;
  }
  const int32_t newest = a.seq_lens[i] - 1;
  const uint32_t limit = newest > 0 ? newest : 0;  // wanted positions are below it
  if (k > kFastTopK || limit > kFastContext) return false;
  int32_t* const positions = a.slot_positions + row * num_slots;
  int32_t* const order = a.lru_order + row * num_slots;
  uint16_t* const table = scratch.table.at_least(limit + 1, true);  // table[limit]: of all that is not wanted
  int32_t* const slot_of = scratch.slot_of.at_least(k + 1);         // by table value; [0] takes what is not selected
  int32_t* const evictable = scratch.evictable.at_least(num_slots);
  int32_t* const hits = scratch.hits.at_least(num_slots);
  const auto entry = [limit](int32_t p) { return static_cast<uint32_t>(p) < limit ? static_cast<uint32_t>(p) : limit; };

  PhaseClock clock;
  std::memset(slot_of, 0xff, (k + 1) * sizeof(int32_t));
  for (int64_t j = 0; j < k; ++j) {
    uint16_t& held = table[entry(selection[j])];
    held = held ? held : static_cast<uint16_t>(j + 1);
  }
  table[limit] = 0;
  clock.end_of(kStage);

  int64_t num_evictable = 0, num_hits = 0;
  for (int64_t at = 0; at < num_slots; ++at) {
    const int32_t slot = order[at];
    const uint16_t selected = table[entry(positions[slot])];
    slot_of[selected] = slot;
    evictable[num_evictable] = slot;
    hits[num_hits] = slot;
    num_evictable += selected == 0;
    num_hits += selected != 0;
  }
  slot_of[0] = -1;
  clock.end_of(kProbe);

  const int64_t base = row * (num_slots + 1);
  int32_t* const miss_slots = a.miss_slots + i * k;
  int32_t* const miss_positions = a.miss_positions + i * k;
  int64_t num_misses = 0;
  for (int64_t j = 0; j < k; ++j) {
    const int32_t p = selection[j];
    const uint16_t selected = table[entry(p)];
    int32_t slot = slot_of[selected];
    if (slot < 0 && selected != 0 && num_misses < num_evictable) {  // first of its duplicates: the others find a slot
      slot = slot_of[selected] = evictable[num_misses];
      positions[slot] = p;
      miss_slots[num_misses] = slot;
      miss_positions[num_misses] = p;
      ++num_misses;
    }
    slot = p == newest && p >= 0 ? static_cast<int32_t>(num_slots) : slot;
    out[j] = slot < 0 ? -1 : static_cast<int32_t>(base + slot);
  }
  for (int64_t j = 0; j < k; ++j) table[entry(selection[j])] = 0;
  a.per_row[i] = num_misses;
  clock.end_of(kPublish);

  const int64_t num_stale = num_evictable - num_misses;
  std::memcpy(order, evictable + num_misses, num_stale * sizeof(int32_t));
  std::memcpy(order + num_stale, evictable, num_misses * sizeof(int32_t));
  std::memcpy(order + num_evictable, hits, num_hits * sizeof(int32_t));
  clock.end_of(kOrder);
  return true;
}

// The start of a record that will be copied soon; the hardware prefetcher follows from there.
inline void prefetch_record(const char* record, int64_t bytes) {
  for (int64_t at = 0; at < bytes && at < 2048; at += 64) __builtin_prefetch(record + at);
}

}  // namespace hisparse
