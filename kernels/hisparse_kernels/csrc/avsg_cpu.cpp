// AVSG's match on a CPU as a function of tensors. Shapes, dtypes and strides were checked by the Python wrapper.
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

#include <algorithm>

#include "avsg_cpu.h"
#include "avsg_tensors.h"

namespace hisparse {
namespace cpu {

void avsg_match(TensorView selection, TensorView rows, TensorView seq_lens, TensorView slot_positions, TensorView life,
                TensorView table, TensorView out, TensorView miss_slots, TensorView miss_positions, TensorView per_row,
                int64_t bits, int64_t probes, int64_t full, bool decay, int64_t block_threads, int64_t workers) {
  const AvsgArgs args = avsg_args(selection, rows, seq_lens, slot_positions, life, table, out, miss_slots,
                                  miss_positions, per_row, bits, probes, full, decay);
  run_avsg(args, static_cast<int>(block_threads), std::max(1, static_cast<int>(workers)));
}

}  // namespace cpu
}  // namespace hisparse

TVM_FFI_DLL_EXPORT_TYPED_FUNC(avsg_match, hisparse::cpu::avsg_match);
