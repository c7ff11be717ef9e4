// The kernel language: one text, read as CUDA (NVRTC) or, with EG_EMULATED, by the checking emulation (g++).
//
// EG_KERNEL(name)(EG_IN(float) x, EG_OUT(float) y) { ... } with, inside,
//   EG_PARALLEL(i, N) ... EG_END              one thread for each i < N
//   EG_ROWS(row, R) ... EG_END                EG_BX threads share a row, EG_BY rows share a block
//   EG_COLUMNS(j, k, N) ... EG_COLUMNS_END    inside rows: column j, the k-th of this thread
//   EG_KEPT_COLUMNS(j, k, N)                  the same unrolled, so that row buffers lie in registers
//   EG_STEPS(j, k, N) ... EG_END              the same for every thread alike, with eg_inside: there is a column j
//   EG_GET(x, index), EG_PUT(y, index, value) the only way to global memory; EG_PUT_ROW inside rows
//   EG_ROW_BUFFER(T, b, N), b[k]              what a thread keeps of its row
//   eg_row_sum(v), eg_row_max(v), ...         of all threads of the row; every thread must come here
//   eg_row_best<Order>(v, at)                 the first of all in an order, and its place
//   eg_row_scan<Op>(v, start, all)            of all threads of the row before this one
// With EG_BX = 1 a thread has a row of its own: neighbours read neighbouring rows, and nobody waits.
// Every thread of a block makes the same number of trips through EG_ROWS, so that barriers stay uniform.
#ifndef EG_LANGUAGE_H
#define EG_LANGUAGE_H

#ifdef EG_EMULATED
#include "emulation.h"
#else
#define EG_DEVICE __device__ __forceinline__
#define EG_KERNEL(name) extern "C" __global__ void __launch_bounds__(EG_BX * EG_BY) name
#ifdef EG_ALIASING
#define EG_RESTRICT
#else
#define EG_RESTRICT __restrict__
#endif
#define EG_IN(T) const T* EG_RESTRICT
#define EG_OUT(T) T* EG_RESTRICT
#define EG_GET(p, i) ((p)[i])
#define EG_PUT(p, i, v) ((p)[i] = (v))
#define EG_ATOMIC_ADD(p, i, v) atomicAdd((p) + (i), (v))
#define EG_ATOMIC_MAX(p, i, v) atomicMax((p) + (i), (v))
#define EG_SHARED(T, name, size) __shared__ T name[size]
#define EG_BARRIER() __syncthreads()
#define EG_SHUFFLE_XOR(v, s) __shfl_xor_sync(0xffffffffu, v, s)
#define EG_INFINITY __int_as_float(0x7f800000)
#define EG_NAN __int_as_float(0x7fc00000)
EG_DEVICE unsigned eg_float_bits(float x) { return __float_as_uint(x); }
EG_DEVICE float eg_bits_float(unsigned x) { return __uint_as_float(x); }
EG_DEVICE float eg_f16_to_float(unsigned short h) {
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
  return f;
}
EG_DEVICE unsigned short eg_float_to_f16(float f) {
  unsigned short h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
  return h;
}
#endif

#ifndef EG_BX
#define EG_BX 256
#endif
#ifndef EG_BY
#define EG_BY 1
#endif
#ifdef EG_WIDE  // 2^31 elements or more
typedef long long eg_index;
#else
typedef int eg_index;  // division by constants costs a third of the instructions of 64 bits
#endif

EG_DEVICE float eg_bf16_to_float(unsigned short h) { return eg_bits_float((unsigned)h << 16); }
EG_DEVICE unsigned short eg_float_to_bf16(float f) {  // to nearest, ties to even
  const unsigned b = eg_float_bits(f);
  if ((b & 0x7fffffffu) > 0x7f800000u) return (unsigned short)((b >> 16) | 0x40u);
  return (unsigned short)((b + 0x7fffu + ((b >> 16) & 1u)) >> 16);
}

