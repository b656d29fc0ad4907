// Runs the operations on a CPU: OpenMP over requests for what is per request, over records for what moves them.
#include "run_cpu.h"

#include <algorithm>

#include "fast.h"

namespace hisparse {
namespace {

constexpr int64_t kParallelBytes = 1 << 17;  // less than this is copied sooner than a second thread wakes up
constexpr int64_t kParallelSlots = 1 << 14;
constexpr int kFallbackThreads = 256;

Block block_of(int threads) { return Block{threads, nullptr}; }

// Calls f with a value of the widest unit that all addresses and the record size are multiples of.
template <class F>
void with_unit(uint64_t alignment_bits, F f) {
  if (alignment_bits % 16 == 0) return f(Unit16{});
  if (alignment_bits % 8 == 0) return f(uint64_t{});
  if (alignment_bits % 4 == 0) return f(uint32_t{});
  f(uint8_t{});
}

uint64_t bits_of(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

struct MatchBuffers {
  Buffer<int32_t> key, first, slot, victims;
};

void match_row_shared(const MatchArgs& a, MatchBuffers& buffers, int64_t i, int threads) {
  const int32_t capacity = table_capacity(a.k);
  const MatchScratch scratch{buffers.key.at_least(capacity, true), buffers.first.at_least(capacity, true),
                             buffers.slot.at_least(capacity, true), buffers.victims.at_least(a.num_slots, true),
                             capacity};
  match_row(block_of(threads), a, scratch, i);
}

}  // namespace

void run_match(const Run& run, const MatchArgs& a) {
  const auto one = [&](int64_t i) {
    static thread_local FastScratch fast;
    static thread_local MatchBuffers shared;
    if (run.block_threads == 0 && match_row_fast(a, fast, i)) return;
    match_row_shared(a, shared, i, run.block_threads ? run.block_threads : kFallbackThreads);
  };
  const bool parallel = run.workers > 1 && a.n > 1 && a.n * (a.num_slots + a.k) >= kParallelSlots;
  if (!parallel) {
    for (int64_t i = 0; i < a.n; ++i) one(i);
    return;
  }
#pragma omp parallel for schedule(dynamic) num_threads(run.workers)
  for (int64_t i = 0; i < a.n; ++i) one(i);
}

namespace {

// work(worker, workers) on every worker if `bytes` is worth it, else on one; returns the sum of what it returns.
template <class Work>
int64_t on_workers(const Run& run, int64_t bytes, Work work) {
  const int workers = bytes >= kParallelBytes ? run.workers : 1;
  if (workers == 1) return work(0, 1);
  int64_t sum = 0;
#pragma omp parallel for schedule(static, 1) num_threads(workers) reduction(+ : sum)
  for (int w = 0; w < workers; ++w) sum += work(w, workers);
  return sum;
}

// One move of a fetch on the serial path: plain memcpy, with later records on their way from memory.
class SerialFetch {
 public:
  explicit SerialFetch(const Pools& pools) : p_(pools) {}
  void ahead(int64_t row, int64_t position) const {
    const int64_t record = host_record(p_, row, position);
    if (record >= 0) prefetch_record(p_.host + record * p_.record_bytes, p_.record_bytes);
  }
  bool operator()(int64_t row, int64_t slot, int64_t position) const {
    const int64_t record = host_record(p_, row, position);
    if (record < 0 || slot < 0 || slot >= p_.slots) return false;
    std::memcpy(p_.cache + (row * p_.slots + slot) * p_.record_bytes, p_.host + record * p_.record_bytes,
                p_.record_bytes);
    return true;
  }

