// Convolutions with windows of 3 x 3, one apart, with 16 products in the place of 36: F(2 x 2, 3 x 3) of Winograd, as in
// Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, 2015 (arXiv 1509.09308). Squares of 2 x 2 results
// are made of squares of 4 x 4 elements of the image, 2 apart: sums of those are multiplied with sums of the weights,
// place by place, which is a matrix product over the channels for each of 16 places; four sums of those are the results.
//
// A result is made of its own window alone, but for infinities: those that cancel out become NaN. So squares of which a
// result is not finite are computed from the weights as they are, one by one.
typedef struct {
  eg_index channels, sizes[2], begins[2], counts[2];
  const float* weights;  // as they are: [map][channel][3][3]
} eg_winograd;

#define EG_PLACES 16

static eg_index eg_deep(eg_index channels) { return eg_parts_of(channels, EG_VL) * EG_VL; }
static eg_index eg_across(const eg_winograd* job) { return eg_parts_of(job->counts[1], 2); }

// Elements of what lies in the memory of a thread, for so many lines of squares: a vector of channels of the image,
// sums of the image, products, results, which squares are computed one by one, and a panel of sums with its products.
typedef struct { eg_index sums, products, results, squares, lifted, all; } eg_winograd_room;

static eg_winograd_room eg_room_of(const eg_winograd* job, eg_index lines) {
  const eg_index across = eg_across(job), squares = across * lines;
  const eg_index height = eg_parts_of(squares, eg_parts_of(squares, EG_MR));
  const eg_index image = (2 * lines + 2) * (2 * across + 2) * EG_VL;
  eg_winograd_room room = {.sums = image};
  room.products = room.sums + EG_PLACES * eg_parts_of(squares, height) * height * eg_deep(job->channels);
  room.results = room.products + EG_PLACES * height * EG_NR;
  // Whole vectors are turned out of the results.
  room.squares = room.results + EG_NV * (2 * lines * job->counts[1] + EG_VL) * EG_VL;
  room.lifted = room.squares + squares;
  room.all = room.lifted + height * (eg_deep(job->channels) + EG_NR);
  return room;
}

// B^T d B for one square of EG_VL channels: `line` is a line of the image further.
EG_INLINE void eg_square_in(const float* from, eg_index line, float* to, eg_index step) {
  eg_vector half[4][4];
#pragma GCC unroll 4
  for (int x = 0; x < 4; ++x) {
    eg_vector d[4];
#pragma GCC unroll 4
    for (int y = 0; y < 4; ++y) d[y] = *(const eg_vector*)(from + y * line + x * EG_VL);
    half[0][x] = d[0] - d[2];
    half[1][x] = d[1] + d[2];
    half[2][x] = d[2] - d[1];
    half[3][x] = d[1] - d[3];
  }
#pragma GCC unroll 4
  for (int y = 0; y < 4; ++y, to += 4 * step) {
    *(eg_vector*)to = half[y][0] - half[y][2];
    *(eg_vector*)(to + step) = half[y][1] + half[y][2];
    *(eg_vector*)(to + 2 * step) = half[y][2] - half[y][1];
    *(eg_vector*)(to + 3 * step) = half[y][1] - half[y][3];
  }
}

// A^T m A for one square of EG_VL maps; `bad` is NaN from then on where a result is not finite.
EG_INLINE void eg_square_out(const float* from, eg_index step, eg_vector found[2][2], eg_vector* bad) {
  eg_vector half[2][4];
#pragma GCC unroll 4
  for (int x = 0; x < 4; ++x) {
    eg_vector m[4];
#pragma GCC unroll 4
    for (int y = 0; y < 4; ++y) m[y] = *(const eg_vector*)(from + (4 * y + x) * step);
    half[0][x] = m[0] + m[1] + m[2];
    half[1][x] = m[1] - m[2] - m[3];
  }
#pragma GCC unroll 2
  for (int y = 0; y < 2; ++y) {
    found[y][0] = half[y][0] + half[y][1] + half[y][2];
    found[y][1] = half[y][1] - half[y][2] - half[y][3];
    *bad += found[y][0] * 0.0f + found[y][1] * 0.0f;
  }
}

