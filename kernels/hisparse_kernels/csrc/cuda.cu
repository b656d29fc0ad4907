// The CUDA operations as functions of tensors. Shapes, dtypes and strides were checked by the Python wrappers.
//
// Every launch goes to the stream it is given and depends on shapes alone, never on data, so that a CUDA graph can
// capture it. Match is one block per request; whatever moves records is a grid that fills the GPU, with records
// divided evenly over its warps.
#include <cuda_runtime.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>

#include "append.h"
#include "copy.h"
#include "match.h"
#include "tensors.h"

namespace hisparse {
namespace cuda {

constexpr int kCopyThreads = 256;
constexpr int kCopyBlocks = 4;  // per SM: 64 registers a thread
constexpr int kAppendThreads = 256;
constexpr int64_t kMaxTopK = 8192;
constexpr int64_t kMaxBatch = 16384;               // of a fetch, whose blocks hold one offset per request
constexpr int64_t kSharedLimit = 227 * 1024;       // dynamic and static shared memory of a block, sm_90 and sm_100
constexpr int64_t kVictimsInShared = 64 * 1024;    // a longer list of victims goes to global scratch
constexpr int64_t kScanBytes = (kWarp + 1) * sizeof(int32_t);

HS_HOST_DEVICE constexpr int64_t table_bytes(int64_t k) { return 3 * sizeof(int32_t) * int64_t{table_capacity(k)}; }
constexpr bool victims_in_shared(int64_t k, int64_t num_slots) {
  return num_slots * int64_t{sizeof(int32_t)} <= kVictimsInShared &&
         table_bytes(k) + num_slots * int64_t{sizeof(int32_t)} + kScanBytes <= kSharedLimit;
}
constexpr int64_t match_bytes(int64_t k, int64_t num_slots) {
  return table_bytes(k) + (victims_in_shared(k, num_slots) ? num_slots * int64_t{sizeof(int32_t)} : 0);
}
static_assert(match_bytes(kMaxTopK, 1 << 16) + kScanBytes <= kSharedLimit, "the largest selection must fit");
static_assert(match_bytes(2048, 4096) + kScanBytes <= kSharedLimit / 3, "three blocks of the usual size per SM");
static_assert(kMaxBatch * int64_t{sizeof(int32_t)} + kScanBytes <= kSharedLimit, "a fetch's offsets must fit");

__global__ void __launch_bounds__(kMaxThreads) match_kernel(MatchArgs a, int32_t capacity, int32_t* victims) {
  extern __shared__ int32_t dynamic[];
  __shared__ int32_t scan_space[kWarp + 1];
  const Block block{static_cast<int>(blockDim.x), scan_space};
  const MatchScratch scratch{dynamic, dynamic + capacity, dynamic + 2 * capacity,
                             victims ? victims + blockIdx.x * a.num_slots : dynamic + 3 * capacity, capacity};
  match_row(block, a, scratch, blockIdx.x);
}

template <class Unit>
__global__ void __launch_bounds__(kCopyThreads, kCopyBlocks) fetch_kernel(FetchArgs a) {
  extern __shared__ int32_t dynamic[];
  __shared__ int32_t scan_space[kWarp + 1];
  fetch<Unit>(Block{static_cast<int>(blockDim.x), scan_space}, blockIdx.x, gridDim.x, a, dynamic, nullptr);
}

template <class Unit>
__global__ void __launch_bounds__(kCopyThreads, kCopyBlocks)
    replay_kernel(PlanView plan, const int64_t* per_row, int64_t n, Pools pools) {
  extern __shared__ int32_t dynamic[];
  __shared__ int32_t scan_space[kWarp + 1];
  replay<Unit>(Block{static_cast<int>(blockDim.x), scan_space}, blockIdx.x, gridDim.x, plan, per_row, n, pools,
               dynamic, nullptr);
}

template <class Unit>
__global__ void __launch_bounds__(kAppendThreads) append_kernel(AppendArgs a) {
  append_row<Unit>(Block{static_cast<int>(blockDim.x), nullptr}, a, blockIdx.x);
}

template <class Unit>
__global__ void __launch_bounds__(kCopyThreads, kCopyBlocks) copy_kernel(IndexedCopy c) {
  copy_indexed<Unit>(Block{static_cast<int>(blockDim.x), nullptr}, blockIdx.x, gridDim.x, c);
}

void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) TVM_FFI_THROW(RuntimeError) << what << ": " << cudaGetErrorString(error);
}

