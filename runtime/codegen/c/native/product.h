// Products of float32 matrices, and convolutions as such products: panels, a block of registers, tiles.
//
// C[m, n] = sum over k of A[m, k] B[k, n]. A lies in panels of `height` rows ([panel][k][height]), B in panels of EG_NR
// columns ([panel][k][EG_NR]), the last ones filled up with zeros; what a filled place becomes is never stored. Operands
// that are constants are packed once. Of others B is packed by the task that needs it, in blocks of at most EG_KC rows
// that stay in the first-level cache; a convolution's image is gathered in the same way, so that it never exists
// unfolded.
#if defined(__AVX512F__)
#define EG_VL 16
#define EG_MR 14
#elif defined(__AVX__)
#define EG_VL 8
#define EG_MR 6
#elif defined(__aarch64__)
#define EG_VL 4
#define EG_MR 8
#else
#define EG_VL 4
#define EG_MR 4
#endif
#define EG_NV 2
#define EG_NR (EG_VL * EG_NV)
#ifndef EG_KC
#define EG_KC 320
#endif
#define EG_AHEAD 48  // rows of panels that are asked for beforehand
#define EG_INLINE static inline __attribute__((always_inline))
static eg_index eg_least(eg_index a, eg_index b) { return a < b ? a : b; }
static eg_index eg_parts_of(eg_index size, eg_index part) { return (size + part - 1) / part; }
typedef float eg_vector __attribute__((vector_size(EG_VL * 4), aligned(4), may_alias));
// The elements of two vectors in turn, of their first halves and of their second halves; every second element of both,
// from the first and from the second one on.
#if EG_VL == 16
#define EG_FIRST 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define EG_SECOND 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#define EG_EVEN 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
#define EG_ODD 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31
#elif EG_VL == 8
#define EG_FIRST 0, 8, 1, 9, 2, 10, 3, 11
#define EG_SECOND 4, 12, 5, 13, 6, 14, 7, 15
#define EG_EVEN 0, 2, 4, 6, 8, 10, 12, 14
#define EG_ODD 1, 3, 5, 7, 9, 11, 13, 15
#else
#define EG_FIRST 0, 4, 1, 5
#define EG_SECOND 2, 6, 3, 7
#define EG_EVEN 0, 2, 4, 6
#define EG_ODD 1, 3, 5, 7
#endif
#if defined(__clang__)
#define EG_MIXED(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
typedef int eg_places __attribute__((vector_size(EG_VL * 4)));
#define EG_MIXED(a, b, ...) __builtin_shuffle(a, b, (eg_places){__VA_ARGS__})
#endif

#if defined(__AVX512F__)
typedef float eg_full __attribute__((vector_size(64)));  // what the instructions take
#endif

// a * b + c, rounded once where the processor can do that. gcc, tuning for some processors, parts sums of products where it
// likes, and bits would depend on the place in a line. clang does not, and knows other names.
#if !defined(__clang__) && defined(__AVX512F__)
#define EG_ALL(x) ((eg_vector){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x})
EG_INLINE eg_vector eg_fused(eg_vector a, eg_vector b, eg_vector c) {
  return (eg_vector)__builtin_ia32_vfmaddps512_mask((eg_full)a, (eg_full)b, (eg_full)c, (unsigned short)-1, 4);
}
#elif !defined(__clang__) && defined(__AVX__) && defined(__FMA__)
#define EG_ALL(x) ((eg_vector){x, x, x, x, x, x, x, x})
typedef float eg_full __attribute__((vector_size(32)));
EG_INLINE eg_vector eg_fused(eg_vector a, eg_vector b, eg_vector c) {
  return (eg_vector)__builtin_ia32_vfmaddps256((eg_full)a, (eg_full)b, (eg_full)c);
}
#else
#define EG_ALL(x) (x)
#define eg_fused(a, b, c) ((a) * (b) + (c))
#endif

// The first `count` elements of a vector, fewer than all of them; zeros behind those that are read.
EG_INLINE eg_vector eg_some(const float* from, eg_index count) {
#if defined(__AVX512F__)
  return __builtin_ia32_loadups512_mask(from, (eg_full){0}, (unsigned short)((1u << count) - 1));
#else
  eg_vector found = {0};
  memcpy(&found, from, count * sizeof(float));
  return found;
#endif
}

