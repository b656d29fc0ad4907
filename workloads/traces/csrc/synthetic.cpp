// Synthetic selections: every position's score moved by one step, then the k highest. See workloads/traces/synthetic.py.
//
// Compiled without contraction of a * b + c and written element by element, so that the same seed gives the same
// selections on every machine and in the numpy formulation.
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#pragma GCC optimize("O3,fp-contract=off")  // O3: the loops below become vector instructions

namespace synthetic {

using tvm::ffi::TensorView;

constexpr float kNone = -std::numeric_limits<float>::infinity();
constexpr int64_t kBlock = 4096;  // positions whose state stays in the nearest cache

struct Motion {
  float slow_keep, slow_move, fast_keep, fast_move, noise;
};

inline uint32_t next(uint32_t x) {  // xorshift32
  x ^= x << 13;
  x ^= x >> 17;
  return x ^ (x << 5);
}

void move(float* __restrict score, float* __restrict slow, float* __restrict fast, uint32_t* __restrict random,
          const float* __restrict fixed, int64_t n, Motion m) {
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t a = next(random[i]), b = next(a);
    random[i] = b;
    const int32_t s = static_cast<int32_t>((a & 255) + ((a >> 8) & 255)) - 255;
    const int32_t f = static_cast<int32_t>(((a >> 16) & 255) + (a >> 24)) - 255;
    const int32_t z = static_cast<int32_t>((b & 255) + ((b >> 8) & 255) + ((b >> 16) & 255) + (b >> 24)) - 510;
    slow[i] = slow[i] * m.slow_keep + static_cast<float>(s) * m.slow_move;
    fast[i] = fast[i] * m.fast_keep + static_cast<float>(f) * m.fast_move;
    score[i] = fixed[i] + slow[i] + fast[i] + static_cast<float>(z) * m.noise;
  }
}

// The k highest of n scores in ascending order of position; of equal ones the lower position.
class TopK {
 public:
  explicit TopK(int64_t most) : positions_(most), values_(most) {}

  void pick(const float* score, int64_t n, int64_t k, int32_t* out) {
    int64_t found = above(score, n, guess_);
    if (found < k) found = above(score, n, kNone);
    for (int64_t j = 0; j < found; ++j) values_[j] = score[positions_[j]];
    std::nth_element(values_.begin(), values_.begin() + (k - 1), values_.begin() + found, std::greater<float>());
    const float last = values_[k - 1];
    int64_t ties = k - std::count_if(values_.begin(), values_.begin() + k, [last](float v) { return v > last; });
    for (int64_t j = 0; j < found; ++j) {
      const float value = score[positions_[j]];
      if (value > last || (value == last && ties-- > 0)) *out++ = positions_[j];
    }
    // the next step's k-th score is near: some more candidates than needed leave room for it to fall
    if (found > k + k / 5) {
      std::nth_element(values_.begin() + k, values_.begin() + k + k / 10, values_.begin() + found,
                       std::greater<float>());
      guess_ = values_[k + k / 10];
    } else if (found < k + k / 20) {
      guess_ = kNone;
    }
  }

 private:
  int64_t above(const float* score, int64_t n, float threshold) {
    int64_t count = 0;
    for (int64_t i = 0; i < n; ++i) {
      positions_[count] = static_cast<int32_t>(i);
      count += score[i] > threshold;
    }
    return count;
  }

  std::vector<int32_t> positions_;
  std::vector<float> values_;
  float guess_ = kNone;
};

// out[t]: the selection when the context is first + t positions long, -1 padded. The state is moved on.
void select(TensorView fixed, TensorView slow, TensorView fast, TensorView random, int64_t first, double slow_keep,
            double slow_move, double fast_keep, double fast_move, double noise, TensorView out) {
  const int64_t steps = out.size(0), k = out.size(1), most = first + steps - 1;
  if (fixed.size(0) < most) TVM_FFI_THROW(ValueError) << "the state holds fewer than " << most << " positions";
  const Motion m{static_cast<float>(slow_keep), static_cast<float>(slow_move), static_cast<float>(fast_keep),
                 static_cast<float>(fast_move), static_cast<float>(noise)};
  auto* const still = static_cast<const float*>(fixed.data_ptr());
  auto *const s = static_cast<float*>(slow.data_ptr()), *const f = static_cast<float*>(fast.data_ptr());
  auto* const r = static_cast<uint32_t*>(random.data_ptr());
  std::vector<float> score(most);
  TopK top(most);
  for (int64_t t = 0; t < steps; ++t) {
    const int64_t n = first + t, taken = std::min(n, k);
    for (int64_t i = 0; i < n; i += kBlock) {
      move(score.data() + i, s + i, f + i, r + i, still + i, std::min(kBlock, n - i), m);
    }
    int32_t* const row = static_cast<int32_t*>(out.data_ptr()) + t * k;
    top.pick(score.data(), n, taken, row);
    std::fill(row + taken, row + k, -1);
  }
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(select, select);

}  // namespace synthetic
