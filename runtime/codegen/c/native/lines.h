// Sums of windows that slide over planes of long lines, a place of a line in each place of a vector: nothing is turned
// around (`lanes.h`). Lines are copied with their padding, one plane at a time; where windows are two places apart, the
// even ones before the odd ones. Sums are in the order of a window's elements, as those of lanes are.
#define EG_HIGH (EG_VL == 16 ? 4 : 2)  // lines of results that are computed together
#define EG_LONG 4                      // vectors of them, at most
#define EG_FEW_ELEMENTS 9              // of a window: beside more, only long lines of tall windows are worth it

// Whether lines are long enough: several vectors, of which at most a quarter is empty.
static int eg_by_lines(const eg_lanes* job) {
  const eg_index vectors = eg_parts_of(job->counts[2], EG_VL);
  const int few = job->window[0] * job->window[1] <= EG_FEW_ELEMENTS;
  return job->kind == EG_SUMS && job->window[0] && job->room[0] == 1 && job->strides[1] <= 2 && job->strides[2] <= 2 &&
         vectors >= (few ? 2 : EG_LONG) && (few || job->window[0] > 1) && 4 * job->counts[2] >= 3 * vectors * EG_VL;
}

eg_index eg_is_by_lines(const eg_lanes* job) { return eg_by_lines(job); }

// A line of the room: the places of each phase (one, or even and odd ones) follow each other, and begin so that what is
// copied does at a line of the cache. Elements before a phase's places, and where it ends.
static eg_index eg_before_phase(const eg_lanes* job, eg_index phase) {
  const eg_index stride = job->strides[2], zeros = (job->begins[2] + stride - 1 - phase) / stride;
  return eg_parts_of(zeros, EG_VL) * EG_VL - zeros;
}

static eg_index eg_phase_room(const eg_lanes* job, eg_index phase) {
  return eg_parts_of(eg_before_phase(job, phase) + eg_parts_of(job->room[2], job->strides[2]), EG_VL) * EG_VL;
}

static eg_index eg_phase_at(const eg_lanes* job, eg_index phase) {
  return eg_before_phase(job, phase) + (phase ? eg_phase_room(job, 0) : 0);
}

static eg_index eg_line_room(const eg_lanes* job) {
  return eg_phase_room(job, 0) + (job->strides[2] == 2 ? eg_phase_room(job, 1) : 0);
}

// Elements of the room for so many windows along the axis.
static eg_index eg_lines_room(const eg_lanes* job, eg_index windows) {
  return eg_reached(job, windows) * eg_line_room(job) + EG_VL;
}

// `high` lines of `vectors` whole vectors, of the last one only `some` elements. `even` and `odd`: places of the room
// (those of a phase), whose lines have `line` elements.
EG_INLINE void eg_line_block(const eg_index tall, const eg_index wide, const eg_index down, const eg_index right,
                             const int high, const int vectors, const float* even, const float* odd, eg_index line,
                             const float* weights, float* to, eg_index step, eg_index some) {
  eg_vector sums[EG_HIGH][EG_LONG];
#pragma GCC unroll 4
  for (int i = 0; i < high; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) sums[i][v] = (eg_vector){0};
#pragma GCC unroll 16
  for (eg_index row = 0; row < (high - 1) * down + tall; ++row)
#pragma GCC unroll 4
    for (eg_index tap = 0; tap < wide; ++tap) {
      const float* const from = row * line + (right == 1 ? even + tap : (tap % 2 ? odd : even) + tap / 2);
      eg_vector x[EG_LONG];
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) x[v] = *(const eg_vector*)(from + v * EG_VL);
#pragma GCC unroll 4
      for (int i = 0; i < high; ++i) {
        const eg_index own = row - i * down;
        if (own < 0 || own >= tall) continue;
        const float weight = weights[(own * wide + tap) * EG_VL];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v) sums[i][v] = eg_fused(EG_ALL(weight), x[v], sums[i][v]);
      }
    }
#pragma GCC unroll 4
  for (int i = 0; i < high; ++i, to += step) {
#pragma GCC unroll 4
    for (int v = 0; v < vectors - 1; ++v) *(eg_vector*)(to + v * EG_VL) = sums[i][v];
    if (some == EG_VL)
      *(eg_vector*)(to + (vectors - 1) * EG_VL) = sums[i][vectors - 1];
    else
      eg_put_some(to + (vectors - 1) * EG_VL, sums[i][vectors - 1], some);
  }
}

typedef void (*eg_line_blocks)(const eg_lanes*, const float*, const float*, eg_index, const float*, float*, eg_index,
                               eg_index);
#define EG_LINES(name, tall, wide, down, right, high, vectors)                                                    \
  static void eg_##name##vectors(const eg_lanes* job, const float* even, const float* odd, eg_index line,         \
                                 const float* weights, float* to, eg_index step, eg_index some) {                 \
    eg_line_block(tall, wide, down, right, high, vectors, even, odd, line, weights, to, step, some);              \
  }
