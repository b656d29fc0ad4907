// AVSG's match on a GPU: one block per request, its scratch in global memory.
#include <cuda_runtime.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>

#include "avsg_tensors.h"

namespace hisparse {
namespace cuda {

constexpr int kAvsgThreads = 1024;

__global__ void __launch_bounds__(kAvsgThreads) avsg_kernel(AvsgArgs a, int32_t* scratch) {
  __shared__ int32_t scan_space[kWarp + 1];
  const int64_t ints = a.match.num_slots + a.match.k + (int64_t{1} << a.bits);
  int32_t* const own = scratch + blockIdx.x * ints;
  avsg_row(Block{static_cast<int>(blockDim.x), scan_space}, a,
           AvsgScratch{own, own + a.match.num_slots, own + a.match.num_slots + a.match.k}, blockIdx.x);
}

// scratch: int32 [n, B + k + buckets].
void avsg_match(TensorView selection, TensorView rows, TensorView seq_lens, TensorView slot_positions, TensorView life,
                TensorView table, TensorView out, TensorView miss_slots, TensorView miss_positions, TensorView per_row,
                int64_t bits, int64_t probes, int64_t full, bool decay, TensorView scratch, int64_t stream) {
  if (selection.size(0) == 0) return;
  const AvsgArgs args = avsg_args(selection, rows, seq_lens, slot_positions, life, table, out, miss_slots,
                                  miss_positions, per_row, bits, probes, full, decay);
  avsg_kernel<<<selection.size(0), kAvsgThreads, 0, reinterpret_cast<cudaStream_t>(stream)>>>(args,
                                                                                             data<int32_t>(scratch));
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) TVM_FFI_THROW(RuntimeError) << "avsg_match: " << cudaGetErrorString(error);
}

}  // namespace cuda
}  // namespace hisparse

TVM_FFI_DLL_EXPORT_TYPED_FUNC(avsg_match, hisparse::cuda::avsg_match);