 private:
  const Pools& p_;
};

constexpr int kAheadRecords = 8;

int64_t fetch_share(const FetchArgs& a, const int32_t* offsets, int64_t total, Share share) {
  const SerialFetch move(a.pools);
  const bool moves = a.pools.cache != nullptr;
  int64_t skipped = 0, i = request_of(offsets, a.n, share.begin);
  for (int64_t j = share.begin; j < share.end; ++j) {
    while (i + 1 < a.n && offsets[i + 1] <= j) ++i;
    const int64_t at = i * a.k + (j - offsets[i]);
    const int64_t row = a.rows[i], slot = a.miss_slots[at], position = a.miss_positions[at];
    if (j < a.plan.capacity) {
      a.plan.rows[j] = row;
      a.plan.slots[j] = slot;
      a.plan.positions[j] = position;
    }
    if (!moves) continue;
    if (j - offsets[i] + kAheadRecords < a.per_row[i]) move.ahead(row, a.miss_positions[at + kAheadRecords]);
    skipped += !move(row, slot, position);
  }
  return skipped;
}

}  // namespace

// Returns the number of misses; *skipped: how many lie outside the host pool.
int64_t run_fetch(const Run& run, const FetchArgs& a, int64_t* skipped) {
  static thread_local Buffer<int32_t> buffer;
  int32_t* const offsets = buffer.at_least(a.n + 1);
  int64_t total = 0;
  for (int64_t i = 0; i < a.n; ++i) {
    offsets[i] = static_cast<int32_t>(total);
    total += a.per_row[i];
  }
  const int64_t bytes = a.pools.cache ? total * a.pools.record_bytes : total * 24;
  PhaseClock clock;
  if (run.block_threads == 0) {
    *skipped = total == 0 ? 0 : on_workers(run, bytes, [&](int64_t w, int64_t workers) {
      return fetch_share(a, offsets, total, share_of(total, w, workers));
    });
  } else {
    const Pools& p = a.pools;
    with_unit(bits_of(p.cache) | bits_of(p.host) | p.record_bytes, [&](auto unit) {
      *skipped = on_workers(run, bytes, [&](int64_t w, int64_t workers) {
        static thread_local Buffer<int32_t> own;
        int64_t missed = 0;
        fetch<decltype(unit)>(block_of(run.block_threads), w, workers, a, own.at_least(a.n + 1), &missed);
        return missed;
      });
    });
  }
  clock.end_of(kFetch);
  return total;
}

int64_t run_replay(const Run& run, const PlanView& plan, const int64_t* per_row, int64_t n, const Pools& p) {
  int64_t total = 0;
  for (int64_t i = 0; i < n; ++i) total += per_row[i];
  total = std::min(total, plan.capacity);
  const int64_t bytes = total * p.record_bytes;
  if (run.block_threads == 0) {
    return on_workers(run, bytes, [&](int64_t w, int64_t workers) {
      const SerialFetch move(p);
      const Share share = share_of(total, w, workers);
      int64_t skipped = 0;
      for (int64_t j = share.begin; j < share.end; ++j) {
        const int64_t next = j + kAheadRecords;
        if (next < share.end) move.ahead(plan.rows[next], plan.positions[next]);
        skipped += !move(plan.rows[j], plan.slots[j], plan.positions[j]);
      }
      return skipped;
    });
  }
  int64_t skipped = 0;
  with_unit(bits_of(p.cache) | bits_of(p.host) | p.record_bytes, [&](auto unit) {
    skipped = on_workers(run, bytes, [&](int64_t w, int64_t workers) {
      static thread_local Buffer<int32_t> own;
      int64_t missed = 0;
      replay<decltype(unit)>(block_of(run.block_threads), w, workers, plan, per_row, n, p, own.at_least(n + 1),
                             &missed);
      return missed;
    });
  });
  return skipped;
}

void run_append(const Run& run, const AppendArgs& a, int64_t n) {
  const auto serial = [&](int64_t i) {
    const int64_t row = a.rows[i], num_slots = a.num_slots;
    if (row < 0 || row >= a.num_rows) return;
    int32_t* const order = a.lru_order + row * num_slots;
    char* const cache = a.cache + row * (num_slots + 1) * a.record_bytes;
    char* const reserved = cache + num_slots * a.record_bytes;
    const int64_t previous = static_cast<int64_t>(a.seq_lens[i]) - 2;
    if (previous >= 0 && previous < num_slots) {
      const int32_t oldest = order[0];
      std::memcpy(cache + oldest * a.record_bytes, reserved, a.record_bytes);
      a.slot_positions[row * num_slots + oldest] = static_cast<int32_t>(previous);
      std::memmove(order, order + 1, (num_slots - 1) * sizeof(int32_t));
      order[num_slots - 1] = oldest;
    }
    std::memcpy(reserved, a.records + i * a.record_bytes, a.record_bytes);
  };
  with_unit(bits_of(a.cache) | bits_of(a.records) | a.record_bytes, [&](auto unit) {
    on_workers(run, n * (2 * a.record_bytes + a.num_slots * 4), [&](int64_t w, int64_t workers) {
      const Share share = share_of(n, w, workers);
      for (int64_t i = share.begin; i < share.end; ++i) {
        if (run.block_threads == 0) {
          serial(i);
        } else {
          append_row<decltype(unit)>(block_of(run.block_threads), a, i);
        }
      }
      return int64_t{0};
    });
  });
}

void run_copy(const Run& run, const IndexedCopy& c) {
  with_unit(bits_of(c.to) | bits_of(c.from) | c.record_bytes, [&](auto unit) {
    on_workers(run, c.count * c.record_bytes, [&](int64_t w, int64_t workers) {
      if (run.block_threads != 0) {
        copy_indexed<decltype(unit)>(block_of(run.block_threads), w, workers, c);
        return int64_t{0};
      }
      const Share share = share_of(c.count, w, workers);
      for (int64_t j = share.begin; j < share.end; ++j) {
        const int64_t to = c.target(j), from = c.source(j);
        if (to < 0 || from < 0) continue;
        std::memcpy(c.to + to * c.record_bytes, c.from + from * c.record_bytes, c.record_bytes);
      }
      return int64_t{0};
    });
  });
}

namespace {

template <class T>
void attend(const Run& run, const AttendArgs& a) {
  const int64_t tasks = a.n * a.kv_heads;
#pragma omp parallel for schedule(dynamic) num_threads(run.workers) if (tasks > 1 && run.workers > 1)
  for (int64_t task = 0; task < tasks; ++task) {
    static thread_local AttendScratch scratch;
    attend_head<T>(a, scratch, task / a.kv_heads, task % a.kv_heads);
  }
}

}  // namespace

void run_attend(const Run& run, const AttendArgs& a, Element element) {
  if (element == Element::float32) attend<float>(run, a);
  if (element == Element::float16) attend<_Float16>(run, a);
  if (element == Element::bfloat16) attend<BFloat16>(run, a);
}

int64_t run_floor(int workers, const int32_t* selection, int64_t selected, const IndexedCopy& c) {
  int64_t sum = 0;
  for (int64_t j = 0; j < selected; ++j) sum += selection[j];
  return sum + on_workers(Run{0, workers}, c.count * c.record_bytes, [&](int64_t w, int64_t of) {
    const Share share = share_of(c.count, w, of);
    for (int64_t j = share.begin; j < share.end; ++j) {
      std::memcpy(c.to + c.to_index[j] * c.record_bytes, c.from + c.from_index[j] * c.record_bytes, c.record_bytes);
    }
    return int64_t{0};
  });
}

double phase_time(int phase) {
#if defined(HISPARSE_PHASES)
  return phase >= 0 && phase < kPhases ? phase_seconds[phase] : 0;
#else
  return 0 * phase;
#endif
}

}  // namespace hisparse
