// From checked tensors to the arguments of the operations; the same for CPU and CUDA.
#pragma once
#include <tvm/ffi/container/tensor.h>

#include "append.h"
#include "copy.h"
#include "match.h"

namespace hisparse {

using tvm::ffi::TensorView;

template <class T>
T* data(const TensorView& tensor) {
  return static_cast<T*>(tensor.data_ptr());
}

inline int64_t item_bytes(const TensorView& tensor) { return (tensor.dtype().bits * tensor.dtype().lanes + 7) / 8; }
inline int64_t record_bytes(const TensorView& pool) { return pool.size(-1) * item_bytes(pool); }
inline int64_t records_in(const TensorView& pool) {
  int64_t records = 1;
  for (int d = 0; d + 1 < pool.ndim(); ++d) records *= pool.size(d);
  return records;
}

inline MatchArgs match_args(const TensorView& selection, const TensorView& rows, const TensorView& seq_lens,
                            const TensorView& slot_positions, const TensorView& lru_order, const TensorView& out,
                            const TensorView& per_row, int32_t* miss_slots, int32_t* miss_positions) {
  return MatchArgs{data<int32_t>(selection),      data<int64_t>(rows),      data<int32_t>(seq_lens),
                   data<int32_t>(slot_positions), data<int32_t>(lru_order), data<int32_t>(out),
                   miss_slots,                    miss_positions,           data<int64_t>(per_row),
                   selection.size(0),             selection.size(1),        slot_positions.size(1),
                   slot_positions.size(0)};
}

inline PlanView plan_view(const TensorView& rows, const TensorView& slots, const TensorView& positions) {
  return PlanView{data<int64_t>(rows), data<int64_t>(slots), data<int64_t>(positions), rows.size(0)};
}

inline Pools pools_of(const TensorView& cache, const TensorView& host, const TensorView& page_table,
                      int64_t page_size) {
  return Pools{data<char>(cache), data<char>(host), data<int32_t>(page_table), record_bytes(cache), cache.size(0),
               cache.size(1),     host.size(0),     page_table.size(1),        page_size};
}

inline FetchArgs fetch_args(const MatchArgs& m, const PlanView& plan, const Pools& pools) {
  return FetchArgs{m.rows, m.per_row, m.miss_slots, m.miss_positions, m.n, m.k, plan, pools};
}

inline AppendArgs append_args(const TensorView& records, const TensorView& rows, const TensorView& seq_lens,
                              const TensorView& slot_positions, const TensorView& lru_order, const TensorView& cache) {
  return AppendArgs{data<char>(records),   data<int64_t>(rows),    data<int32_t>(seq_lens),
                    data<int32_t>(slot_positions), data<int32_t>(lru_order), data<char>(cache),
                    slot_positions.size(1), slot_positions.size(0), record_bytes(cache)};
}

inline IndexedCopy write_through_copy(const TensorView& cache, const TensorView& rows, const TensorView& host,
                                      const TensorView& host_index) {
  return IndexedCopy{data<char>(host), data<char>(cache), data<int64_t>(host_index), data<int64_t>(rows), nullptr,
                     host.size(0),     records_in(cache), rows.size(0),              record_bytes(cache),
                     cache.size(1),    cache.size(1) - 1};
}

inline IndexedCopy stage_copy(const TensorView& records, const TensorView& host, const TensorView& host_index) {
  return IndexedCopy{data<char>(host), data<char>(records), data<int64_t>(host_index), nullptr, nullptr, host.size(0),
                     records.size(0),  records.size(0),     record_bytes(host),        1,       0};
}

inline IndexedCopy load_copy(const TensorView& host, const TensorView& host_index, const TensorView& out) {
  return IndexedCopy{data<char>(out), data<char>(host), nullptr, data<int64_t>(host_index), nullptr, out.size(0),
                     host.size(0),    out.size(0),      record_bytes(host), 1, 0};
}

inline IndexedCopy gather_copy(const TensorView& pool, const TensorView& slots, const TensorView& out) {
  const int64_t count = slots.size(0) * slots.size(1);
  return IndexedCopy{data<char>(out), data<char>(pool), nullptr, nullptr, data<int32_t>(slots), count,
                     records_in(pool), count,           record_bytes(pool), 1, 0};
}

}  // namespace hisparse