#define EG_PARALLEL(i, N)                                                               \
  for (eg_index i = (eg_index)blockIdx.x * (EG_BX * EG_BY) + threadIdx.x; i < (N);      \
       i += (eg_index)gridDim.x * (EG_BX * EG_BY)) {
#define EG_ROWS(row, R)                                                                 \
  for (eg_index row##_first = (eg_index)blockIdx.x * EG_BY; row##_first < (R);          \
       row##_first += (eg_index)gridDim.x * EG_BY) {                                    \
    const bool eg_live = row##_first + (eg_index)threadIdx.y < (R);                     \
    const eg_index row = eg_live ? row##_first + (eg_index)threadIdx.y : (R) - 1;
#define EG_ROW_BUFFER(T, b, N) T b[((N) + EG_BX - 1) / EG_BX]
#define EG_STEPS(j, k, N)                                                               \
  for (eg_index k = 0; k < ((N) + EG_BX - 1) / EG_BX; ++k) {                            \
    const eg_index j = k * EG_BX + (eg_index)threadIdx.x;                               \
    const bool eg_inside = j < (N);
#define EG_COLUMNS(j, k, N) EG_STEPS(j, k, N) if (eg_inside) {
#define EG_KEPT_COLUMNS(j, k, N) _Pragma("unroll") EG_COLUMNS(j, k, N)
#define EG_COLUMNS_END }}
#define EG_END }
#define EG_PUT_ROW(p, i, v) do { if (eg_live) EG_PUT(p, i, v); } while (0)
#define EG_FIRST_COLUMN (threadIdx.x == 0)  // one thread of each row

// NaN wins, as in NumPy and ONNX.
template <class T> EG_DEVICE T eg_max(T a, T b) { return a != a ? a : (b != b ? b : (a > b ? a : b)); }
template <class T> EG_DEVICE T eg_min(T a, T b) { return a != a ? a : (b != b ? b : (a < b ? a : b)); }

template <class T> struct eg_plus { static EG_DEVICE T of(T a, T b) { return a + b; } };
template <class T> struct eg_times { static EG_DEVICE T of(T a, T b) { return a * b; } };
template <class T> struct eg_larger { static EG_DEVICE T of(T a, T b) { return eg_max(a, b); } };
template <class T> struct eg_smaller { static EG_DEVICE T of(T a, T b) { return eg_min(a, b); } };

template <class Op, class T> EG_DEVICE T eg_row_reduce(T v) {
  const int warp_threads = EG_BX < 32 ? EG_BX : 32;
  for (int s = warp_threads / 2; s > 0; s >>= 1) v = Op::of(v, EG_SHUFFLE_XOR(v, s));
#if EG_BX > 32
  EG_SHARED(T, partial, EG_BY * (EG_BX / 32));
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, base = threadIdx.y * (EG_BX / 32);
  EG_BARRIER();  // the last reduction's readers are done
  if (lane == 0) partial[base + warp] = v;
  EG_BARRIER();
  v = partial[base];
  for (int w = 1; w < EG_BX / 32; ++w) v = Op::of(v, (T)partial[base + w]);
#endif
  return v;
}
// Orders of elements a at place i and b at place j: is a ahead? A place below 0 stands for no element.
template <class T> EG_DEVICE bool eg_ahead(bool better, bool worse, T a, eg_index i, T b, eg_index j, bool nan_first,
                                           bool last) {
  if (i < 0 || j < 0) return j < 0 && i >= 0;
  if (a != a || b != b) {
    better = (a != a) == nan_first && (b != b) != nan_first;
    worse = (b != b) == nan_first && (a != a) != nan_first;
  }
  return better || (!worse && (last ? i > j : i < j));
}
#define EG_ORDER(name, sign, nan_first, last)                                           \
  template <class T> struct name {                                                      \
    static EG_DEVICE bool of(T a, eg_index i, T b, eg_index j) {                        \
      return eg_ahead<T>(a sign b, b sign a, a, i, b, j, nan_first, last);              \
    }                                                                                   \
  };
EG_ORDER(eg_largest_first, >, true, false)
EG_ORDER(eg_largest_last, >, true, true)
EG_ORDER(eg_smallest_first, <, true, false)
EG_ORDER(eg_smallest_last, <, true, true)
EG_ORDER(eg_ascending, <, false, false)  // as sorts have it: NaN comes last

template <class Order, class T> EG_DEVICE void eg_row_best(T& v, eg_index& at) {
  const int warp_threads = EG_BX < 32 ? EG_BX : 32;
  for (int s = warp_threads / 2; s > 0; s >>= 1) {
    const T w = EG_SHUFFLE_XOR(v, s);
    const eg_index place = EG_SHUFFLE_XOR(at, s);
    if (Order::of(w, place, v, at)) v = w, at = place;
  }
#if EG_BX > 32
  EG_SHARED(T, values, EG_BY * (EG_BX / 32));
  EG_SHARED(eg_index, places, EG_BY * (EG_BX / 32));
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, base = threadIdx.y * (EG_BX / 32);
  EG_BARRIER();  // the last readers are done
  if (lane == 0) values[base + warp] = v, places[base + warp] = at;
  EG_BARRIER();
  for (int w = 0; w < EG_BX / 32; ++w) {
    const T other = values[base + w];
    const eg_index place = places[base + w];
    if (Order::of(other, place, v, at)) v = other, at = place;
  }
#endif
}

// A butterfly: `all` is the total of 1, 2, 4, ... threads; those of its upper half add the lower one to their own.
template <class Op, class T> EG_DEVICE T eg_row_scan(T v, T start, T& all) {
  const int warp_threads = EG_BX < 32 ? EG_BX : 32, lane = threadIdx.x & 31;
  T before = start;
  all = v;
  for (int s = 1; s < warp_threads; s <<= 1) {
    const T other = EG_SHUFFLE_XOR(all, s);
    const bool upper = (lane & s) != 0;
    if (upper) before = Op::of(other, before);
    all = upper ? Op::of(other, all) : Op::of(all, other);
  }
#if EG_BX > 32
  EG_SHARED(T, partial, EG_BY * (EG_BX / 32));
  const int warp = threadIdx.x >> 5, base = threadIdx.y * (EG_BX / 32);
  EG_BARRIER();  // the last readers are done
  if (lane == 0) partial[base + warp] = all;
  EG_BARRIER();
  T front = start;
  all = start;
  for (int w = 0; w < EG_BX / 32; ++w) {
    if (w == warp) front = all;
    all = Op::of(all, (T)partial[base + w]);
  }
  before = Op::of(front, before);
#endif
  return before;
}
template <class T> EG_DEVICE T eg_row_sum(T v) { return eg_row_reduce<eg_plus<T>, T>(v); }
template <class T> EG_DEVICE T eg_row_product(T v) { return eg_row_reduce<eg_times<T>, T>(v); }
template <class T> EG_DEVICE T eg_row_max(T v) { return eg_row_reduce<eg_larger<T>, T>(v); }
template <class T> EG_DEVICE T eg_row_min(T v) { return eg_row_reduce<eg_smaller<T>, T>(v); }

#endif
