// Subnormal numbers among what a product reads. With one a multiplication takes 100 times as long, so a tile is computed
// with zeros in their places at first; where there are any it is computed again with them alone, times 2^64, and both are
// added. That is right where the other operand is finite, and has no subnormal numbers itself; else it is computed plainly.
#if defined(__SSE__)
typedef unsigned eg_state;
static eg_state eg_flushing(void) {
  const eg_state before = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(before | 0x40);
  return before;
}
static void eg_as_before(eg_state state) { __builtin_ia32_ldmxcsr(state); }
#define EG_FLUSHES 1
#else
typedef int eg_state;
static eg_state eg_flushing(void) { return 0; }
static void eg_as_before(eg_state state) { (void)state; }
#define EG_FLUSHES 0
#endif

static volatile float eg_one = 1.0f;  // which the compiler does not know

// Whether there are any; while they count as zeros.
static int eg_has_subnormal(const float* from, eg_index count) {
  typedef unsigned eg_bits __attribute__((vector_size(EG_VL * 4)));
  const float one = eg_one;
  eg_bits other = {0};
  unsigned found = 0;
  eg_index i = 0;
  for (; i + EG_VL <= count; i += EG_VL) {
    const eg_vector x = *(const eg_vector*)(from + i);
    const eg_vector same = x * one;
    other |= (eg_bits)x ^ (eg_bits)same;
  }
  for (; i < count; ++i) {
    unsigned bits;
    memcpy(&bits, from + i, sizeof bits);
    found |= (bits & 0x7fffffffu) - 1 < 0x7fffffu;
  }
  for (int lane = 0; lane < EG_VL; ++lane) found |= other[lane];
  return found != 0;
}

// Them times 2^64, zeros in the places of all others; whether there are any.
static int eg_lift(float* numbers, eg_index count) {
  int any = 0;
  for (eg_index i = 0; i < count; ++i) {
    unsigned bits;
    memcpy(&bits, numbers + i, sizeof bits);
    const int size = (int)(bits & 0x7fffffffu);
    const float lifted = size < 0x800000 ? (float)size * 0x1p-85f : 0.0f;
    numbers[i] = bits >> 31 ? -lifted : lifted;
    any |= size < 0x800000 ? size : 0;
  }
  return any != 0;
}

// Whether an operand lets that be done with the other one: 1 if all of it is finite and nothing is subnormal.
eg_index eg_is_plain(const float* from, eg_index count) {
  int other = 0;
  for (eg_index i = 0; i < count; ++i) {
    unsigned bits;
    memcpy(&bits, from + i, sizeof bits);
    const unsigned size = bits & 0x7fffffffu;
    other |= (size - 1 < 0x7fffffu) | (size >= 0x7f800000u);
  }
  return !other;
}
