// Everything that moves records: fetch, replay, write-through, staging, gather.
//
// All are one balanced loop: records 0..count are divided evenly over the workers (warps on a GPU, threads on a
// CPU), however they are spread over requests (AVSG section 3.4). Addresses outside the buffers are skipped, and
// counted where somebody can be told.
#pragma once
#include "block.h"

namespace hisparse {

struct alignas(16) Unit16 {
  uint64_t low, high;
};

// Non-coherent load: the source, often pinned host memory, is not written while the kernel runs.
template <class Unit, bool kReadOnly>
HS_INLINE Unit load(const Unit* from) {
#if defined(__CUDA_ARCH__)
  if constexpr (!kReadOnly) {
    return *from;
  } else if constexpr (sizeof(Unit) == 16) {
    Unit unit;
    asm volatile("ld.global.nc.L1::no_allocate.v2.b64 {%0, %1}, [%2];"
                 : "=l"(unit.low), "=l"(unit.high)
                 : "l"(from));
    return unit;
  } else {
    return __ldg(from);
  }
#else
  return *from;
#endif
}

// One warp copies one record; up to kAhead loads of a lane are in flight before its first store. kReadOnly: nothing in
// this kernel writes the source.
template <class Unit, bool kReadOnly = true>
HS_INLINE void copy_record(int lane, char* to, const char* from, int64_t bytes) {
  constexpr int kAhead = 4;
#if SEEDED_BUG == 11  // the tail of a record is lost
  const int64_t units = bytes / static_cast<int64_t>(sizeof(Unit)) - 1;
#else
  const int64_t units = bytes / static_cast<int64_t>(sizeof(Unit));
#endif
  Unit* const to_units = reinterpret_cast<Unit*>(to);
  const Unit* const from_units = reinterpret_cast<const Unit*>(from);
  for (int64_t u = lane; u < units; u += kAhead * kWarp) {
    Unit held[kAhead];
    HS_UNROLL
    for (int x = 0; x < kAhead; ++x) {
      if (u + x * kWarp < units) held[x] = load<Unit, kReadOnly>(from_units + u + x * kWarp);
    }
    HS_UNROLL
    for (int x = 0; x < kAhead; ++x) {
      if (u + x * kWarp < units) to_units[u + x * kWarp] = held[x];
    }
  }
}

struct Share {
  int64_t begin, end;
};

// Worker w's part of count items.
HS_INLINE Share share_of(int64_t count, int64_t worker, int64_t workers) {
  Share share{count * worker / workers, count * (worker + 1) / workers};
#if SEEDED_BUG == 10  // the last item is nobody's
  if (worker == workers - 1 && share.end > share.begin) --share.end;
#endif
  return share;
}

// visit(j, lane) for every j of count, one warp each, over `blocks` blocks.
template <class Visit>
HS_INLINE void for_each_record(const Block& block, int64_t block_index, int64_t blocks, int64_t count, Visit visit) {
  const int warps = block.threads / kWarp;
  block.phase([&](int t) {
    const Share share = share_of(count, block_index * warps + t / kWarp, blocks * warps);
    for (int64_t j = share.begin; j < share.end; ++j) visit(j, t % kWarp);
  });
}

struct Pools {
  char* cache;                // [num_rows, slots, record]; slots = B + 1
  const char* host;           // [host_records, record]
  const int32_t* page_table;  // [num_rows, pages]
  int64_t record_bytes, num_rows, slots, host_records, pages, page_size;
};

struct PlanView {  // recorded misses, the first `capacity` of them
  int64_t *rows, *slots, *positions;
  int64_t capacity;
};

// Host record of a row's position, -1 where there is none.
HS_INLINE int64_t host_record(const Pools& p, int64_t row, int64_t position) {
  if (row < 0 || row >= p.num_rows || position < 0 || position / p.page_size >= p.pages) return -1;
  const int64_t page = p.page_table[row * p.pages + position / p.page_size];
  const int64_t record = page * p.page_size + position % p.page_size;
  return record >= 0 && record < p.host_records ? record : -1;
}

template <class Unit>
HS_INLINE bool fetch_record(const Pools& p, int lane, int64_t row, int64_t slot, int64_t position) {
  const int64_t record = host_record(p, row, position);
  if (record < 0 || slot < 0 || slot >= p.slots) return false;
  copy_record<Unit>(lane, p.cache + (row * p.slots + slot) * p.record_bytes, p.host + record * p.record_bytes,
                    p.record_bytes);
  return true;
}

// offsets[i] = misses of the requests before i, for i in 0..n; returns all of them.
HS_INLINE int64_t scan_counts(const Block& block, const int64_t* per_row, int64_t n, int32_t* offsets) {
  int64_t total = 0;
  for (int64_t base = 0; base < n; base += block.threads) {
    Reg<int> before;
    block.phase([&](int t) { before[t] = base + t < n ? static_cast<int>(per_row[base + t]) : 0; });
    const int found = block.scan(before);
    block.phase([&](int t) {
      if (base + t < n) offsets[base + t] = static_cast<int32_t>(total + before[t]);
    });
    total += found;
  }
  return total;
}

// Last i with offsets[i] <= j: the request whose miss j is.
HS_INLINE int64_t request_of(const int32_t* offsets, int64_t n, int64_t j) {
  int64_t low = 0, high = n;
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (offsets[middle] <= j ? low : high) = middle;
  }
  return low;
}

