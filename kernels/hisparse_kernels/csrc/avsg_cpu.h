// Runs avsg_row on a CPU, OpenMP over requests.
#pragma once
#include "avsg.h"
#include "buffer.h"

namespace hisparse {

constexpr int kAvsgThreads = 256;

inline void run_avsg_row(const AvsgArgs& a, int64_t i, int block_threads) {
  static thread_local Buffer<int32_t> dead, bucket, claim;
  const AvsgScratch scratch{dead.at_least(a.match.num_slots), bucket.at_least(a.match.k),
                            claim.at_least(size_t{1} << a.bits)};
  avsg_row(Block{block_threads ? block_threads : kAvsgThreads, nullptr}, a, scratch, i);
}

inline void run_avsg(const AvsgArgs& a, int block_threads, int workers) {
#pragma omp parallel for schedule(dynamic) num_threads(workers) if (workers > 1 && a.match.n > 1)
  for (int64_t i = 0; i < a.match.n; ++i) run_avsg_row(a, i, block_threads);
}

}  // namespace hisparse
