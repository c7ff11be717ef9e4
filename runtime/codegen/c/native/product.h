// Products of float32 matrices, and convolutions as such products: panels, a block of registers, tiles.
//
// C[m, n] = sum over k of A[m, k] B[k, n]. A lies in panels of `height` rows ([panel][k][height]), B in panels of EG_NR
// columns ([panel][k][EG_NR]), the last ones filled up with zeros; what a filled place becomes is never stored. Operands
// that are constants are packed once. Of others B is packed by the task that needs it, in blocks of EG_KC rows that stay
// in the first-level cache; the B of a convolution is gathered from the image in the same way, so that it never exists.
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
typedef float eg_vector __attribute__((vector_size(EG_VL * 4), aligned(4), may_alias));

EG_INLINE void eg_block(const int rows, eg_index height, eg_index depth, const float* restrict a,
                        const float* restrict b, float* restrict c, eg_index step, int add) {
  eg_vector sums[EG_MR][EG_NV];
#pragma GCC unroll 16
  for (int i = 0; i < rows; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < EG_NV; ++j)
      sums[i][j] = add ? *(const eg_vector*)(c + i * step + j * EG_VL) : (eg_vector){0};
  for (eg_index p = 0; p < depth; ++p) {
    // Constants come from memory: the processor itself does not look beyond the page that it reads.
    __builtin_prefetch(a + EG_AHEAD * height);
#pragma GCC unroll 4
    for (int j = 0; j < EG_NV; ++j) __builtin_prefetch(b + EG_AHEAD * EG_NR + j * EG_VL);
    eg_vector right[EG_NV];
#pragma GCC unroll 4
    for (int j = 0; j < EG_NV; ++j) right[j] = *(const eg_vector*)(b + j * EG_VL);
#pragma GCC unroll 16
    for (int i = 0; i < rows; ++i)
#pragma GCC unroll 4
      for (int j = 0; j < EG_NV; ++j) sums[i][j] += a[i] * right[j];
    a += height;
    b += EG_NR;
  }
#pragma GCC unroll 16
  for (int i = 0; i < rows; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < EG_NV; ++j) *(eg_vector*)(c + i * step + j * EG_VL) = sums[i][j];
}

#define EG_ROWS_OF(rows)                                                                                       \
  static void eg_block_##rows(eg_index height, eg_index depth, const float* a, const float* b, float* c,      \
                              eg_index step, int add) {                                                       \
    eg_block(rows, height, depth, a, b, c, step, add);                                                        \
  }
EG_ROWS_OF(1) EG_ROWS_OF(2) EG_ROWS_OF(3) EG_ROWS_OF(4)
#if EG_MR > 4
EG_ROWS_OF(5) EG_ROWS_OF(6)
#endif
#if EG_MR > 6
EG_ROWS_OF(7) EG_ROWS_OF(8)
#endif
#if EG_MR > 8
EG_ROWS_OF(9) EG_ROWS_OF(10) EG_ROWS_OF(11) EG_ROWS_OF(12) EG_ROWS_OF(13) EG_ROWS_OF(14)
#endif
typedef void (*eg_blocks)(eg_index, eg_index, const float*, const float*, float*, eg_index, int);
static const eg_blocks eg_block_of[EG_MR + 1] = {
    0, eg_block_1, eg_block_2, eg_block_3, eg_block_4,
#if EG_MR > 4
    eg_block_5, eg_block_6,
#endif
#if EG_MR > 6
    eg_block_7, eg_block_8,
#endif
#if EG_MR > 8
    eg_block_9, eg_block_10, eg_block_11, eg_block_12, eg_block_13, eg_block_14,
#endif
};

// Some rows and columns of a product, for rows [first, first + depth) of B: `b` is one panel, from there on.
static void eg_panel(const float* a, eg_index height, eg_index m, eg_index k, eg_index first, eg_index depth,
                     const float* b, eg_index columns, float* c, eg_index step, int add) {
  for (eg_index row = 0; row < m; row += height) {
    const eg_index rows = m - row < height ? m - row : height;
    const float* const from = a + row * k + first * height;
    float* const to = c + row * step;
    if (columns == EG_NR) {
      eg_block_of[rows](height, depth, from, b, to, step, add);
      continue;
    }
    float whole[EG_MR * EG_NR] __attribute__((aligned(64)));
    if (add)
      for (eg_index i = 0; i < rows; ++i) memcpy(whole + i * EG_NR, to + i * step, columns * sizeof(float));
    eg_block_of[rows](height, depth, from, b, whole, EG_NR, add);
    for (eg_index i = 0; i < rows; ++i) memcpy(to + i * step, whole + i * EG_NR, columns * sizeof(float));
  }
}

static void eg_pack_left(const float* a, eg_index row_step, eg_index column_step, eg_index m, eg_index k,
                         eg_index height, float* to) {
  for (eg_index row = 0; row < m; row += height) {
    const eg_index rows = m - row < height ? m - row : height;
    for (eg_index i = 0; i < height; ++i)
      for (eg_index p = 0; p < k; ++p)
        to[p * height + i] = i < rows ? a[(row + i) * row_step + p * column_step] : 0.0f;
    to += k * height;
  }
}

// Rows [first, first + depth) of a panel of `columns` columns.
static void eg_pack_right(const float* b, eg_index row_step, eg_index column_step, eg_index first, eg_index depth,
                          eg_index columns, float* to) {
  b += first * row_step;
  if (column_step == 1) {
    for (eg_index p = 0; p < depth; ++p, to += EG_NR, b += row_step) {
      eg_index j = 0;
      for (; j < columns; ++j) to[j] = b[j];
      for (; j < EG_NR; ++j) to[j] = 0.0f;
    }
    return;
  }
  for (eg_index j = 0; j < EG_NR; ++j)
    for (eg_index p = 0; p < depth; ++p)
      to[p * EG_NR + j] = j < columns ? b[p * row_step + j * column_step] : 0.0f;
}
