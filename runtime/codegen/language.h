// The kernel language: one text, read as CUDA (NVRTC) or, with EG_EMULATED, by the checking emulation (g++).
//
// EG_KERNEL(name)(EG_IN(float) x, EG_OUT(float) y) { ... } with, inside,
//   EG_PARALLEL(i, N) ... EG_END              one thread for each i < N
//   EG_ROWS(row, R) ... EG_END                EG_BX threads share a row, EG_BY rows share a block
//   EG_COLUMNS(j, k, N) ... EG_END            inside rows: column j, the k-th of this thread
//   EG_GET(x, index), EG_PUT(y, index, value) the only way to global memory; EG_PUT_ROW inside rows
//   EG_ROW_BUFFER(T, b, N), b[k]              what a thread keeps of its row
//   eg_row_sum(v), eg_row_max(v), ...         of all threads of the row; every thread must come here
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
#define EG_COLUMNS(j, k, N)                                                             \
  for (int k = 0; k < ((N) + EG_BX - 1) / EG_BX; ++k) {                                 \
    const eg_index j = (eg_index)k * EG_BX + threadIdx.x;                               \
    if (j < (N)) {
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
template <class T> EG_DEVICE T eg_row_sum(T v) { return eg_row_reduce<eg_plus<T>, T>(v); }
template <class T> EG_DEVICE T eg_row_product(T v) { return eg_row_reduce<eg_times<T>, T>(v); }
template <class T> EG_DEVICE T eg_row_max(T v) { return eg_row_reduce<eg_larger<T>, T>(v); }
template <class T> EG_DEVICE T eg_row_min(T v) { return eg_row_reduce<eg_smaller<T>, T>(v); }

#endif
