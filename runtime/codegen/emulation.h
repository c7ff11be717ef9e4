// The CUDA reading of the kernel language on a CPU, checked: bounds and uninitialised reads of global and shared
// memory, races, divergent barriers and shuffles. The scheduler is emulation.cpp.
#pragma once
#define _GLIBCXX_INCLUDE_NEXT_C_HEADERS 1  // C's own headers: <cmath> takes a third of the time of a compilation
#include <math.h>
#include <stdint.h>
#include <string.h>

#define EG_DEVICE inline
#define EG_KERNEL(name) static void name
#define EG_IN(T) const eg_pointer<T>&
#define EG_OUT(T) const eg_pointer<T>&
#define EG_GET(p, i) ((p).get(i))
#define EG_PUT(p, i, v) ((p).put(i, v))
#define EG_ATOMIC_ADD(p, i, v) ((p).update(i, v, [](auto old, auto own) { return old + own; }))
#define EG_ATOMIC_MAX(p, i, v) ((p).update(i, v, [](auto old, auto own) { return old < own ? own : old; }))
// One block runs at a time, so what a block shares may be static.
#define EG_SHARED(T, name, size) static eg_shared<T, size> name
#define EG_BARRIER() eg_barrier()
#define EG_SHUFFLE_XOR(v, s) eg_shuffle_xor(v, s)
// Compiled once for an element type, not in each place where a kernel reads or writes: a quarter of compiling.
#define EG_ONCE __attribute__((noinline))
#define EG_INFINITY __builtin_inff()
#define EG_NAN __builtin_nanf("")

struct eg_triple { unsigned x, y, z; };
struct eg_state {  // of the thread that runs now; layout shared with emulation.cpp
  eg_triple thread, block, block_size, grid_size;
  int in_block;         // number of the thread in its block
  long in_grid;         // number in the grid, from 1
  int epoch;            // counts barriers and blocks
};
extern "C" {
extern eg_state eg_now;
void eg_barrier();
void eg_exchange(void* value, int bytes, int lane_xor);
void eg_fault(const char* what, const char* where, long a, long b);
}
#define threadIdx (eg_now.thread)
#define blockIdx (eg_now.block)
#define blockDim (eg_now.block_size)
#define gridDim (eg_now.grid_size)

template <class T> inline T eg_shuffle_xor(T value, int lane_xor) {
  eg_exchange(&value, sizeof value, lane_xor);
  return value;
}

// A pointer into global memory. `low` and `high` bound the element indices of the tensor it belongs to; the shadows
// tell, per element, whether it holds a value, and who wrote and read it during this launch (0 nobody, -1 several).
struct eg_region {
  char* base;
  unsigned char* filled;
  long* writer;
  long* reader;
  long low, high;
  long unit, origin;  // shadow index of byte offset b from `base`: (b + origin) / unit
  const char* name;
};

template <class T> struct eg_pointer {
  const eg_region* r;
  long at(long i, const char* what) const {
    if (i < r->low || i >= r->high) {
      eg_fault(what, r->name, i, r->high);
      return -1;
    }
    return (i * (long)sizeof(T) + r->origin) / r->unit;
  }
  EG_ONCE T get(long i) const {
    const long s = at(i, "read outside of the tensor");
    T v;
    memset(&v, 0, sizeof v);
    if (s < 0) return v;
    const char* p = r->base + i * (long)sizeof(T);
    const unsigned char* f = r->filled + i * (long)sizeof(T);
    if (!f[0] || !f[sizeof(T) - 1]) eg_fault("read of an element that nothing has written", r->name, i, r->high);
    const long me = eg_now.in_grid;
    if (r->writer[s] && r->writer[s] != me) eg_fault("race: read of what another thread writes", r->name, i, me);
    if (r->reader[s] != me) r->reader[s] = r->reader[s] ? -1 : me;
    memcpy(&v, p, sizeof v);
    return v;
  }
  void put(long i, T v) const { store(i, v, false); }
  template <class F> void update(long i, T v, F f) const {  // atomic: any order, but no plain access beside it
    const long s = at(i, "atomic outside of the tensor");
    if (s < 0) return;
    if (r->writer[s] > 0 || r->reader[s]) eg_fault("race: atomic beside a plain access", r->name, i, eg_now.in_grid);
    r->writer[s] = -2;
    char* p = r->base + i * (long)sizeof(T);
    if (!r->filled[i * (long)sizeof(T)]) eg_fault("read of an element that nothing has written", r->name, i, r->high);
    T old;
    memcpy(&old, p, sizeof old);
    old = (T)f(old, v);
    memcpy(p, &old, sizeof old);
  }
  EG_ONCE void store(long i, T v, bool) const {
    const long s = at(i, "write outside of the tensor");
    if (s < 0) return;
    const long me = eg_now.in_grid;
    if (r->writer[s] && r->writer[s] != me) eg_fault("race: two threads write one element", r->name, i, me);
    if (r->reader[s] && r->reader[s] != me) eg_fault("race: write of what another thread reads", r->name, i, me);
    r->writer[s] = me;
    memcpy(r->base + i * (long)sizeof(T), &v, sizeof v);
    memset(r->filled + i * (long)sizeof(T), 1, sizeof(T));
  }
};