cudaStream_t stream_of(int64_t stream) { return reinterpret_cast<cudaStream_t>(stream); }

// Blocks that fill the current GPU with kCopyThreads threads each; one for each record is enough.
int copy_blocks(int64_t most_records) {
  int device = 0, processors = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
  const int64_t warps = kCopyThreads / kWarp, enough = (most_records + warps - 1) / warps;
  const int64_t full = int64_t{processors} * kCopyBlocks;
  return static_cast<int>(enough < 1 ? 1 : enough < full ? enough : full);
}

template <class Kernel>
void allow_shared(Kernel kernel, int64_t bytes) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
        "dynamic shared memory");
}

uint64_t bits_of(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

// Calls f with a value of the widest unit that all addresses and the record size are multiples of.
template <class F>
void with_unit(uint64_t alignment_bits, F f) {
  if (alignment_bits % 16 == 0) return f(Unit16{});
  if (alignment_bits % 8 == 0) return f(uint64_t{});
  if (alignment_bits % 4 == 0) return f(uint32_t{});
  f(uint8_t{});
}

// Ints of scratch that match and resolve need: the misses of each request, and the victims of large caches.
int64_t scratch_ints(int64_t n, int64_t k, int64_t num_slots) {
  return 2 * n * k + (victims_in_shared(k, num_slots) ? 0 : n * num_slots);
}

void match_and_fetch(TensorView selection, TensorView rows, TensorView seq_lens, TensorView slot_positions,
                     TensorView lru_order, TensorView out, TensorView plan_rows, TensorView plan_slots,
                     TensorView plan_positions, TensorView per_row, const Pools& pools, TensorView scratch,
                     int64_t stream) {
  const int64_t n = selection.size(0), k = selection.size(1), num_slots = slot_positions.size(1);
  if (k > kMaxTopK) TVM_FFI_THROW(ValueError) << "k=" << k << " is above " << kMaxTopK << ", what a block can hold";
  if (n > kMaxBatch) TVM_FFI_THROW(ValueError) << "batch " << n << " is above " << kMaxBatch;
  if (n == 0) return;
  int32_t* const miss_slots = data<int32_t>(scratch);
  int32_t* const victims = victims_in_shared(k, num_slots) ? nullptr : miss_slots + 2 * n * k;
  const MatchArgs match = match_args(selection, rows, seq_lens, slot_positions, lru_order, out, per_row, miss_slots,
                                     miss_slots + n * k);
  const int64_t items = num_slots / kItems > k ? num_slots / kItems : k;
  const int threads = items >= 1024 ? 1024 : items >= 512 ? 512 : 256;
  const int64_t bytes = match_bytes(k, num_slots);
  allow_shared(match_kernel, bytes);
  match_kernel<<<n, threads, bytes, stream_of(stream)>>>(match, table_capacity(k), victims);
  check(cudaGetLastError(), "match");
  const FetchArgs fetch = fetch_args(match, plan_view(plan_rows, plan_slots, plan_positions), pools);
  if (fetch.plan.capacity == 0 && pools.cache == nullptr) return;
  with_unit(bits_of(pools.cache) | bits_of(pools.host) | pools.record_bytes, [&](auto unit) {
    allow_shared(fetch_kernel<decltype(unit)>, n * sizeof(int32_t));
    fetch_kernel<decltype(unit)>
        <<<copy_blocks(n * k), kCopyThreads, n * sizeof(int32_t), stream_of(stream)>>>(fetch);
  });
  check(cudaGetLastError(), "fetch");
}

void match(TensorView selection, TensorView rows, TensorView seq_lens, TensorView slot_positions,
           TensorView lru_order, TensorView out, TensorView plan_rows, TensorView plan_slots,
           TensorView plan_positions, TensorView per_row, TensorView scratch, int64_t stream) {
  match_and_fetch(selection, rows, seq_lens, slot_positions, lru_order, out, plan_rows, plan_slots, plan_positions,
                  per_row, Pools{}, scratch, stream);
}

void resolve(TensorView selection, TensorView rows, TensorView seq_lens, TensorView slot_positions,
             TensorView lru_order, TensorView out, TensorView plan_rows, TensorView plan_slots,
             TensorView plan_positions, TensorView per_row, TensorView cache, TensorView host, TensorView page_table,
             int64_t page_size, TensorView scratch, int64_t stream) {
  match_and_fetch(selection, rows, seq_lens, slot_positions, lru_order, out, plan_rows, plan_slots, plan_positions,
                  per_row, pools_of(cache, host, page_table, page_size), scratch, stream);
}

void replay(TensorView plan_rows, TensorView plan_slots, TensorView plan_positions, TensorView per_row,
            TensorView cache, TensorView host, TensorView page_table, int64_t page_size, int64_t stream) {
  const int64_t n = per_row.size(0);
  if (n > kMaxBatch) TVM_FFI_THROW(ValueError) << "batch " << n << " is above " << kMaxBatch;
  const PlanView plan = plan_view(plan_rows, plan_slots, plan_positions);
  if (n == 0 || plan.capacity == 0) return;
  const Pools pools = pools_of(cache, host, page_table, page_size);
  with_unit(bits_of(pools.cache) | bits_of(pools.host) | pools.record_bytes, [&](auto unit) {
    allow_shared(replay_kernel<decltype(unit)>, n * sizeof(int32_t));
    replay_kernel<decltype(unit)><<<copy_blocks(plan.capacity), kCopyThreads, n * sizeof(int32_t), stream_of(stream)>>>(
        plan, data<int64_t>(per_row), n, pools);
  });
  check(cudaGetLastError(), "replay");
}

void append(TensorView records, TensorView rows, TensorView seq_lens, TensorView slot_positions, TensorView lru_order,
            TensorView cache, int64_t stream) {
  const int64_t n = rows.size(0);
  if (n == 0) return;
  const AppendArgs a = append_args(records, rows, seq_lens, slot_positions, lru_order, cache);
  with_unit(bits_of(a.cache) | bits_of(a.records) | a.record_bytes, [&](auto unit) {
    append_kernel<decltype(unit)><<<n, kAppendThreads, 0, stream_of(stream)>>>(a);
  });
  check(cudaGetLastError(), "append");
}

void copy(const IndexedCopy& c, const char* what, int64_t stream) {
  if (c.count == 0) return;
  with_unit(bits_of(c.to) | bits_of(c.from) | c.record_bytes, [&](auto unit) {
    copy_kernel<decltype(unit)><<<copy_blocks(c.count), kCopyThreads, 0, stream_of(stream)>>>(c);
  });
  check(cudaGetLastError(), what);
}

void write_through(TensorView cache, TensorView rows, TensorView host, TensorView host_index, int64_t stream) {
  copy(write_through_copy(cache, rows, host, host_index), "write_through", stream);
}

void stage(TensorView records, TensorView host, TensorView host_index, int64_t stream) {
  copy(stage_copy(records, host, host_index), "stage", stream);
}

void load(TensorView host, TensorView host_index, TensorView out, int64_t stream) {
  copy(load_copy(host, host_index, out), "load", stream);
}

void gather(TensorView pool, TensorView slots, TensorView out, int64_t stream) {
  copy(gather_copy(pool, slots, out), "gather", stream);
}

}  // namespace cuda
}  // namespace hisparse

TVM_FFI_DLL_EXPORT_TYPED_FUNC(scratch_ints, hisparse::cuda::scratch_ints);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(match, hisparse::cuda::match);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(resolve, hisparse::cuda::resolve);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(replay, hisparse::cuda::replay);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(append, hisparse::cuda::append);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(write_through, hisparse::cuda::write_through);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(stage, hisparse::cuda::stage);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(load, hisparse::cuda::load);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(gather, hisparse::cuda::gather);
