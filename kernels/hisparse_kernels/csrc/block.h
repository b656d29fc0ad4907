// A block of threads that runs in phases, so that one source serves CPU and GPU.
//
//   block.phase(f)   f(thread) for every thread, then a barrier
//   Reg<T>           what one thread keeps across a barrier: reg[thread]
//   block.scan(reg)  exclusive sum over the threads, returns the total; the one primitive written per target
//
// Code between phases is the same for all threads and must not depend on one. Targets: CUDA (a thread block), and
// on a CPU a loop over thread ids (HISPARSE_REVERSED: backwards) or, for TSan, real threads (HISPARSE_THREADS).
#pragma once
#include <cstdint>

#ifndef SEEDED_BUG  // a test compiles with -DSEEDED_BUG=n and must fail; every n is listed in test_seeded_bugs.py
#define SEEDED_BUG 0
#endif

#if defined(__CUDACC__)
#define HS_INLINE __device__ __forceinline__
#define HS_HOST_DEVICE __host__ __device__
#define HS_UNROLL _Pragma("unroll")
#else
#define HS_INLINE inline
#define HS_HOST_DEVICE
#define HS_UNROLL
#endif

namespace hisparse {

constexpr int kWarp = 32;
constexpr int kMaxThreads = 1024;

#if defined(__CUDACC__)

template <class T>
struct Reg {
  T value;
  HS_INLINE T& operator[](int) { return value; }
};

struct Block {
  int threads;          // a multiple of kWarp
  int32_t* scan_space;  // shared, kWarp + 1 ints

  template <class F>
  HS_INLINE void phase(F f) const {
    f(static_cast<int>(threadIdx.x));
    __syncthreads();
  }

  HS_INLINE int scan(Reg<int>& reg) const {
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = threads / kWarp;
    const int own = reg.value;
    int sum = own;
    for (int d = 1; d < kWarp; d *= 2) {
      const int below = __shfl_up_sync(0xffffffffu, sum, d);
      if (lane >= d) sum += below;
    }
    if (lane == kWarp - 1) scan_space[warp] = sum;
    __syncthreads();
    if (warp == 0) {
      int of_warp = lane < warps ? scan_space[lane] : 0;
      for (int d = 1; d < kWarp; d *= 2) {
        const int below = __shfl_up_sync(0xffffffffu, of_warp, d);
        if (lane >= d) of_warp += below;
      }
      scan_space[lane] = of_warp;
    }
    __syncthreads();
    const int before = warp > 0 ? scan_space[warp - 1] : 0;
    const int total = scan_space[warps - 1];
    __syncthreads();  // scan_space may be written again
    reg.value = before + sum - own;
    return total;
  }
};

HS_INLINE int32_t atomic_cas(int32_t* at, int32_t expected, int32_t value) { return atomicCAS(at, expected, value); }
HS_INLINE void atomic_min(int32_t* at, int32_t value) { atomicMin(at, value); }

#elif defined(HISPARSE_THREADS)

}  // namespace hisparse
#include <pthread.h>
namespace hisparse {

template <class T>
struct Reg {
  T value;
  T& operator[](int) { return value; }
};

struct Block {  // one per thread: every thread runs the whole operation
  int threads;
  int32_t* scan_space;  // shared, threads ints
  int self;
  pthread_barrier_t* barrier;

  template <class F>
  void phase(F f) const {
    f(self);
    pthread_barrier_wait(barrier);
  }

  int scan(Reg<int>& reg) const {
    scan_space[self] = reg.value;
    pthread_barrier_wait(barrier);
    int before = 0, total = 0;
    for (int t = 0; t < threads; ++t) {
      if (t == self) before = total;
      total += scan_space[t];
    }
    pthread_barrier_wait(barrier);
    reg.value = before;
    return total;
  }
};

inline int32_t atomic_cas(int32_t* at, int32_t expected, int32_t value) {
  __atomic_compare_exchange_n(at, &expected, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return expected;
}
inline void atomic_min(int32_t* at, int32_t value) {
  int32_t held = __atomic_load_n(at, __ATOMIC_RELAXED);
  while (value < held && !__atomic_compare_exchange_n(at, &held, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}

#else

template <class T>
struct Reg {
  T value[kMaxThreads];
  T& operator[](int thread) { return value[thread]; }
};

struct Block {
  int threads;
  int32_t* scan_space;  // unused

  template <class F>
  void phase(F f) const {
#if defined(HISPARSE_REVERSED)
    for (int t = threads; t-- > 0;) f(t);
#else
    for (int t = 0; t < threads; ++t) f(t);
#endif
  }

  int scan(Reg<int>& reg) const {
    int total = 0;
    for (int t = 0; t < threads; ++t) {
      const int own = reg[t];
#if SEEDED_BUG == 6  // off by one: inclusive where exclusive is meant
      reg[t] = total + own;
#else
      reg[t] = total;
#endif
      total += own;
    }
    return total;
  }
};

inline int32_t atomic_cas(int32_t* at, int32_t expected, int32_t value) {
  const int32_t held = *at;
  if (held == expected) *at = value;
  return held;
}
inline void atomic_min(int32_t* at, int32_t value) {
  if (value < *at) *at = value;
}

#endif

}  // namespace hisparse