EG_INLINE void eg_put_some(float* to, eg_vector from, eg_index count) {
#if defined(__AVX512F__)
  __builtin_ia32_storeups512_mask(to, (eg_full)from, (unsigned short)((1u << count) - 1));
#else
  memcpy(to, &from, count * sizeof(float));
#endif
}

// Row `i` of A where it lies: `rows` are the places of rows 0, 5 and 10, `step` is bytes. With so few of them all are
// addressed by registers.
EG_INLINE float eg_of_row(const int i, const char* const* rows, eg_index step, eg_index thrice) {
  const char* const row = rows[i / 5];
  const int behind = i % 5;
  return *(const float*)(behind == 3 ? row + thrice : behind == 4 ? row + 4 * step : row + behind * step);
}

// Sums to C, or added to it, of which the last vector is not whole: `some` of it.
static __attribute__((noinline)) void eg_put_parts(int rows, int vectors, const eg_vector* sums, float* c,
                                                   eg_index step, eg_index some, int add) {
  for (int i = 0; i < rows; ++i, c += step) {
    for (int j = 0; j < vectors; ++j) {
      float* const to = c + j * EG_VL;
      eg_vector sum = sums[i * EG_NV + j];
      if (j < vectors - 1) {
        if (add) sum += *(const eg_vector*)to;
        *(eg_vector*)to = sum;
      } else {
        if (add) sum += eg_some(to, some);
        eg_put_some(to, sum, some);
      }
    }
  }
}

// `columns` of C are written; of the last vector perhaps not all. `height`: of A's panels; or the step of its rows where
// these are read as they lie. `next` is what is needed after this: it comes into the second-level cache meanwhile,
// `stride` bytes a step. `across`: rows of B lie `stride` elements apart, and nothing is asked for.
EG_INLINE void eg_block(const int packed, const int across, const int rows, const int vectors, eg_index height,
                        eg_index depth, const float* restrict a, const float* restrict b, float* restrict c,
                        eg_index step, eg_index columns, int add, const char* next, eg_index stride) {
  const eg_index row_step = height * (eg_index)sizeof(float), thrice = 3 * row_step;
  const char* places[] = {(const char*)a, (const char*)a + 5 * row_step, (const char*)a + 10 * row_step};
  const eg_index some = columns - (vectors - 1) * EG_VL;  // of the last vector
  eg_vector sums[EG_MR][EG_NV];
#pragma GCC unroll 16
  for (int i = 0; i < rows; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < vectors; ++j) {
      sums[i][j] = (eg_vector){0};
      __builtin_prefetch(c + i * step + j * EG_VL, 1);
    }
  for (eg_index p = 0; p < depth; ++p) {
    // The processor itself does not look beyond the page that it reads.
    if (!across) __builtin_prefetch(next, 0, 2);
    if (packed) __builtin_prefetch(a + EG_AHEAD * height);
#pragma GCC unroll 4
    for (int j = 0; !across && j < vectors; ++j) __builtin_prefetch(b + EG_AHEAD * EG_NR + j * EG_VL);
    eg_vector right[EG_NV];
#pragma GCC unroll 4
    for (int j = 0; j < vectors; ++j) right[j] = *(const eg_vector*)(b + j * EG_VL);
#pragma GCC unroll 16
    for (int i = 0; i < rows; ++i) {
      const float left = packed ? a[i] : eg_of_row(i, places, row_step, thrice);
#pragma GCC unroll 4
      for (int j = 0; j < vectors; ++j) sums[i][j] = eg_fused(EG_ALL(left), right[j], sums[i][j]);
    }
    a += height;
    for (int i = 0; i < 3; ++i) places[i] += sizeof(float);
    b += across ? stride : EG_NR;
    if (!across) next += stride;
  }
  if (some < EG_VL) {
    eg_vector kept[EG_MR * EG_NV];
#pragma GCC unroll 16
    for (int i = 0; i < rows; ++i)
#pragma GCC unroll 4
      for (int j = 0; j < vectors; ++j) kept[i * EG_NV + j] = sums[i][j];
    eg_put_parts(rows, vectors, kept, c, step, some, add);
    return;
  }
  if (add)
#pragma GCC unroll 16
    for (int i = 0; i < rows; ++i)
#pragma GCC unroll 4
      for (int j = 0; j < vectors; ++j) sums[i][j] += *(const eg_vector*)(c + i * step + j * EG_VL);
#pragma GCC unroll 16
  for (int i = 0; i < rows; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < vectors; ++j) *(eg_vector*)(c + i * step + j * EG_VL) = sums[i][j];
}

