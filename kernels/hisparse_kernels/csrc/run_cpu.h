// The operations on a CPU, as functions of plain arguments.
#pragma once
#include "append.h"
#include "attention.h"
#include "copy.h"
#include "match.h"

namespace hisparse {

struct Run {
  int block_threads;  // 0: the serial path; above 0 the shared source, with blocks of that many threads
  int workers;        // OpenMP threads
};

enum class Element { float32, float16, bfloat16 };

void run_match(const Run& run, const MatchArgs& a);
int64_t run_fetch(const Run& run, const FetchArgs& a, int64_t* skipped);  // returns the number of misses
int64_t run_replay(const Run& run, const PlanView& plan, const int64_t* per_row, int64_t n, const Pools& pools);
void run_append(const Run& run, const AppendArgs& a, int64_t n);
void run_copy(const Run& run, const IndexedCopy& c);
void run_attend(const Run& run, const AttendArgs& a, Element element);
// The least that a resolve must do, for the benchmark: read the selection, and copy with plain memcpy.
int64_t run_floor(int workers, const int32_t* selection, int64_t selected, const IndexedCopy& c);
double phase_time(int phase);  // seconds in a phase so far; zero unless compiled with HISPARSE_PHASES

}  // namespace hisparse
