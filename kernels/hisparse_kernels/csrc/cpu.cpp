// The CPU operations as functions of tensors. Shapes, dtypes and strides were checked by the Python wrappers.
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>

#include <algorithm>
#include <numeric>

#include "buffer.h"
#include "run_cpu.h"
#include "tensors.h"

namespace hisparse {
namespace cpu {

Run run_of(int64_t block_threads, int64_t workers) {
  return Run{static_cast<int>(block_threads), std::max(1, static_cast<int>(workers))};
}

bool is(const TensorView& t, DLDataTypeCode code, int bits, std::initializer_list<int64_t> shape) {
  const DLDataType dtype = t.dtype();
  if (dtype.code != code || dtype.bits != bits || dtype.lanes != 1 || t.device().device_type != kDLCPU) return false;
  if (t.ndim() != static_cast<int>(shape.size()) || !t.IsContiguous()) return false;
  return std::equal(shape.begin(), shape.end(), t.shape().begin());
}

bool is_int32(const TensorView& t, std::initializer_list<int64_t> shape) { return is(t, kDLInt, 32, shape); }
bool is_int64(const TensorView& t, std::initializer_list<int64_t> shape) { return is(t, kDLInt, 64, shape); }

// Whether match can run on these as they are; if not, the Python checks say why or make them so.
bool fit(const TensorView& selection, const TensorView& rows, const TensorView& seq_lens,
         const TensorView& slot_positions, const TensorView& lru_order) {
  if (selection.ndim() != 2 || slot_positions.ndim() != 2) return false;
  const int64_t n = selection.size(0), k = selection.size(1);
  const int64_t num_rows = slot_positions.size(0), num_slots = slot_positions.size(1);
  return k <= num_slots && is_int32(selection, {n, k}) && is_int64(rows, {n}) && is_int32(seq_lens, {n}) &&
         is_int32(slot_positions, {num_rows, num_slots}) && is_int32(lru_order, {num_rows, num_slots});
}

bool pools_fit(const TensorView& cache, const TensorView& host, const TensorView& page_table, int64_t page_size) {
  if (cache.ndim() != 3 || host.ndim() != 2 || page_table.ndim() != 2 || page_size < 1) return false;
  const DLDataType dtype = cache.dtype(), host_dtype = host.dtype();
  return dtype.code == host_dtype.code && dtype.bits == host_dtype.bits && host.size(1) == cache.size(2) &&
         host.IsContiguous() && host.device().device_type != kDLCUDA && cache.device().device_type == kDLCPU &&
         cache.IsContiguous() && is_int32(page_table, {cache.size(0), page_table.size(1)});
}

void check_rows_and_positions(const MatchArgs& a) {
  for (int64_t i = 0; i < a.n; ++i) {
    const int64_t row = a.rows[i];
    if (row < -1 || row >= a.num_rows)
      TVM_FFI_THROW(ValueError) << "rows[" << i << "] = " << row << " is outside [-1, " << a.num_rows << ")";
  }
  for (int64_t i = 0; i < a.n; ++i) {
    if (a.rows[i] < 0) continue;
    const int32_t* const selection = a.selection + i * a.k;
    const int32_t length = a.seq_lens[i];
    bool outside = false;
    for (int64_t j = 0; j < a.k; ++j) outside |= selection[j] < -1 || selection[j] >= length;
    for (int64_t j = 0; outside && j < a.k; ++j) {
      if (selection[j] < -1 || selection[j] >= length)
        TVM_FFI_THROW(ValueError) << "selection[" << i << ", " << j << "] = " << selection[j] << " is outside [-1, "
                                  << length << ")";
    }
  }
}

void check_skipped(int64_t skipped) {
  if (skipped) TVM_FFI_THROW(IndexError) << skipped << " of the misses lie outside the host pool or the cache";
}

int64_t match_and_fetch(TensorView selection, TensorView rows, TensorView seq_lens, TensorView slot_positions,
                        TensorView lru_order, TensorView out, TensorView plan_rows, TensorView plan_slots,
                        TensorView plan_positions, TensorView per_row, bool checked, const Pools& pools,
                        const Run& run) {
  static thread_local Buffer<int32_t> miss_slots, miss_positions;
  const int64_t n = selection.size(0), k = selection.size(1);
  const MatchArgs match = match_args(selection, rows, seq_lens, slot_positions, lru_order, out, per_row,
                                     miss_slots.at_least(n * k), miss_positions.at_least(n * k));
  if (checked) check_rows_and_positions(match);
  run_match(run, match);
  PlanView plan = plan_view(plan_rows, plan_slots, plan_positions);
  if (plan.rows == plan.slots) {  // one tensor for all three lists, which follow one another
    plan.capacity = plan.capacity == 0 ? 0 : std::accumulate(match.per_row, match.per_row + n, int64_t{0});
    plan.slots = plan.rows + plan.capacity;
    plan.positions = plan.slots + plan.capacity;
  }
  int64_t skipped = 0;
  const int64_t total = run_fetch(run, fetch_args(match, plan, pools), &skipped);
  check_skipped(skipped);
  return total;
}

int64_t match(TensorView selection, TensorView rows, TensorView seq_lens, TensorView slot_positions,
              TensorView lru_order, TensorView out, TensorView plan_rows, TensorView plan_slots,
              TensorView plan_positions, TensorView per_row, bool checked, int64_t block_threads, int64_t workers) {
  if (!fit(selection, rows, seq_lens, slot_positions, lru_order)) return -1;
  return match_and_fetch(selection, rows, seq_lens, slot_positions, lru_order, out, plan_rows, plan_slots,
                         plan_positions, per_row, checked, Pools{}, run_of(block_threads, workers));
}

int64_t resolve(TensorView selection, TensorView rows, TensorView seq_lens, TensorView slot_positions,
                TensorView lru_order, TensorView out, TensorView plan_rows, TensorView plan_slots,
                TensorView plan_positions, TensorView per_row, bool checked, TensorView cache, TensorView host,
                TensorView page_table, int64_t page_size, int64_t block_threads, int64_t workers) {
  if (!fit(selection, rows, seq_lens, slot_positions, lru_order)) return -1;
  if (!pools_fit(cache, host, page_table, page_size)) return -1;
  if (cache.size(0) != slot_positions.size(0) || cache.size(1) != slot_positions.size(1) + 1) return -1;
  return match_and_fetch(selection, rows, seq_lens, slot_positions, lru_order, out, plan_rows, plan_slots,
                         plan_positions, per_row, checked, pools_of(cache, host, page_table, page_size),
                         run_of(block_threads, workers));
}

bool replay(TensorView plan_rows, TensorView plan_slots, TensorView plan_positions, TensorView per_row,
            TensorView cache, TensorView host, TensorView page_table, int64_t page_size, int64_t block_threads,
            int64_t workers) {
  if (plan_rows.ndim() != 1 || per_row.ndim() != 1 || !pools_fit(cache, host, page_table, page_size)) return false;
  const int64_t capacity = plan_rows.size(0);
  if (!is_int64(plan_rows, {capacity}) || !is_int64(plan_slots, {capacity}) || !is_int64(plan_positions, {capacity}) ||
      !is_int64(per_row, {per_row.size(0)}))
    return false;
  check_skipped(run_replay(run_of(block_threads, workers), plan_view(plan_rows, plan_slots, plan_positions),
                           data<int64_t>(per_row), per_row.size(0), pools_of(cache, host, page_table, page_size)));
  return true;
}

bool same_elements(const TensorView& a, const TensorView& b) {
  return a.dtype().code == b.dtype().code && a.dtype().bits == b.dtype().bits;
}

bool append(TensorView records, TensorView rows, TensorView seq_lens, TensorView slot_positions, TensorView lru_order,
            TensorView cache, int64_t block_threads, int64_t workers) {
  if (rows.ndim() != 1 || cache.ndim() != 3 || slot_positions.ndim() != 2) return false;
  const int64_t n = rows.size(0), num_rows = cache.size(0), num_slots = cache.size(1) - 1, width = cache.size(2);
  const DLDataType dtype = cache.dtype();
  const auto code = static_cast<DLDataTypeCode>(dtype.code);
  if (!is_int64(rows, {n}) || !is_int32(seq_lens, {n}) || !is_int32(slot_positions, {num_rows, num_slots}) ||
      !is_int32(lru_order, {num_rows, num_slots}) || !is(records, code, dtype.bits, {n, width}) ||
      !is(cache, code, dtype.bits, {num_rows, num_slots + 1, width}))
    return false;
  run_append(run_of(block_threads, workers), append_args(records, rows, seq_lens, slot_positions, lru_order, cache),
             rows.size(0));
  return true;
}

void check_index(const int64_t* index, int64_t count, int64_t records, const char* name) {
  for (int64_t j = 0; j < count; ++j) {
    if (index[j] < -1 || index[j] >= records)
      TVM_FFI_THROW(IndexError) << name << "[" << j << "] = " << index[j] << " is outside [-1, " << records << ")";
  }
}

void write_through(TensorView cache, TensorView rows, TensorView host, TensorView host_index, int64_t block_threads,
                   int64_t workers) {
  const IndexedCopy copy = write_through_copy(cache, rows, host, host_index);
  check_index(copy.from_index, copy.count, cache.size(0), "rows");
  check_index(copy.to_index, copy.count, copy.to_records, "host_index");
  run_copy(run_of(block_threads, workers), copy);
}

bool stage(TensorView records, TensorView host, TensorView host_index, int64_t block_threads, int64_t workers) {
  if (host.ndim() != 2 || host_index.ndim() != 1) return false;
  const int64_t count = host_index.size(0), width = host.size(1);
  const DLDataType dtype = host.dtype();
  const auto code = static_cast<DLDataTypeCode>(dtype.code);
  if (!is_int64(host_index, {count}) || !is(records, code, dtype.bits, {count, width}) ||
      !is(host, code, dtype.bits, {host.size(0), width}))
    return false;
  const IndexedCopy copy = stage_copy(records, host, host_index);
  check_index(copy.to_index, copy.count, copy.to_records, "host_index");
  run_copy(run_of(block_threads, workers), copy);
  return true;
}

void gather(TensorView pool, TensorView slots, TensorView out, int64_t block_threads, int64_t workers) {
  const IndexedCopy copy = gather_copy(pool, slots, out);
  for (int64_t j = 0; j < copy.count; ++j) {
    if (copy.from_slot[j] >= copy.from_records)
      TVM_FFI_THROW(IndexError) << "slot " << copy.from_slot[j] << " is outside the pool of " << copy.from_records;
  }
  run_copy(run_of(block_threads, workers), copy);
}

bool attend(TensorView q, TensorView pool, TensorView slots, TensorView out, int64_t kv_heads, int64_t value_offset,
            double scale, int64_t workers) {
  if (q.ndim() != 3 || out.ndim() != 3 || slots.ndim() != 2 || pool.ndim() < 2 || kv_heads < 1) return false;
  const int64_t width = pool.size(-1);
  if (!q.IsContiguous() || !pool.IsContiguous() || q.device().device_type != kDLCPU ||
      pool.device().device_type != kDLCPU || !same_elements(q, pool) ||
      !is_int32(slots, {q.size(0), slots.size(1)}) || q.size(1) % kv_heads || kv_heads * q.size(2) > width ||
      value_offset < 0 || value_offset > width - kv_heads * out.size(2))
    return false;
  const AttendArgs a{q.data_ptr(), pool.data_ptr(), data<int32_t>(slots), out.data_ptr(), q.size(0), slots.size(1),
                     q.size(1), kv_heads, q.size(2), out.size(2), value_offset, width, records_in(pool),
                     static_cast<float>(scale)};
  const Run run = run_of(0, workers);
  const DLDataType dtype = q.dtype();
  const bool is_float = dtype.code == kDLFloat;
  if (is_float && dtype.bits == 32) {
    run_attend(run, a, Element::float32);
  } else if (is_float && dtype.bits == 16) {
    run_attend(run, a, Element::float16);
  } else if (dtype.code == kDLBfloat && dtype.bits == 16) {
    run_attend(run, a, Element::bfloat16);
  } else {
    TVM_FFI_THROW(ValueError) << "attend works on float32, float16 and bfloat16";
  }
  return true;
}

int64_t floor(TensorView selection, TensorView host, TensorView source, TensorView cache, TensorView target,
              int64_t workers) {
  const IndexedCopy copy{data<char>(cache), data<char>(host), data<int64_t>(target), data<int64_t>(source), nullptr,
                         records_in(cache), host.size(0),     source.size(0),        record_bytes(host),    1,
                         0};
  return run_floor(static_cast<int>(workers), data<int32_t>(selection), selection.numel(), copy);
}

double phase_seconds(int64_t phase) { return phase_time(static_cast<int>(phase)); }

}  // namespace cpu
}  // namespace hisparse

TVM_FFI_DLL_EXPORT_TYPED_FUNC(match, hisparse::cpu::match);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(resolve, hisparse::cpu::resolve);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(replay, hisparse::cpu::replay);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(append, hisparse::cpu::append);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(write_through, hisparse::cpu::write_through);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(stage, hisparse::cpu::stage);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(gather, hisparse::cpu::gather);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(attend, hisparse::cpu::attend);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(floor, hisparse::cpu::floor);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(phase_seconds, hisparse::cpu::phase_seconds);