// What there is for each number of rows up to EG_MR: one after the other, and in a table.
#if EG_MR > 8
#define EG_EACH_ROWS(of) \
  of(1) of(2) of(3) of(4) of(5) of(6) of(7) of(8) of(9) of(10) of(11) of(12) of(13) of(14)
#define EG_ALL_ROWS(of) \
  of(1), of(2), of(3), of(4), of(5), of(6), of(7), of(8), of(9), of(10), of(11), of(12), of(13), of(14)
#elif EG_MR > 6
#define EG_EACH_ROWS(of) of(1) of(2) of(3) of(4) of(5) of(6) of(7) of(8)
#define EG_ALL_ROWS(of) of(1), of(2), of(3), of(4), of(5), of(6), of(7), of(8)
#elif EG_MR > 4
#define EG_EACH_ROWS(of) of(1) of(2) of(3) of(4) of(5) of(6)
#define EG_ALL_ROWS(of) of(1), of(2), of(3), of(4), of(5), of(6)
#else
#define EG_EACH_ROWS(of) of(1) of(2) of(3) of(4)
#define EG_ALL_ROWS(of) of(1), of(2), of(3), of(4)
#endif
#define EG_BLOCK_OF(name, packed, across, rows, vectors)                                              \
  static void name##rows(eg_index height, eg_index depth, const float* a, const float* b, float* c,   \
                         eg_index step, eg_index columns, int add, const char* next, eg_index stride) { \
    eg_block(packed, across, rows, vectors, height, depth, a, b, c, step, columns, add, next, stride); \
  }
#define EG_ROWS_OF(rows)                       \
  EG_BLOCK_OF(eg_block_, 1, 0, rows, EG_NV)    \
  EG_BLOCK_OF(eg_narrow_, 1, 0, rows, 1)       \
  EG_BLOCK_OF(eg_given_, 0, 0, rows, EG_NV)    \
  EG_BLOCK_OF(eg_given_narrow_, 0, 0, rows, 1) \
  EG_BLOCK_OF(eg_across_, 1, 1, rows, EG_NV)
EG_EACH_ROWS(EG_ROWS_OF)
typedef void (*eg_blocks)(eg_index, eg_index, const float*, const float*, float*, eg_index, eg_index, int,
                          const char*, eg_index);
#define EG_WIDE_BLOCK(rows) eg_block_##rows
#define EG_NARROW_BLOCK(rows) eg_narrow_##rows
#define EG_GIVEN_WIDE(rows) eg_given_##rows
#define EG_GIVEN_NARROW(rows) eg_given_narrow_##rows
// By rows: all columns of a panel, and no more than a vector of them; of A as panels, and as it lies.
static const eg_blocks eg_block_of[2][2][EG_MR + 1] = {
    {{0, EG_ALL_ROWS(EG_WIDE_BLOCK)}, {0, EG_ALL_ROWS(EG_NARROW_BLOCK)}},
    {{0, EG_ALL_ROWS(EG_GIVEN_WIDE)}, {0, EG_ALL_ROWS(EG_GIVEN_NARROW)}}};
#define EG_ACROSS(rows) eg_across_##rows
static const eg_blocks eg_across_of[EG_MR + 1] = {0, EG_ALL_ROWS(EG_ACROSS)};  // of B as it lies

// Rows of B that are packed next. Each lies on a page of its own, mostly, and the processor does not look for it: what
// is asked for while others are multiplied comes meanwhile.
typedef struct {
  const float* from;        // NULL: none
  const eg_index* places;   // of the rows, or NULL: these are `apart` elements apart
  eg_index apart, depth, columns;
} eg_wanted;

// Part `part` of `parts` of them.
static void eg_ask(const eg_wanted* wanted, eg_index part, eg_index parts) {
  for (eg_index p = wanted->depth * part / parts; p < wanted->depth * (part + 1) / parts; ++p) {
    const float* const row = wanted->from + (wanted->places ? wanted->places[p] : p * wanted->apart);
    for (eg_index j = 0; j < wanted->columns - 1; j += 16) __builtin_prefetch(row + j, 0, 2);
    if ((size_t)row % 64) __builtin_prefetch(row + wanted->columns - 1, 0, 2);
  }
}

