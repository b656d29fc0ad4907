// `lru`: the engine's own order (HiSparse, section 3.2), by the engine's own code (hisparse_kernels, csrc).
#pragma once
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "policy.h"
#include "run_cpu.h"

namespace replay {

class KernelLru final : public Policy {
 public:
  explicit KernelLru(int64_t slots) : slots_(slots), positions_(slots, -1), order_(slots), cache_(slots + 1) {
    std::iota(order_.begin(), order_.end(), 0);
  }

  void begin(int32_t first, int32_t count) override {  // as reference.load_row
    std::iota(positions_.begin(), positions_.begin() + count, first);
    std::rotate(order_.begin(), order_.begin() + count, order_.end());
  }

  void grow(int32_t position) override {
    if (std::find(positions_.begin(), positions_.end(), position) != positions_.end()) return;
    const int32_t seq_len = position + 2;
    const hisparse::AppendArgs args{record_, &row_, &seq_len, positions_.data(), order_.data(), cache_.data(),
                                    slots_,  1,     1};
    hisparse::run_append({0, 1}, args, 1);
  }

  Counts token(const Token& t) override {
    out_.resize(t.k);
    miss_slots_.resize(t.k);
    miss_positions_.resize(t.k);
    int64_t misses = 0;
    const hisparse::MatchArgs args{t.selection,       &row_,        &t.seq_len,         positions_.data(),
                                   order_.data(),     out_.data(),  miss_slots_.data(), miss_positions_.data(),
                                   &misses,           1,            t.k,                slots_,
                                   1};
    hisparse::run_match({0, 1}, args);
    return {distinct(t.k), static_cast<int32_t>(misses)};
  }

  void forget(int32_t begin, int32_t end) override {  // empty slots are the oldest, as in append
    for (int32_t& p : positions_) {
      if (p >= begin && p < end) p = -1;
    }
    std::stable_partition(order_.begin(), order_.end(), [this](int32_t slot) { return positions_[slot] < 0; });
  }

  int64_t contents(int32_t* out) const override {
    return std::copy_if(positions_.begin(), positions_.end(), out, [](int32_t p) { return p >= 0; }) - out;
  }

 private:
  // Each distinct position got a slot of its own, so the slots are counted.
  int32_t distinct(int64_t k) {
    counted_.resize(slots_ + 1, 0);
    ++now_;
    int32_t count = 0;
    for (int64_t j = 0; j < k; ++j) {
      if (out_[j] < 0) continue;
      count += counted_[out_[j]] != now_;
      counted_[out_[j]] = now_;
    }
    return count;
  }

  const int64_t slots_;
  const int64_t row_ = 0;
  std::vector<int32_t> positions_, order_, out_, miss_slots_, miss_positions_;
  std::vector<uint32_t> counted_;
  std::vector<char> cache_;  // one byte a record: append moves the newest one
  char record_[1] = {};
  uint32_t now_ = 0;
};

}  // namespace replay