#define EG_LINES_OF(name, tall, wide, down, right, high)                                              \
  EG_LINES(name, tall, wide, down, right, high, 1) EG_LINES(name, tall, wide, down, right, high, 2)   \
  EG_LINES(name, tall, wide, down, right, high, 3) EG_LINES(name, tall, wide, down, right, high, 4)   \
  static const eg_line_blocks eg_##name[EG_LONG + 1] = {0, eg_##name##1, eg_##name##2, eg_##name##3, eg_##name##4};
#define EG_ALL_LINES(name, tall, wide, down, right)          \
  EG_LINES_OF(one_##name, tall, wide, down, right, 1)        \
  EG_LINES_OF(some_##name, tall, wide, down, right, EG_HIGH) \
  static const eg_line_blocks* const eg_##name[] = {eg_one_##name, eg_some_##name};
EG_ALL_LINES(threes, 3, 3, 1, 1)
EG_ALL_LINES(threes_apart, 3, 3, 2, 2)
EG_ALL_LINES(others, job->window[0], job->window[1], job->strides[1], 1)
EG_ALL_LINES(others_apart, job->window[0], job->window[1], job->strides[1], 2)

static const eg_line_blocks* eg_line_blocks_of(const eg_lanes* job, int high) {
  const int threes = job->window[0] == 3 && job->window[1] == 3 && job->strides[1] == job->strides[2];
  if (job->strides[2] == 1) return threes ? eg_threes[high] : eg_others[high];
  return threes ? eg_threes_apart[high] : eg_others_apart[high];
}

EG_INLINE eg_vector eg_of_line(const float* from, eg_index count) {
  return count >= EG_VL ? *(const eg_vector*)from : count > 0 ? eg_some(from, count) : (eg_vector){0};
}

EG_INLINE void eg_to_line(float* to, eg_vector from, eg_index count) {
  if (count >= EG_VL)
    *(eg_vector*)to = from;
  else if (count > 0)
    eg_put_some(to, from, count);
}

// A line as it is; or its even places to `to` and the odd ones to `odd`.
EG_INLINE void eg_copy_line(const float* from, eg_index size, float* to, float* odd) {
  if (!odd)
    for (eg_index i = 0; i < size; i += EG_VL) eg_to_line(to + i, eg_of_line(from + i, size - i), size - i);
  else
    for (eg_index i = 0; i < size; i += 2 * EG_VL) {
      const eg_vector low = eg_of_line(from + i, size - i), high = eg_of_line(from + i + EG_VL, size - i - EG_VL);
      eg_to_line(to + i / 2, EG_MIXED(low, high, EG_EVEN), (size - i + 1) / 2);
      eg_to_line(odd + i / 2, EG_MIXED(low, high, EG_ODD), (size - i) / 2);
    }
}

// Lines [first, first + length) of a padded plane. What is around them is zero already.
static void eg_lines_in(const eg_lanes* job, const float* image, eg_index first, eg_index length, float* room) {
  const eg_index size = job->sizes[2], before = job->begins[2], apart = job->strides[2], line = eg_line_room(job);
  float* const to = room + eg_phase_at(job, before % apart) + before / apart;  // where the first place of a line goes
  float* const odd = apart == 2 ? room + eg_phase_at(job, 1 - before % 2) + (before + 1) / 2 : NULL;
  for (eg_index i = 0; i < length; ++i) {
    const eg_index own = first + i - job->begins[1];
    if (own >= 0 && own < job->sizes[1])
      eg_copy_line(image + own * size, size, to + i * line, odd ? odd + i * line : NULL);
  }
}

// Results of `rows` planes at [column, column + columns), whole lines, as `eg_slid` has them. Planes lie `plane`
// apart, and the first one is number `begin` of those that the weights are for.
static void eg_slid_by_lines(const eg_lanes* job, const float* image, eg_index plane, eg_index begin, eg_index rows,
                             const float* weights, eg_index k, eg_index column, eg_index columns, float* c,
                             eg_index step, float* room) {
  const eg_index width = job->counts[2], lines = columns / width, line = eg_line_room(job), down = job->strides[1];
  const eg_index first = column / width * down, length = eg_reached(job, lines), vectors = eg_parts_of(width, EG_VL);
  const float *const even = room + eg_phase_at(job, 0), *const odd = room + eg_phase_at(job, 1);
  memset(room, 0, eg_lines_room(job, lines) * sizeof(float));
  for (eg_index row = 0; row < rows; ++row, c += step) {
    const float* const own = weights + (begin + row) / EG_VL * EG_VL * k + (begin + row) % EG_VL;
    eg_lines_in(job, image + row * plane, first, length, room);
    for (eg_index y = 0, high; y < lines; y += high) {
      high = lines - y < EG_HIGH ? 1 : EG_HIGH;
      const eg_line_blocks* const block = eg_line_blocks_of(job, high > 1);
      for (eg_index v = 0, count; v < vectors; v += count) {
        count = eg_least(vectors - v, EG_LONG);
        const eg_index some = v + count < vectors ? EG_VL : width - (vectors - 1) * EG_VL;
        const eg_index at = y * down * line + v * EG_VL;
        block[count](job, even + at, odd + at, line, own, c + y * width + v * EG_VL, width, some);
      }
    }
  }
}