struct FetchArgs {
  const int64_t* rows;            // [n]
  const int64_t* per_row;         // [n]
  const int32_t* miss_slots;      // [n, k]
  const int32_t* miss_positions;  // [n, k]
  int64_t n, k;
  PlanView plan;  // capacity 0: not recorded
  Pools pools;    // cache nullptr: no bytes moved
};

// Copy what `match_row` of all requests found missing, and record it. offsets: n ints of block-shared scratch.
template <class Unit>
HS_INLINE void fetch(const Block& block, int64_t block_index, int64_t blocks, const FetchArgs& a, int32_t* offsets,
                     int64_t* skipped) {
  const int64_t total = scan_counts(block, a.per_row, a.n, offsets);
  for_each_record(block, block_index, blocks, total, [&](int64_t j, int lane) {
    const int64_t i = request_of(offsets, a.n, j), at = i * a.k + (j - offsets[i]);
    const int64_t row = a.rows[i], slot = a.miss_slots[at], position = a.miss_positions[at];
    if (lane == 0 && j < a.plan.capacity) {
      a.plan.rows[j] = row;
      a.plan.slots[j] = slot;
      a.plan.positions[j] = position;
    }
    if (a.pools.cache == nullptr) return;
    if (!fetch_record<Unit>(a.pools, lane, row, slot, position) && lane == 0 && skipped) ++*skipped;
  });
}

// Make a plan's moves in another layer's cache (section 3.5). offsets: n ints of block-shared scratch.
template <class Unit>
HS_INLINE void replay(const Block& block, int64_t block_index, int64_t blocks, const PlanView& plan,
                      const int64_t* per_row, int64_t n, const Pools& pools, int32_t* offsets, int64_t* skipped) {
  int64_t total = scan_counts(block, per_row, n, offsets);
  if (total > plan.capacity) total = plan.capacity;
  for_each_record(block, block_index, blocks, total, [&](int64_t j, int lane) {
    const bool copied = fetch_record<Unit>(pools, lane, plan.rows[j], plan.slots[j], plan.positions[j]);
    if (!copied && lane == 0 && skipped) ++*skipped;
  });
}

// A copy of `count` records between two pools, by index lists. An index outside its pool skips the record.
struct IndexedCopy {
  char* to;
  const char* from;
  const int64_t* to_index;    // nullptr: record j
  const int64_t* from_index;  // nullptr: record j, or from_slot
  const int32_t* from_slot;   // gather: below zero reads record 0
  int64_t to_records, from_records, count, record_bytes;
  int64_t from_stride, from_offset;  // from_index i reads record i * from_stride + from_offset

  HS_INLINE int64_t target(int64_t j) const {
    const int64_t at = to_index ? to_index[j] : j;
    return at < to_records ? at : -1;
  }
  HS_INLINE int64_t source(int64_t j) const {
    if (from_slot) return from_slot[j] < 0 ? 0 : from_slot[j] < from_records ? from_slot[j] : -1;
    if (!from_index) return j;
#if SEEDED_BUG == 13  // the oldest slot instead of the reserved one
    const int64_t at = from_index[j] * from_stride;
#else
    const int64_t at = from_index[j] * from_stride + from_offset;
#endif
    return from_index[j] >= 0 && at < from_records ? at : -1;
  }
};

template <class Unit>
HS_INLINE void copy_indexed(const Block& block, int64_t block_index, int64_t blocks, const IndexedCopy& c) {
  for_each_record(block, block_index, blocks, c.count, [&](int64_t j, int lane) {
    const int64_t to = c.target(j), from = c.source(j);
    if (to < 0 || from < 0) return;
    copy_record<Unit>(lane, c.to + to * c.record_bytes, c.from + from * c.record_bytes, c.record_bytes);
  });
}

}  // namespace hisparse