// Some rows and columns of a product, for rows [first, first + depth) of B: `b` is one panel, from there on. `next` is
// the panel after it where that has to come from memory, `wanted` what it will be packed from. `lifted`: of B times 2^64 the product is added. `given`: the
// step of A's rows where these are read as they lie, else 0.
static void eg_panel(const float* a, eg_index given, eg_index height, eg_index m, eg_index k, eg_index first,
                     eg_index depth, const float* b, eg_index columns, float* c, eg_index step, int add,
                     const float* next, const eg_wanted* wanted, int lifted) {
  const eg_index stride = next ? EG_NR * (eg_index)sizeof(float) * height / (m > height ? m : height) : 0;
  const char* ahead = (const char*)(next ? next : b);
  for (eg_index row = 0; row < m; row += height, ahead += depth * stride) {
    const eg_index rows = m - row < height ? m - row : height;
    if (wanted->from) eg_ask(wanted, row / height, (m + height - 1) / height);
    const eg_blocks block = eg_block_of[given > 0][columns <= EG_VL][rows];
    const float* const from = given ? a + row * given + first : a + row * k + first * height;
    const eg_index apart = given ? given : height;
    float* const to = c + row * step;
    if (!lifted) {
      block(apart, depth, from, b, to, step, columns, add, ahead, stride);
      continue;
    }
    float whole[EG_MR * EG_NR] __attribute__((aligned(64)));
    block(apart, depth, from, b, whole, EG_NR, columns, 0, ahead, stride);
    for (eg_index i = 0; i < rows; ++i)
      for (eg_index j = 0; j < columns; ++j) to[i * step + j] += whole[i * EG_NR + j] * 0x1p-64f;
  }
}

// The same with panels of A, and a panel of B with all its columns whose rows lie `apart`.
static void eg_panel_across(const float* a, eg_index height, eg_index m, eg_index k, eg_index first, eg_index depth,
                            const float* b, eg_index apart, float* c, eg_index step, int add) {
  for (eg_index row = 0; row < m; row += height)
    eg_across_of[m - row < height ? m - row : height](height, depth, a + row * k + first * height, b, c + row * step,
                                                      step, EG_NR, add, NULL, apart);
}

// A square of EG_VL vectors turned around: each round puts the elements of two halves side by side.
EG_INLINE void eg_turn(eg_vector* v) {
#pragma GCC unroll 4
  for (int round = 1; round < EG_VL; round *= 2) {
    eg_vector w[EG_VL];
#pragma GCC unroll 16
    for (int i = 0; i < EG_VL / 2; ++i) {
      w[2 * i] = EG_MIXED(v[i], v[i + EG_VL / 2], EG_FIRST);
      w[2 * i + 1] = EG_MIXED(v[i], v[i + EG_VL / 2], EG_SECOND);
    }
#pragma GCC unroll 16
    for (int i = 0; i < EG_VL; ++i) v[i] = w[i];
  }
}

// to[p * to_step + i] = from[i * from_step + p] for i below `rows`, p below `columns`; and zeros for i below `width`.
static void eg_turned(const float* from, eg_index from_step, eg_index rows, eg_index columns, eg_index width, float* to,
                      eg_index to_step) {
  for (eg_index first = 0; first < columns; first += EG_VL) {
    const eg_index deep = eg_least(EG_VL, columns - first);
    for (eg_index row = 0; row < width; row += EG_VL) {
      eg_vector v[EG_VL];
      const eg_index high = width - row < EG_VL ? width - row : EG_VL;
#pragma GCC unroll 16
      for (eg_index i = 0; i < EG_VL; ++i) {
        const float* const line = from + (row + i) * from_step + first;
        v[i] = row + i >= rows ? (eg_vector){0} : deep < EG_VL ? eg_some(line, deep) : *(const eg_vector*)line;
      }
      eg_turn(v);
      float* const place = to + first * to_step + row;
      // What a whole vector writes too much is overwritten by the next one: the last ones are written as they are.
      eg_index whole = high == EG_VL ? EG_VL : 0;
      if (width < EG_VL && to_step == width)
        whole = columns * width < EG_VL ? 0 : eg_least((columns * width - EG_VL) / width + 1 - first, EG_VL);
#pragma GCC unroll 16
      for (eg_index p = 0; p < EG_VL; ++p)
        if (p >= deep)
          break;
        else if (p < whole)
          *(eg_vector*)(place + p * to_step) = v[p];
        else
          eg_put_some(place + p * to_step, v[p], high);
    }
  }
}

