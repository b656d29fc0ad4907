// Put one request's newest record into its reserved slot: HiSparse section 3.3, phase 4.
//
// While the sequence fits the cache, the record that held the reserved slot moves to the oldest slot (empty then),
// which becomes the most recent.
#pragma once
#include "copy.h"

namespace hisparse {

struct AppendArgs {
  const char* records;      // [n, record]
  const int64_t* rows;      // [n]; outside [0, num_rows) is padding
  const int32_t* seq_lens;  // [n], the new record included
  int32_t* slot_positions;  // [num_rows, B]
  int32_t* lru_order;       // [num_rows, B]
  char* cache;              // [num_rows, B + 1, record]
  int64_t num_slots, num_rows, record_bytes;
};

template <class Unit>
HS_INLINE void append_row(const Block& block, const AppendArgs& a, int64_t i) {
  const int64_t row = a.rows[i], num_slots = a.num_slots;
  if (row < 0 || row >= a.num_rows) return;
  int32_t* const order = a.lru_order + row * num_slots;
  char* const cache = a.cache + row * (num_slots + 1) * a.record_bytes;
  char* const reserved = cache + num_slots * a.record_bytes;
  const int64_t previous = static_cast<int64_t>(a.seq_lens[i]) - 2;
  if (previous >= 0 && previous < num_slots) {
    const int32_t oldest = order[0];
    block.phase([&](int t) {
      if (t < kWarp) copy_record<Unit, false>(t, cache + oldest * a.record_bytes, reserved, a.record_bytes);
      if (t == 0) a.slot_positions[row * num_slots + oldest] = static_cast<int32_t>(previous);
    });
    for (int64_t base = 0; base + 1 < num_slots; base += block.threads) {
      Reg<int32_t> next;
      block.phase([&](int t) { next[t] = base + t + 1 < num_slots ? order[base + t + 1] : oldest; });
      block.phase([&](int t) {
#if SEEDED_BUG != 12  // the order stays as it was
        if (base + t + 1 < num_slots) order[base + t] = next[t];
#endif
      });
    }
    block.phase([&](int t) {
#if SEEDED_BUG != 12
      if (t == 0) order[num_slots - 1] = oldest;
#endif
    });
  }
  block.phase([&](int t) {
    if (t < kWarp) copy_record<Unit>(t, reserved, a.records + i * a.record_bytes, a.record_bytes);
  });
}

}  // namespace hisparse