#define EG_BLOCKS_AT_A_TIME (128 / EG_VL)  // whose products are added before what others made: errors grow with both

// Products of some squares with a panel of maps at one place, over all channels. Of each square a vector of channels
// follows that of the square before.
EG_INLINE void eg_square_product(const int rows, eg_index height, eg_index blocks, const float* restrict a,
                                 const float* restrict b, float* restrict c) {
  for (eg_index first = 0; first < blocks; first += EG_BLOCKS_AT_A_TIME) {
    const eg_index end = eg_least(first + EG_BLOCKS_AT_A_TIME, blocks);
    eg_vector sums[EG_MR][EG_NV];
#pragma GCC unroll 16
    for (int i = 0; i < rows; ++i)
#pragma GCC unroll 4
      for (int j = 0; j < EG_NV; ++j) sums[i][j] = (eg_vector){0};
    for (eg_index block = first; block < end; ++block, a += (height - 1) * EG_VL)
      for (int p = 0; p < EG_VL; ++p, ++a, b += EG_NR) {
        eg_vector right[EG_NV];
#pragma GCC unroll 4
        for (int j = 0; j < EG_NV; ++j) {
          __builtin_prefetch(b + EG_AHEAD * EG_NR + j * EG_VL);
          right[j] = *(const eg_vector*)(b + j * EG_VL);
        }
#pragma GCC unroll 16
        for (int i = 0; i < rows; ++i)
#pragma GCC unroll 4
          for (int j = 0; j < EG_NV; ++j) sums[i][j] += a[i * EG_VL] * right[j];
      }
#pragma GCC unroll 16
    for (int i = 0; i < rows; ++i)
#pragma GCC unroll 4
      for (int j = 0; j < EG_NV; ++j) {
        eg_vector* const to = (eg_vector*)(c + i * EG_NR + j * EG_VL);
        if (first) sums[i][j] += *to;
        *to = sums[i][j];
      }
  }
}

typedef void (*eg_square_products)(eg_index, eg_index, const float*, const float*, float*);
#define EG_SQUARES_OF(rows)                                                                                          \
  static void eg_squares_##rows(eg_index height, eg_index blocks, const float* a, const float* b, float* c) { \
    eg_square_product(rows, height, blocks, a, b, c);                                                              \
  }
EG_EACH_ROWS(EG_SQUARES_OF)
#define EG_SQUARES(rows) eg_squares_##rows
static const eg_square_products eg_squares_of[EG_MR + 1] = {0, EG_ALL_ROWS(EG_SQUARES)};

// The same where sums may be subnormal, as tiles of other products are computed (`subnormal.h`).
static void eg_squares_lifted(eg_index rows, eg_index height, eg_index deep, const float* left, const float* right,
                              float* to, float* room) {
  float* const more = room + height * deep;
  memcpy(room, left, height * deep * sizeof(float));
  eg_without_subnormal(room, height * deep);
  eg_squares_of[rows](height, deep / EG_VL, room, right, to);
  memcpy(room, left, height * deep * sizeof(float));
  if (!eg_lift(room, height * deep)) return;
  eg_squares_of[rows](height, deep / EG_VL, room, right, more);
  for (eg_index i = 0; i < rows * EG_NR; ++i) to[i] += more[i] * 0x1p-64f;
}

// Whether a number that a window is made of is NaN: so is the result then.
static int eg_has_nan(const eg_winograd* job, const float* image, eg_index top, eg_index left) {
  const eg_index high = job->sizes[0], wide = job->sizes[1];
  for (eg_index channel = 0; channel < job->channels; ++channel)
    for (eg_index row = top > 0 ? top : 0; row < eg_least(top + 3, high); ++row)
      for (eg_index column = left > 0 ? left : 0; column < eg_least(left + 3, wide); ++column) {
        const float number = image[(channel * high + row) * wide + column];
        if (number != number) return 1;
      }
  return 0;
}