// A cell of shared memory; races are two accesses of different threads between two barriers, one of them a write.
template <class T> struct eg_cell {
  T value;
  int writer, write_epoch, reader, read_epoch, block_epoch;
  operator T() {
    const int me = eg_now.in_block + 1;
    if (!writer || block_epoch != (int)(eg_now.block.x + 1)) eg_fault("uninitialised read of shared memory", "", me, 0);
    else if (write_epoch == eg_now.epoch && writer != me) eg_fault("race in shared memory: write and read", "", writer, me);
    reader = read_epoch == eg_now.epoch && reader && reader != me ? -1 : me;
    read_epoch = eg_now.epoch;
    return value;
  }
  eg_cell& operator=(T v) {
    const int me = eg_now.in_block + 1;
    if (writer && write_epoch == eg_now.epoch && writer != me) eg_fault("race in shared memory: two writes", "", writer, me);
    if (reader && read_epoch == eg_now.epoch && reader != me) eg_fault("race in shared memory: read and write", "", reader, me);
    writer = me;
    write_epoch = eg_now.epoch;
    block_epoch = (int)(eg_now.block.x + 1);
    value = v;
    return *this;
  }
};
template <class T, int N> struct eg_shared {
  eg_cell<T> cells[N];
  eg_cell<T>& operator[](long i) {
    if (i < 0 || i >= N) {
      eg_fault("index outside of shared memory", "", i, N);
      i = 0;
    }
    return cells[i];
  }
};

inline unsigned eg_float_bits(float x) { unsigned u; memcpy(&u, &x, 4); return u; }
inline float eg_bits_float(unsigned u) { float x; memcpy(&x, &u, 4); return x; }
inline float eg_f16_to_float(unsigned short h) {
  const unsigned sign = (unsigned)(h & 0x8000u) << 16, exponent = (h >> 10) & 31u, fraction = h & 1023u;
  if (exponent == 31u) return eg_bits_float(sign | 0x7f800000u | (fraction << 13));
  if (exponent) return eg_bits_float(sign | ((exponent + 112u) << 23) | (fraction << 13));
  const float tiny = (float)fraction * 5.9604644775390625e-08f;  // 2^-24
  return sign ? -tiny : tiny;
}
inline unsigned short eg_float_to_f16(float f) {  // to nearest, ties to even
  const unsigned b = eg_float_bits(f), sign = (b >> 16) & 0x8000u, magnitude = b & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return (unsigned short)(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return (unsigned short)(sign | 0x7c00u);  // 65520 and more
  if (magnitude < 0x38800000u) {                                          // below 2^-14: a multiple of 2^-24
    const float scaled = eg_bits_float(magnitude) * 16777216.0f;
    return (unsigned short)(sign | (unsigned)lrintf(scaled));
  }
  const unsigned rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return (unsigned short)(sign | ((rounded - 0x38000000u) >> 13));
}
