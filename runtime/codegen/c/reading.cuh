// The CUDA reading of fused kernels, on top of `language.h` (the C reading is `reading.h`). The threads of a block share
// a row: each has its own columns of the innermost loop, the loops outside of that are walked by all of them alike.
#define EG_OVER(i, n) for (eg_index i = 0; i < (n); ++i) {
#define EG_INNER(j, n, clauses) EG_COLUMNS(j, j##_k, n)
#define EG_INNER_END EG_COLUMNS_END
#define EG_BLOCKS(j, n) { const eg_index j##_count = (n);
#define EG_BLOCK_INNER(j, clauses) EG_COLUMNS(j, j##_k, j##_count)
// The same unrolled, where a thread keeps something of each of its few columns: registers have no places.
#define EG_KEPT_INNER(j, n, clauses) EG_KEPT_COLUMNS(j, j##_k, n)
#define EG_KEPT_BLOCK_INNER(j, clauses) EG_KEPT_COLUMNS(j, j##_k, j##_count)
#define EG_TOTAL(how, T, t) t = eg_row_reduce<EG_TOTAL_##how<T>, T>(t);
#define EG_TOTAL_sum eg_plus
#define EG_TOTAL_product eg_times
#define EG_TOTAL_larger eg_larger
#define EG_TOTAL_smaller eg_smaller
#define EG_PUT_ONCE(p, i, v) do { if (EG_FIRST_COLUMN) EG_PUT_ROW(p, i, v); } while (0)
#define EG_KEPT_SIZE(n) (((n) + EG_BX - 1) / EG_BX)
#define EG_KEPT(p, outer, n, j) p[(outer) * EG_KEPT_SIZE(n) + j##_k]
#define EG_INDEX(i, v, n, fault)                                                                      \
  long long i##_place = (v);                                                                          \
  i##_place += i##_place < 0 ? (n) : 0;                                                               \
  if ((unsigned long long)i##_place >= (unsigned long long)(n)) {                                     \
    EG_ATOMIC_MAX(fault, 0, 1);                                                                       \
    i##_place = 0;                                                                                    \
  }                                                                                                   \
  const eg_index i = (eg_index)i##_place;
// Where nobody is told of an index outside of its axis: what is read there is 0.
#define EG_PLACE(i, v, n, fault)                                                                      \
  long long i##_place = (v);                                                                          \
  i##_place += i##_place < 0 ? (n) : 0;                                                               \
  const bool i##_inside = (unsigned long long)i##_place < (unsigned long long)(n);                    \
  const eg_index i = i##_inside ? (eg_index)i##_place : 0;
#define EG_INSIDE(i) i##_inside
#define EG_SILU(x, s) ((x) * (s))
#define EG_SILUf EG_SILU