// A result for some maps, as it is defined.
static void eg_by_itself(const eg_winograd* job, const float* image, eg_index map, eg_index maps, eg_index y, eg_index x,
                         float* c, eg_index step) {
  const eg_index high = job->sizes[0], wide = job->sizes[1], top = y - job->begins[0], left = x - job->begins[1];
  const int missing = eg_has_nan(job, image, top, left);
  for (eg_index m = 0; m < maps; ++m) {
    double sum = missing ? EG_NAN : 0.0;
    const float* weights = job->weights + (map + m) * job->channels * 9;
    for (eg_index channel = 0; channel < job->channels && !missing; ++channel, weights += 9)
      for (int i = 0; i < 9; ++i) {
        const eg_index row = top + i / 3, column = left + i % 3;
        if (row < 0 || row >= high || column < 0 || column >= wide) continue;
        sum += (double)image[(channel * high + row) * wide + column] * weights[i];
      }
    c[m * step] = (float)sum;
  }
}

// The part of the image that lines [first, first + lines) of squares are made of, as sums.
static void eg_squares_in(const eg_winograd* job, const float* image, eg_index first, eg_index lines, eg_index height,
                          float* memory, const eg_winograd_room* at) {
  const eg_index across = eg_across(job), wide = 2 * across + 2, high = 2 * lines + 2, squares = across * lines;
  const eg_index plane = job->sizes[0] * job->sizes[1], count = high * wide * EG_VL, blocks = eg_deep(job->channels) / EG_VL;
  const eg_index step = eg_parts_of(squares, height) * height * blocks * EG_VL;  // of a place to the next one
  const eg_index start = 2 * first - job->begins[0], top = start > 0 ? start : 0, end = eg_least(start + high, job->sizes[0]);
  memset(memory, 0, count * sizeof(float));
  for (eg_index block = 0; block < blocks; ++block) {
    const eg_index channel = block * EG_VL, channels = eg_least(job->channels - channel, EG_VL);
    if (top < end)
      eg_turn_in(image + channel * plane + top * job->sizes[1], plane, channels, image + job->channels * plane,
                 (end - top) * job->sizes[1], job->sizes[1], wide, memory + ((top - start) * wide + job->begins[1]) * EG_VL);
    for (eg_index square = 0, line = 0; line < lines; ++line)
      for (eg_index x = 0; x < across; ++x, ++square) {
        float* const to = memory + at->sums + (square / height * height * blocks + block * height + square % height) * EG_VL;
        eg_square_in(memory + (2 * line * wide + 2 * x) * EG_VL, wide * EG_VL, to, step);
      }
  }
}

// Results of a panel of maps at squares [first, last): `results` has a vector of maps for each position. Marks squares
// of which one is not finite.
static void eg_squares_out(const eg_winograd* job, const float* products, eg_index step, eg_index first, eg_index last,
                           eg_index positions, float* results, int* apart) {
  const eg_index across = eg_across(job), width = job->counts[1];
  eg_index line = first / across, x = first % across;
  for (eg_index square = first; square < last; ++square, products += EG_NR) {
    eg_vector bad = {0};
    const eg_index place = 2 * line * width + 2 * x;
    const int right = 2 * x + 1 < width, below = place + width < positions;
    for (int j = 0; j < EG_NV; ++j) {
      eg_vector found[2][2];
      eg_square_out(products + j * EG_VL, step, found, &bad);
      float* const to = results + (j * (positions + EG_VL) + place) * EG_VL;
      *(eg_vector*)to = found[0][0];
      if (right) *(eg_vector*)(to + EG_VL) = found[0][1];
      if (below) *(eg_vector*)(to + width * EG_VL) = found[1][0];
      if (right && below) *(eg_vector*)(to + (width + 1) * EG_VL) = found[1][1];
    }
    int fine = 1;
    for (int lane = 0; lane < EG_VL; ++lane) fine &= bad[lane] == 0.0f;
    apart[square] = !fine;
    if (++x == across) {
      x = 0;
      ++line;
    }
  }
}

