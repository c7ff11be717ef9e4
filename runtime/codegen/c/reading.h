// The C reading of the kernel language (`language.h` has the CUDA reading). Here loops are plain loops over sizes that
// come at run time; expressions and element access read the same.
//
// EG_KERNEL(name) { EG_POINTER(float, x, 0) EG_SIZE(n0, 0) ... }  gets pointers and integers from two arrays
// EG_OVER(i, n) ... EG_END            a loop
// EG_INNER(i, n, clauses) ... EG_INNER_END  the same, whose trips the compiler may do side by side (clauses: `omp simd`)
// EG_TOTAL(how, T, t)                 t is the total of a row
// EG_PUT_ONCE(p, i, v)                outside of loops over columns
// EG_KEPT(p, outer, n, i)             an element of a row buffer, in the i-th of n trips inside of the outer-th
//
// With EG_EXACT every function is C's own, else exp, tanh and erf are the ones below, which compilers can vectorize:
// the greatest error found against mpmath is noted at each. Subnormal numbers, infinities, NaN and -0.0 are kept.
#include <math.h>
#include <stdbool.h>
#include <string.h>

#define EG_PRAGMA(text) _Pragma(#text)
#define EG_DEVICE static inline __attribute__((always_inline))
#define EG_KERNEL(name) void name(void* const* eg_pointers, const eg_index* eg_sizes)
#define EG_POINTER(T, name, k) T* restrict const name = (T*)eg_pointers[k];
#define EG_SIZE(name, k) const eg_index name = eg_sizes[k];
#define EG_GET(p, i) ((p)[i])
#define EG_PUT(p, i, v) ((p)[i] = (v))
#define EG_OVER(i, n) for (eg_index i = 0; i < (n); ++i) {
#define EG_INNER(i, n, clauses) EG_PRAGMA(omp simd clauses) EG_OVER(i, n)
#define EG_END }
#define EG_INNER_END }
#define EG_TOTAL(how, T, t)
#define EG_PUT_ONCE(p, i, v) EG_PUT(p, i, v)
#define EG_KEPT(p, outer, n, i) ((p)[(outer) * (n) + (i)])
// The same in blocks, so that sums are rounded in few steps: EG_BLOCKS(j, n) EG_BLOCK_INNER(j, clauses) ... EG_INNER_END EG_END
#define EG_BLOCK 2048
#define EG_BLOCKS(j, n)                                                                               \
  for (eg_index j##_first = 0; j##_first < (n); j##_first += EG_BLOCK) {                              \
    const eg_index j##_last = (n) - j##_first < EG_BLOCK ? (n) : j##_first + EG_BLOCK;
#define EG_BLOCK_INNER(j, clauses)                                                                    \
  EG_PRAGMA(omp simd clauses) for (eg_index j = j##_first; j < j##_last; ++j) {
// Loops inside of rows come in two parts (`compiler.with_rests`): whole vectors, and what is left as one vector of which
// some places are not used. The compiler would do that one by one: a softmax of 77 columns took three times as long as
// one of 64.
#if defined(__AVX512F__)
#define EG_LANES 16
#elif defined(__AVX__)
#define EG_LANES 8
#else
#define EG_LANES 4
#endif
#define EG_WHOLE(first, last) ((first) + ((last) - (first)) / EG_LANES * EG_LANES)
#define EG_WHOLE_OF(i, first, last, clauses)                                                          \
  EG_PRAGMA(omp simd clauses) for (eg_index i = (first); i < EG_WHOLE(first, last); ++i) {
#define EG_REST_OF(i, first, last, clauses)                                                           \
  if (EG_WHOLE(first, last) < (last)) {                                                               \
    const int i##_left = (int)((last) - EG_WHOLE(first, last));                                       \
    EG_PRAGMA(omp simd clauses) for (int i##_lane = 0; i##_lane < EG_LANES; ++i##_lane) {             \
      const eg_index i = EG_WHOLE(first, last) + i##_lane;                                            \
      if (i##_lane < i##_left) {
#define EG_INNER_WHOLE(i, n, clauses) EG_WHOLE_OF(i, 0, n, clauses)
#define EG_INNER_REST(i, n, clauses) EG_REST_OF(i, 0, n, clauses)
#define EG_BLOCK_INNER_WHOLE(j, clauses) EG_WHOLE_OF(j, j##_first, j##_last, clauses)
#define EG_BLOCK_INNER_REST(j, clauses) EG_REST_OF(j, j##_first, j##_last, clauses)
#define EG_REST_END }}}
// A place on an axis of n elements: negative ones count from the end; of others the fault is told, and 0 takes their place.
#define EG_INDEX(i, v, n, fault)                                                                      \
  eg_index i = (v);                                                                                   \
  i += i < 0 ? (n) : 0;                                                                               \
  if ((unsigned long long)i >= (unsigned long long)(n)) { *(fault) = 1; i = 0; }
#define EG_SILU(x, s) ((x) * (s))
#define EG_INFINITY __builtin_inff()
#define EG_NAN __builtin_nanf("")
typedef long long eg_index;

EG_DEVICE unsigned eg_float_bits(float x) { unsigned u; memcpy(&u, &x, 4); return u; }
EG_DEVICE float eg_bits_float(unsigned u) { float x; memcpy(&x, &u, 4); return x; }
EG_DEVICE unsigned long long eg_double_bits(double x) { unsigned long long u; memcpy(&u, &x, 8); return u; }
EG_DEVICE double eg_bits_double(unsigned long long u) { double x; memcpy(&x, &u, 8); return x; }

// 16-bit floats are stored as their bits and computed in float; rounded to nearest, ties to even.
#ifdef __FLT16_MAX__
EG_DEVICE float eg_f16_to_float(unsigned short h) { _Float16 x; memcpy(&x, &h, 2); return (float)x; }
EG_DEVICE unsigned short eg_float_to_f16(float f) { _Float16 x = (_Float16)f; unsigned short h; memcpy(&h, &x, 2); return h; }
#else
EG_DEVICE float eg_f16_to_float(unsigned short h) {
  const unsigned sign = (unsigned)(h & 0x8000u) << 16, e = (h >> 10) & 31u, m = h & 1023u;
  if (e == 31u) return eg_bits_float(sign | 0x7f800000u | (m << 13));
  const float size = e ? eg_bits_float(((e + 112u) << 23) | (m << 13)) : (float)m * 0x1p-24f;
  return sign ? -size : size;
}
EG_DEVICE unsigned short eg_float_to_f16(float f) {
  const unsigned b = eg_float_bits(f), sign = (b >> 16) & 0x8000u, s = b & 0x7fffffffu;
  if (s > 0x7f800000u) return (unsigned short)(sign | 0x7e00u);
  if (s >= 0x477ff000u) return (unsigned short)(sign | 0x7c00u);  // 65520 and more
  if (s < 0x38800000u) return (unsigned short)(sign | (unsigned)rintf(eg_bits_float(s) * 0x1p24f));
  return (unsigned short)(sign | ((s - 0x38000000u + 0xfffu + ((s >> 13) & 1u)) >> 13));
}
#endif
EG_DEVICE float eg_bf16_to_float(unsigned short h) { return eg_bits_float((unsigned)h << 16); }
EG_DEVICE unsigned short eg_float_to_bf16(float f) {
  const unsigned b = eg_float_bits(f);
  if ((b & 0x7fffffffu) > 0x7f800000u) return (unsigned short)((b >> 16) | 0x40u);
  return (unsigned short)((b + 0x7fffu + ((b >> 16) & 1u)) >> 16);
}

// NaN wins, as in NumPy and ONNX.
#define EG_EXTREMES(T, suffix)                                                                        \
  EG_DEVICE T eg_max_##suffix(T a, T b) { return a != a ? a : b != b ? b : a > b ? a : b; }           \
  EG_DEVICE T eg_min_##suffix(T a, T b) { return a != a ? a : b != b ? b : a < b ? a : b; }
EG_EXTREMES(float, f)
EG_EXTREMES(double, d)
EG_EXTREMES(int, i)
EG_EXTREMES(unsigned int, u)
EG_EXTREMES(long long, l)
EG_EXTREMES(unsigned long long, m)
#define EG_BY_TYPE(name, a, b)                                                                        \
  _Generic((a) + (b), float: name##_f, double: name##_d, int: name##_i, unsigned int: name##_u,       \
           long long: name##_l, unsigned long long: name##_m)(a, b)
#define eg_max(a, b) EG_BY_TYPE(eg_max, a, b)
#define eg_min(a, b) EG_BY_TYPE(eg_min, a, b)
#pragma omp declare reduction(eg_larger : float : omp_out = eg_max_f(omp_out, omp_in)) initializer(omp_priv = -EG_INFINITY)
#pragma omp declare reduction(eg_smaller : float : omp_out = eg_min_f(omp_out, omp_in)) initializer(omp_priv = EG_INFINITY)
#pragma omp declare reduction(eg_larger : double : omp_out = eg_max_d(omp_out, omp_in)) initializer(omp_priv = -EG_INFINITY)
#pragma omp declare reduction(eg_smaller : double : omp_out = eg_min_d(omp_out, omp_in)) initializer(omp_priv = EG_INFINITY)

#ifndef EG_EXACT
// Nothing is contracted into fused multiply-adds (a compiler that does so loses signs of zeros): they are asked for here.
#if defined(__FP_FAST_FMAF) || defined(__FMA__) || defined(__ARM_FEATURE_FMA)
#define eg_fmaf __builtin_fmaf
#define eg_fma __builtin_fma
#else
#define eg_fmaf(a, b, c) ((a) * (b) + (c))
#define eg_fma(a, b, c) ((a) * (b) + (c))
#endif
// e^x = 2^k e^r with |r| <= ln(2)/2, e^r = 1 + r + r^2 P(r). 2^k is put into the exponent. Subnormal results count the
// least number: as integers they are right, where arithmetic that ends in one takes 100 times as long (a mask of -100 or
// of the least float does that to half of a matrix). In double, 2^k is in two factors, so that they are right as well.
EG_DEVICE float eg_expf(float x) {
  const float c = x < -104.0f ? -104.0f : x;
  const float t = eg_fmaf(c, 1.44269504f, 12582912.0f), n = t - 12582912.0f;  // 1.5 * 2^23 rounds to an integer
  const float r = eg_fmaf(n, 2.12194440e-4f, eg_fmaf(n, -0.693359375f, c));  // ln(2) in two parts
  float p = 0x1.6dbac6p-10f;
  p = eg_fmaf(p, r, 0x1.124144p-7f);
  p = eg_fmaf(p, r, 0x1.555456p-5f);
  p = eg_fmaf(p, r, 0x1.555486p-3f);
  p = eg_fmaf(p, r, 0.5f);
  const unsigned k = (eg_float_bits(t) - 0x4b400000u) << 23;
  const float y = eg_fmaf(p * r, r, r) + 1.0f;
  const float normal = eg_bits_float(eg_float_bits(y) + k);
  const float counted = rintf(c < -87.0f ? y * eg_bits_float(k + (276u << 23)) : 0.0f);
  const float finite = c < -87.0f ? eg_bits_float((unsigned)(int)counted) : normal;
  return c < 0x1.62e430p+6f ? finite : c * 0x1p127f;  // infinity, or NaN
}
EG_DEVICE double eg_exp(double x) {
  const double a = x > 710.0 ? 710.0 : x, c = a < -746.0 ? -746.0 : a;
  const double t = eg_fma(c, 1.4426950408889634, 6755399441055744.0), n = t - 6755399441055744.0;
  const double r = eg_fma(n, -0x1.a39ef35793c76p-33, eg_fma(n, -0x1.62e42feep-1, c));
  double p = 0x1.af84ae9e8808fp-26;
  p = eg_fma(p, r, 0x1.28b46914a4b95p-22);
  p = eg_fma(p, r, 0x1.71dde099839c7p-19);
  p = eg_fma(p, r, 0x1.a019922bdeb77p-16);
  p = eg_fma(p, r, 0x1.a01a01ba6017ep-13);
  p = eg_fma(p, r, 0x1.6c16c187423c9p-10);
  p = eg_fma(p, r, 0x1.111111110d84dp-7);
  p = eg_fma(p, r, 0x1.555555554f8e7p-5);
  p = eg_fma(p, r, 0x1.5555555555560p-3);
  p = eg_fma(p, r, 0x1.000000000000dp-1);
  const long long k = (long long)(eg_double_bits(t) - 0x4338000000000000ull), h = k >> 1;
  const double low = eg_bits_double((unsigned long long)(h + 1023) << 52);
  const double high = eg_bits_double((unsigned long long)(k - h + 1023) << 52);
  return (eg_fma(p * r, r, r) + 1.0) * low * high;
}
// x / (1 + e^-x), 5.5 ulp. e^x is the square of e^(x/2): nothing is computed with subnormal numbers, subnormal results
// count the least number. What would be squared to one is made larger as an integer, which compilers do not see through.
EG_DEVICE float eg_siluf(float x) {
  const float s = fabsf(x) > 120.0f ? 120.0f : fabsf(x), h = eg_expf(-0.5f * s);
  const unsigned bits = eg_float_bits(h), least = 0x20000000u;  // 2^-63
  const float a = eg_bits_float(bits < least ? least : bits), e = a * a;
  const float y = x * ((x >= 0.0f ? 1.0f : e) / (1.0f + e));
  const float counted = rintf((s > 103.97207f ? 0.0f : s) * h * 0x1p75f * (h * 0x1p74f));  // of -x; e^x is 0 there
  const int subnormal = counted < 0x1p23f;
  const float small = eg_bits_float(0x80000000u | (unsigned)(int)(subnormal ? counted : 0.0f));
  const float normal = -(subnormal ? 1.0f : s * h) * h, low = subnormal ? small : normal;
  return x < -0x1.fffffep127f ? x * 0.0f : x < -87.3f ? low : y;
}
#define EG_SILUf(x, s) eg_siluf(x)
// x A(x^2) / B(x^2), fitted to the least greatest relative error; beyond the fit the function is 1 in float.
EG_DEVICE float eg_tanhf(float x) {
  const float s = fabsf(x), c = s > 9.02f ? 9.02f : s, w = c * c;
  float a = 0x1.43335cp-35f;
  a = eg_fmaf(a, w, 0x1.dd7e14p-24f);
  a = eg_fmaf(a, w, 0x1.629db6p-15f);
  a = eg_fmaf(a, w, 0x1.220ef8p-8f);
  a = eg_fmaf(a, w, 0x1.20c06ep-3f);
  a = eg_fmaf(a, w, 1.0f);
  float b = 0x1.9599c6p-29f;
  b = eg_fmaf(b, w, 0x1.5d7b18p-19f);
  b = eg_fmaf(b, w, 0x1.06949ep-11f);
  b = eg_fmaf(b, w, 0x1.de6e24p-6f);
  b = eg_fmaf(b, w, 0x1.e5b58cp-2f);
  b = eg_fmaf(b, w, 1.0f);
  const float y = c * a / b, m = y > 1.0f ? 1.0f : y, z = s >= 9.02f ? 1.0f : m;
  return copysignf(z, x);
}
EG_DEVICE float eg_erff(float x) {
  const float s = fabsf(x), c = s > 3.92f ? 3.92f : s, w = c * c;
  float a = 0x1.132898p-19f;
  a = eg_fmaf(a, w, 0x1.2ab87ap-12f);
  a = eg_fmaf(a, w, 0x1.ed9052p-9f);
  a = eg_fmaf(a, w, 0x1.b01deep-5f);
  a = eg_fmaf(a, w, 0x1.85f386p-3f);
  a = eg_fmaf(a, w, 0x1.20dd74p+0f);
  float b = 0x1.3f895cp-15f;
  b = eg_fmaf(b, w, 0x1.30c00ap-10f);
  b = eg_fmaf(b, w, 0x1.ea827ap-7f);
  b = eg_fmaf(b, w, 0x1.d363d4p-4f);
  b = eg_fmaf(b, w, 0x1.01100cp-1f);
  b = eg_fmaf(b, w, 1.0f);
  const float y = c * a / b, m = y > 1.0f ? 1.0f : y, z = s >= 3.92f ? 1.0f : m;
  return copysignf(z, x);
}
#define expf eg_expf
#define exp eg_exp
#define tanhf eg_tanhf
#define erff eg_erff
#endif
