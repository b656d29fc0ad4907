// The shared source on a few small random cases, as a program, for builds that tensors would get in the way of:
//   g++ -DHISPARSE_REVERSED                  threads run backwards: finds what only works in order
//   g++ -fsanitize=address,undefined         every buffer is exactly as long as it must be
//   g++ -DHISPARSE_THREADS -fsanitize=thread  real threads and barriers: finds races
// Exits 0 where state and output equal a model of the rules, 1 with the first difference.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include "append.h"
#include "copy.h"
#include "match.h"

using namespace hisparse;

namespace {

// Runs `body` for one block of `threads` threads.
void run_block(int threads, const std::function<void(const Block&)>& body) {
  std::vector<int32_t> scan_space(threads + 1);
#if defined(HISPARSE_THREADS)
  pthread_barrier_t barrier;
  pthread_barrier_init(&barrier, nullptr, threads);
  std::vector<std::thread> team;
  for (int t = 0; t < threads; ++t) team.emplace_back([&, t] { body(Block{threads, scan_space.data(), t, &barrier}); });
  for (auto& thread : team) thread.join();
  pthread_barrier_destroy(&barrier);
#else
  body(Block{threads, scan_space.data()});
#endif
}

[[noreturn]] void fail(const char* what, int64_t at) {
  std::printf("difference: %s, at %lld\n", what, static_cast<long long>(at));
  std::exit(1);
}

struct RowModel {  // the rules, in the plainest words
  std::vector<int32_t> slots, order;
  std::vector<int32_t> missed_slots, missed_positions;