// Maps [row, row + rows) at positions [column, column + columns), which are whole lines, of squares but for the last
// one. `packed` are sums of the weights (`eg_pack_t`); `row` is where a panel of those begins.
static void eg_transformed(const eg_winograd* job, const float* image, const float* packed, eg_index row, eg_index rows,
                           eg_index column, eg_index columns, float* c, eg_index step, float* memory, eg_index maps) {
  const eg_index width = job->counts[1], lines = eg_parts_of(columns / width, 2), across = eg_across(job);
  const eg_index squares = across * lines, height = eg_parts_of(squares, eg_parts_of(squares, EG_MR));
  const eg_index deep = eg_deep(job->channels), panels = eg_parts_of(squares, height);
  const eg_winograd_room at = eg_room_of(job, lines);
  float *const products = memory + at.products, *const results = memory + at.results;
  const eg_index across_maps = eg_parts_of(maps, EG_NR) * EG_NR;
  int* const apart = (int*)(memory + at.squares);
  eg_squares_in(job, image, column / width / 2, lines, height, memory, &at);
  const int subnormal = eg_has_subnormal(memory + at.sums, EG_PLACES * panels * height * deep);
  for (eg_index map = 0; map < rows; map += EG_NR) {
    const float* const right = packed + (row + map) * deep;
    for (eg_index square = 0; square < squares; square += height) {
      const eg_index count = eg_least(height, squares - square);
      for (int place = 0; place < EG_PLACES; ++place) {
        const float *const left = memory + at.sums + (place * panels * height + square) * deep,
                    *const own = right + place * across_maps * deep;
        float* const to = products + place * height * EG_NR;
        if (subnormal)
          eg_squares_lifted(count, height, deep, left, own, to, memory + at.lifted);
        else
          eg_squares_of[count](height, deep / EG_VL, left, own, to);
      }
      eg_squares_out(job, products, height * EG_NR, square, square + count, columns, results, apart);
    }
    const eg_index count = eg_least(rows - map, EG_NR);
    for (eg_index j = 0; j * EG_VL < count; ++j)
      eg_turn_out(results + j * (columns + EG_VL) * EG_VL, columns, eg_least(count - j * EG_VL, EG_VL),
                  c + (map + j * EG_VL) * step, step);
    for (eg_index square = 0; square < squares; ++square)
      for (eg_index i = 0; apart[square] && i < 4; ++i) {
        const eg_index y = square / across * 2 + i / 2, x = square % across * 2 + i % 2;
        if (x < width && y * width < columns)
          eg_by_itself(job, image, row + map, count, column / width + y, x, c + map * step + y * width + x, step);
      }
  }
}

// G g G^T of all weights as panels of maps for each place.
void eg_pack_t(const float* a, eg_index row_step, eg_index column_step, eg_index m, eg_index k, float* to) {
  static const double factors[4][3] = {{1.0, 0.0, 0.0}, {0.5, 0.5, 0.5}, {0.5, -0.5, 0.5}, {0.0, 0.0, 1.0}};
  const eg_index channels = k / 9, deep = eg_deep(channels), panels = eg_parts_of(m, EG_NR);
  memset(to, 0, EG_PLACES * panels * deep * EG_NR * sizeof(float));
  for (eg_index map = 0; map < m; ++map)
    for (eg_index channel = 0; channel < channels; ++channel)
      for (int place = 0; place < EG_PLACES; ++place) {
        double sum = 0.0;
        for (int i = 0; i < 9; ++i)
          sum += factors[place / 4][i / 3] * factors[place % 4][i % 3] * a[map * row_step + (channel * 9 + i) * column_step];
        to[((place * panels + map / EG_NR) * deep + channel) * EG_NR + map % EG_NR] = (float)sum;
      }
}
