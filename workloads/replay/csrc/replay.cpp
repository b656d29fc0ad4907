// The replay as functions of tensors; the Python side has checked them.
#if defined(__AVX512F__) && defined(__GNUC__) && !defined(__clang__)
#pragma GCC target("prefer-vector-width=512")  // the compiler's own choice is half of what there is
#endif

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>

#include <algorithm>
#include <memory>

#include "belady.h"
#include "bucketed_lru.h"
#include "kernel_avsg.h"
#include "kernel_lru.h"
#include "lfu.h"
#include "lifetime.h"
#include "map_rules.h"
#include "s3fifo.h"
#include "slru_arc.h"
#include "staging.h"

namespace replay {

using tvm::ffi::TensorView;

int32_t* ints(const TensorView& tensor) { return static_cast<int32_t*>(tensor.data_ptr()); }

std::unique_ptr<Policy> make_policy(int64_t code, int64_t slots, int64_t tokens, const Options& options) {
  switch (code) {
    case 0: return std::make_unique<KernelLru>(slots);
    case 1: return std::make_unique<Mapped<LruPlain>>(slots, options);
    case 2: return std::make_unique<Mapped<Fifo>>(slots, options);
    case 3: return std::make_unique<Mapped<Random>>(slots, options);
    case 4: return std::make_unique<Staging>(tokens);
    case 6: return std::make_unique<Cached<BucketedLru>>(slots, options);
    case 7: return std::make_unique<Mapped<Clock>>(slots, options);
    case 8: return std::make_unique<Cached<Lfu>>(slots, options);
    case 9: return std::make_unique<Mapped<Slru>>(slots, options);
    case 10: return std::make_unique<Mapped<S3Fifo>>(slots, options);
    case 11: return std::make_unique<Mapped<Arc>>(slots, options);
    case 12: return std::make_unique<Cached<Lifetime>>(slots, options);
    case 13: return std::make_unique<KernelAvsg>(slots, options);
    default: TVM_FFI_THROW(ValueError) << "no policy has the code " << code;
  }
}

// One (request, layer) that is replayed block by block.
class Lane {
 public:
  Lane(std::unique_ptr<Policy> policy, int64_t slots, int64_t tokens, bool from_tail)
      : policy_(std::move(policy)), slots_(slots), tokens_(tokens), from_tail_(from_tail) {}

  void feed(const TensorView& positions, const TensorView& seq_lens, int32_t* selected, int32_t* misses) {
    const int64_t rows = positions.size(0), k = positions.size(1);
    for (int64_t r = 0; r < rows; ++r, ++rows_done_) {
      const int32_t length = ints(seq_lens)[r];
      const bool begins = rows_done_ % tokens_ == 0, ends = (rows_done_ + 1) % tokens_ == 0;
      if (begins) begin_step(length);
      const Counts counts = policy_->token({ints(positions) + r * k, k, length, begins, ends});
      selected[r] = counts.selected;
      misses[r] = counts.misses;
      if (tokens_ > 1 && ends) policy_->forget(length_, length);
    }
  }

  int64_t contents(int32_t* out) const { return policy_->contents(out); }

 private:
  void begin_step(int32_t length) {
    if (rows_done_ == 0 && from_tail_) {  // what decode begins with (HiSparse, section 3.3; reference.load_row)
      const int32_t old = length - 2;     // the newest of the prompt, in the reserved slot
      const int32_t count = static_cast<int32_t>(std::clamp<int64_t>(old, 0, slots_));
      policy_->begin(old - count, count);
      length_ = length - 1;
    }
    if (rows_done_ == 0 && !from_tail_) length_ = length;
    for (; length_ < length; ++length_) {
      if (length_ >= 1 && length_ - 1 < slots_) policy_->grow(length_ - 1);
    }
  }

  std::unique_ptr<Policy> policy_;
  const int64_t slots_, tokens_;
  const bool from_tail_;
  int64_t rows_done_ = 0;
  int32_t length_ = 0;  // of the step's first token: positions from it on are speculative within the step
};

int64_t create(int64_t code, int64_t slots, int64_t tokens, bool from_tail, int64_t seed, int64_t first,
               int64_t second) {
  const Options options{static_cast<uint64_t>(seed), first, second};
  auto policy = make_policy(code, slots, tokens, options);
  return reinterpret_cast<int64_t>(new Lane(std::move(policy), slots, tokens, from_tail));
}

Lane* lane_of(int64_t handle) { return reinterpret_cast<Lane*>(handle); }

void feed(int64_t handle, TensorView positions, TensorView seq_lens, TensorView selected, TensorView misses) {
  lane_of(handle)->feed(positions, seq_lens, ints(selected), ints(misses));
}

// The index of the first position that is not below its row's context length; -1 if there is none.
int64_t first_outside(TensorView positions, TensorView seq_lens) {
  const int64_t rows = positions.size(0), k = positions.size(1);
  for (int64_t r = 0; r < rows; ++r) {
    const int32_t* const row = ints(positions) + r * k;
    const int32_t length = ints(seq_lens)[r];
    int32_t highest = -1;
    for (int64_t j = 0; j < k; ++j) highest = std::max(highest, row[j]);
    const bool outside = highest >= length;
    for (int64_t j = 0; outside && j < k; ++j) {
      if (row[j] >= length) return r * k + j;
    }
  }
  return -1;
}

int64_t contents(int64_t handle, TensorView out) { return lane_of(handle)->contents(ints(out)); }

void destroy(int64_t handle) { delete lane_of(handle); }

void belady(TensorView positions, TensorView seq_lens, int64_t slots, int64_t tokens, bool from_tail,
            TensorView selected, TensorView misses) {
  const Sequence sequence{ints(positions), ints(seq_lens), positions.size(0), positions.size(1), tokens};
  Belady(slots, sequence, from_tail).run(ints(selected), ints(misses));
}

}  // namespace replay

TVM_FFI_DLL_EXPORT_TYPED_FUNC(create, replay::create);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(feed, replay::feed);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(first_outside, replay::first_outside);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(contents, replay::contents);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(destroy, replay::destroy);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(belady, replay::belady);