  std::vector<int32_t> match(const std::vector<int32_t>& selection, int32_t seq_len) {
    const int32_t newest = seq_len - 1;
    std::map<int32_t, int32_t> where;  // wanted position -> slot, -1 until known
    for (int32_t p : selection)
      if (p >= 0 && p < newest) where[p] = -1;
    std::vector<int32_t> hits, evictable;
    for (int32_t s : order) {
      const auto found = where.find(slots[s]);
      if (found != where.end()) found->second = s;
      (found != where.end() ? hits : evictable).push_back(s);
    }
    missed_slots.clear();
    missed_positions.clear();
    for (int32_t p : selection) {
      if (p < 0 || p >= newest || where[p] >= 0) continue;
      where[p] = evictable[missed_slots.size()];
      slots[where[p]] = p;
      missed_slots.push_back(where[p]);
      missed_positions.push_back(p);
    }
    order.assign(evictable.begin() + missed_slots.size(), evictable.end());
    order.insert(order.end(), missed_slots.begin(), missed_slots.end());
    order.insert(order.end(), hits.begin(), hits.end());
    std::vector<int32_t> out;
    for (int32_t p : selection)
      out.push_back(p < 0 || p >= seq_len ? -1 : p == newest ? static_cast<int32_t>(slots.size()) : where[p]);
    return out;
  }
};

struct Case {
  int64_t n, k, num_slots, record;
  int32_t length;
  int threads, steps;
};

template <class Unit>
void run_case(const Case& c, uint32_t seed) {
  std::mt19937 random(seed);
  const auto below = [&](int64_t end) { return static_cast<int64_t>(random() % static_cast<uint64_t>(end)); };
  const int64_t num_rows = c.n + 1, page_size = 3, pages = (c.length + c.steps + page_size) / page_size;
  const int64_t records = num_rows * pages * page_size, slots = c.num_slots + 1;
  std::vector<int32_t> page_table(num_rows * pages);
  for (size_t i = 0; i < page_table.size(); ++i) page_table[i] = static_cast<int32_t>(page_table.size() - 1 - i);
  std::vector<char> host(records * c.record), cache(num_rows * slots * c.record), second(cache.size());
  for (char& byte : host) byte = static_cast<char>(random());
  std::vector<int32_t> positions(num_rows * c.num_slots, -1), order(num_rows * c.num_slots);
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i % c.num_slots);
  std::vector<RowModel> models(num_rows);
  for (auto& model : models) {
    model.slots.assign(c.num_slots, -1);
    model.order.assign(order.begin(), order.begin() + c.num_slots);
  }
  std::vector<int64_t> rows(c.n), per_row(c.n);
  for (int64_t i = 0; i < c.n; ++i) rows[i] = i == 1 ? -1 : i;  // the second of the batch is padding
  const int32_t capacity = table_capacity(c.k);
  for (int step = 0; step < c.steps; ++step) {
    std::vector<int32_t> seq_lens(c.n, c.length + step), selection(c.n * c.k), out(c.n * c.k);
    for (auto& p : selection) p = static_cast<int32_t>(below(c.length + step + 3)) - 2;  // some outside
    std::vector<int32_t> miss_slots(c.n * c.k), miss_positions(c.n * c.k);
    std::vector<int64_t> plan_rows(c.n * c.k), plan_slots(c.n * c.k), plan_positions(c.n * c.k);

    std::vector<char> newest(c.n * c.record, static_cast<char>(step));
    const AppendArgs append{newest.data(), rows.data(), seq_lens.data(), positions.data(), order.data(),
                            cache.data(),  c.num_slots, num_rows,        c.record};
    for (int64_t i = 0; i < c.n; ++i) {
      run_block(c.threads, [&](const Block& block) { append_row<Unit>(block, append, i); });
      const int64_t previous = seq_lens[i] - 2;
      if (rows[i] < 0) continue;
      RowModel& model = models[rows[i]];
      if (previous < 0 || previous >= c.num_slots) continue;
      const int32_t oldest = model.order.front();
      model.order.erase(model.order.begin());
      model.order.push_back(oldest);
      model.slots[oldest] = static_cast<int32_t>(previous);
    }

    const MatchArgs match{selection.data(),  rows.data(),    seq_lens.data(), positions.data(),
                          order.data(),      out.data(),     miss_slots.data(), miss_positions.data(),
                          per_row.data(),    c.n,            c.k,             c.num_slots,
                          num_rows};
    for (int64_t i = 0; i < c.n; ++i) {
      std::vector<int32_t> key(capacity), first(capacity), slot(capacity), victims(c.num_slots);
      const MatchScratch scratch{key.data(), first.data(), slot.data(), victims.data(), capacity};
      run_block(c.threads, [&](const Block& block) { match_row(block, match, scratch, i); });
    }
    const PlanView plan{plan_rows.data(), plan_slots.data(), plan_positions.data(), c.n * c.k};
    const Pools pools{cache.data(), host.data(), page_table.data(), c.record, num_rows, slots, records, pages,
                      page_size};
    Pools other = pools;
    other.cache = second.data();
    std::vector<int32_t> offsets(c.n);
    const FetchArgs fetch_args{rows.data(), per_row.data(), miss_slots.data(), miss_positions.data(), c.n, c.k, plan,
                               pools};
    for (int64_t b = 0; b < 2; ++b) {
      run_block(c.threads, [&](const Block& block) {
        fetch<Unit>(block, b, 2, fetch_args, offsets.data(), nullptr);
      });
    }
    for (int64_t b = 0; b < 3; ++b) {
      run_block(c.threads, [&](const Block& block) {
        replay<Unit>(block, b, 3, plan, per_row.data(), c.n, other, offsets.data(), nullptr);
      });
    }

    int64_t total = 0;
    for (int64_t i = 0; i < c.n; ++i) {
      if (rows[i] < 0) {
        if (per_row[i] != 0 || out[i * c.k] != -1) fail("padding", i);
        continue;
      }
      RowModel& model = models[rows[i]];
      const std::vector<int32_t> chosen(selection.begin() + i * c.k, selection.begin() + (i + 1) * c.k);
      const std::vector<int32_t> expected = model.match(chosen, seq_lens[i]);
      for (int64_t j = 0; j < c.k; ++j) {
        const int64_t want = expected[j] < 0 ? -1 : rows[i] * slots + expected[j];
        if (out[i * c.k + j] != want) fail("device slot", i * c.k + j);
      }
      if (per_row[i] != static_cast<int64_t>(model.missed_slots.size())) fail("misses", i);
      for (int64_t m = 0; m < per_row[i]; ++m, ++total) {
        if (plan_rows[total] != rows[i] || plan_slots[total] != model.missed_slots[m] ||
            plan_positions[total] != model.missed_positions[m])
          fail("plan", total);
        const char* const source = host.data() + host_record(pools, rows[i], model.missed_positions[m]) * c.record;
        const int64_t at = (rows[i] * slots + model.missed_slots[m]) * c.record;
        if (std::memcmp(cache.data() + at, source, c.record) != 0) fail("fetched record", total);
        if (std::memcmp(second.data() + at, source, c.record) != 0) fail("replayed record", total);
      }
      for (int64_t s = 0; s < c.num_slots; ++s) {
        if (positions[rows[i] * c.num_slots + s] != model.slots[s]) fail("position of slot", s);
        if (order[rows[i] * c.num_slots + s] != model.order[s]) fail("order", s);
      }
    }

    std::vector<int64_t> host_index(c.n);
    for (int64_t i = 0; i < c.n; ++i) host_index[i] = rows[i] < 0 ? -1 : host_record(pools, rows[i], seq_lens[i] - 1);
    const IndexedCopy through{host.data(), cache.data(), host_index.data(), rows.data(), nullptr, records,
                              num_rows * slots, c.n, c.record, slots, c.num_slots};
    run_block(c.threads, [&](const Block& block) { copy_indexed<Unit>(block, 0, 1, through); });
    for (int64_t i = 0; i < c.n; ++i) {
      if (rows[i] >= 0 && host[host_index[i] * c.record] != static_cast<char>(step)) fail("write-through", i);
    }
    std::vector<char> gathered(c.n * c.k * c.record);
    const IndexedCopy gather{gathered.data(), cache.data(), nullptr, nullptr, out.data(), c.n * c.k,
                             num_rows * slots, c.n * c.k, c.record, 1, 0};
    run_block(c.threads, [&](const Block& block) { copy_indexed<Unit>(block, 0, 1, gather); });
    for (int64_t j = 0; j < c.n * c.k; ++j) {
      const int64_t from = out[j] < 0 ? 0 : out[j];
      if (std::memcmp(&gathered[j * c.record], &cache[from * c.record], c.record) != 0) fail("gathered record", j);
    }
  }
}

}  // namespace

int main() {
#if defined(HISPARSE_THREADS)
  const int wide = 64, steps = 3;
#else
  const int wide = 256, steps = 30;
#endif
  run_case<uint8_t>({3, 5, 9, 7, 2, 32, steps}, 1);
  run_case<Unit16>({4, 60, 70, 48, 200, wide, steps}, 2);
  run_case<uint64_t>({2, 300, 700, 72, 3000, wide, steps}, 3);
  run_case<uint32_t>({2, 100, 100, 12, 60, 96, steps}, 4);
  std::puts("equal");
}