static void eg_pack_left(const float* a, eg_index row_step, eg_index column_step, eg_index m, eg_index k,
                         eg_index height, float* to) {
  for (eg_index row = 0; row < m; row += height, to += k * height) {
    const eg_index rows = m - row < height ? m - row : height;
    if (column_step == 1) {
      eg_turned(a + row * row_step, row_step, rows, k, height, to, height);
      continue;
    }
    for (eg_index p = 0; p < k; ++p)
      for (eg_index i = 0; i < height; ++i)
        to[p * height + i] = i < rows ? a[(row + i) * row_step + p * column_step] : 0.0f;
  }
}

// Rows [first, first + depth) of a panel of `columns` columns.
static void eg_pack_right(const float* b, eg_index row_step, eg_index column_step, eg_index first, eg_index depth,
                          eg_index columns, float* to) {
  b += first * row_step;
  if (row_step == 1 && column_step != 1) {
    eg_turned(b, column_step, columns, depth, EG_NR, to, EG_NR);
    return;
  }
  for (eg_index p = 0; p < depth; ++p, to += EG_NR, b += row_step) {
    eg_index j = 0;
    if (column_step == 1) {
      for (; j + EG_VL <= columns; j += EG_VL) *(eg_vector*)(to + j) = *(const eg_vector*)(b + j);
      if (j < columns) *(eg_vector*)(to + j) = eg_some(b + j, columns - j), j += EG_VL;
    } else {
      for (; j < columns; ++j) to[j] = b[j * column_step];
    }
    for (; j < EG_NR; ++j) to[j] = 0.0f;
  }
}

// `count` rows or columns out of an image, `width` places for each k: runs of positions that follow each other there
// are copied as whole vectors, what such a copy writes too much is overwritten by the next run or k.
EG_INLINE void eg_gather(const int vectors, const float* image, eg_index elements, const eg_index* places,
                         const eg_index* positions, eg_index depth, eg_index count, eg_index width, float* to) {
  eg_index starts[EG_NR], runs = 0;
  for (eg_index j = 0; j < count; ++j)
    if (!j || positions[j] != positions[j - 1] + 1) starts[runs++] = j;
  const int whole = runs * 4 <= count || runs == 1;
  const eg_index furthest = positions[count - 1] + EG_NR;  // positions ascend
  for (eg_index p = 0; p < depth; ++p, to += width) {
    const float* const from = image + places[p];
    if (whole && places[p] + furthest <= elements) {
      for (eg_index run = 0; run < runs; ++run) {
        const float* const source = from + positions[starts[run]];
        float* const target = to + starts[run];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v)
          *(eg_vector*)(target + v * EG_VL) = *(const eg_vector*)(source + v * EG_VL);
      }
    } else {
      for (eg_index j = 0; j < count; ++j) to[j] = from[positions[j]];
    }
    for (eg_index j = count; j < width; ++j) to[j] = 0.0f;
  }
}

// Rows of a panel of A: evenly, so that the last panel is not nearly empty.
eg_index eg_height(eg_index m) { return m ? eg_parts_of(m, eg_parts_of(m, EG_MR)) : 1; }
eg_index eg_width(void) { return EG_NR; }
eg_index eg_lane(void) { return EG_VL; }

// All of A or B as panels.
void eg_pack_a(const float* a, eg_index row_step, eg_index column_step, eg_index m, eg_index k, float* to) {
  eg_pack_left(a, row_step, column_step, m, k, eg_height(m), to);
}

// The same for windows.
void eg_pack_w(const float* a, eg_index row_step, eg_index column_step, eg_index m, eg_index k, float* to) {
  eg_pack_left(a, row_step, column_step, m, k, EG_VL, to);
}

void eg_pack_b(const float* b, eg_index row_step, eg_index column_step, eg_index k, eg_index n, float* to) {
  for (eg_index j = 0; j < n; j += EG_NR, to += k * EG_NR)
    eg_pack_right(b + j * column_step, row_step, column_step, 0, k, eg_least(EG_NR, n - j), to);
}
