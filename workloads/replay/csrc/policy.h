// What every replacement policy is to the replay: one cache of B slots that sees one (request, layer) token by token.
//
// Rules common to all: whatever one step selects (all its tokens) stays resident until the step ends; a miss is
// counted once per distinct position and token; position seq_len - 1, the newest, sits in a reserved slot beside the
// B and never misses; it is dropped when the next one comes, or, while the sequence fits B slots, becomes resident.
#pragma once
#include <cstdint>

namespace replay {

struct Counts {
  int32_t selected;  // distinct positions, the newest included
  int32_t misses;
};

struct Token {
  const int32_t* selection;  // [k] positions; negative for none
  int64_t k;
  int32_t seq_len;
  bool begins_step, ends_step;
};

class Policy {
 public:
  virtual ~Policy() = default;
  virtual void begin(int32_t first, int32_t count) = 0;  // positions first, first + 1, .. are resident, old to new
  virtual void grow(int32_t position) = 0;               // a position that becomes resident without a fetch
  virtual Counts token(const Token& token) = 0;
  virtual void forget(int32_t begin, int32_t end) = 0;     // positions whose records are no longer valid
  virtual int64_t contents(int32_t* positions) const = 0;  // what a token could hit now; returns how many
};

}  // namespace replay
