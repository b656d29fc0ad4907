// `avsg`: the resolve of hisparse_kernels' avsg module, by its own code (csrc/avsg.h).
#pragma once
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "avsg_cpu.h"
#include "cached.h"
#include "policy.h"

namespace replay {

class KernelAvsg final : public Policy {
 public:
  KernelAvsg(int64_t slots, const Options& o)
      : slots_(slots), positions_(slots, -1), life_(slots, 0), full_(static_cast<int32_t>(o.first + 1)),
        probes_(static_cast<int32_t>(o.second)) {
    while (int64_t{1} << bits_ < 2 * slots) ++bits_;  // as avsg.new_state
    table_.assign(size_t{1} << bits_, hisparse::kFree);
  }

  void begin(int32_t first, int32_t count) override {
    std::vector<int32_t> all(count);
    std::iota(all.begin(), all.end(), first);
    select({all.data(), count, first + count + 1, false, false});
  }

  void grow(int32_t position) override { select({&position, 1, position + 2, false, false}); }

  Counts token(const Token& t) override {  // the operation takes two slots for a miss that occurs twice
    const int32_t selected = drop_duplicates(t);
    return {selected, select({once_.data(), t.k, t.seq_len, t.begins_step, t.ends_step})};
  }

  void forget(int32_t begin, int32_t end) override {  // as avsg.invalidate
    for (int64_t s = 0; s < slots_; ++s) {
      if (positions_[s] < begin || positions_[s] >= end) continue;
      positions_[s] = -1;
      life_[s] = 0;
    }
  }

  int64_t contents(int32_t* out) const override {
    return std::copy_if(positions_.begin(), positions_.end(), out, [](int32_t p) { return p >= 0; }) - out;
  }

 private:
  int32_t select(const Token& t) {
    out_.resize(t.k);
    miss_slots_.resize(t.k);
    miss_positions_.resize(t.k);
    int64_t misses = 0;
    const hisparse::MatchArgs match{t.selection,       &row_,        &t.seq_len,         positions_.data(),
                                    nullptr,           out_.data(),  miss_slots_.data(), miss_positions_.data(),
                                    &misses,           1,            t.k,                slots_,
                                    1};
    hisparse::run_avsg_row({match, life_.data(), table_.data(), bits_, probes_, full_, t.begins_step}, 0, 0);
    return static_cast<int32_t>(misses);
  }

  int32_t drop_duplicates(const Token& t) {
    if (static_cast<size_t>(t.seq_len) > seen_.size()) seen_.resize(t.seq_len + t.seq_len / 4, 0);
    once_.resize(t.k);
    ++now_;
    int32_t count = 0;
    for (int64_t j = 0; j < t.k; ++j) {
      const int32_t p = t.selection[j];
      const bool first = p >= 0 && seen_[p] != now_;
      once_[j] = first ? p : -1;
      count += first;
      if (first) seen_[p] = now_;
    }
    return count;
  }

  const int64_t slots_;
  const int64_t row_ = 0;
  std::vector<int32_t> positions_, table_, once_, out_, miss_slots_, miss_positions_;
  std::vector<uint8_t> life_;
  std::vector<uint32_t> seen_;
  uint32_t now_ = 0;
  int32_t bits_ = 1, full_, probes_;
};

}  // namespace replay
