// From checked tensors to the arguments of AVSG's match; the same for CPU and CUDA.
#pragma once
#include "avsg.h"
#include "tensors.h"

namespace hisparse {

inline AvsgArgs avsg_args(const TensorView& selection, const TensorView& rows, const TensorView& seq_lens,
                          const TensorView& slot_positions, const TensorView& life, const TensorView& table,
                          const TensorView& out, const TensorView& miss_slots, const TensorView& miss_positions,
                          const TensorView& per_row, int64_t bits, int64_t probes, int64_t full, bool decay) {
  const MatchArgs match = match_args(selection, rows, seq_lens, slot_positions, slot_positions, out, per_row,
                                     data<int32_t>(miss_slots), data<int32_t>(miss_positions));
  return AvsgArgs{match, data<uint8_t>(life), data<int32_t>(table), static_cast<int32_t>(bits),
                  static_cast<int32_t>(probes), static_cast<int32_t>(full), decay};
}

}  // namespace hisparse
