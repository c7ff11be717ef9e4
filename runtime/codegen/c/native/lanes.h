// Windows that slide over the planes of many channels, a channel in each place of a vector: sums of products with weights
// of its own (a depthwise convolution), maxima and means (pools). And planes that are resized: along each axis some places
// are mixed.
//
// Planes are turned around into a room in which the channels of a place lie beside each other, with the padding; so are
// the results when they are done. A window is as cheap wherever it begins then, and planes may be as small as they like.
enum { EG_SUMS, EG_MAXIMA, EG_MEANS, EG_MIXED };

// Sizes are those of three dimensions. `room`: of a plane with its padding.
typedef struct {
  eg_index kind;
  eg_index sizes[3], begins[3], room[3], counts[3], strides[3];
  eg_index axis, reach, whole;  // parts are computed along axis 0 or 1, of which a window reaches over so much; or none
  const eg_index* taps;         // the places of a window's elements in the room
  const float* counted;         // of means: elements of each window
  eg_index mixed[3];            // how many places are mixed along each axis,
  const eg_index* places[3];    // which, for each of `counts`,
  const float* factors[3];      // and by how much; NULL for one place as it is
  eg_index window[2];           // elements of a window along the last two axes, where they follow each other; or zeros
} eg_lanes;

static eg_index eg_plane(const eg_lanes* job) { return job->sizes[0] * job->sizes[1] * job->sizes[2]; }

// Vectors that a line of windows along the axis needs: of the room, of the result before and after it is turned.
static eg_index eg_line_of(const eg_lanes* job) {
  const eg_index across = job->axis ? 1 : job->room[1], lines = job->axis ? 1 : job->counts[1];
  return job->strides[job->axis] * across * job->room[2] + 2 * lines * job->counts[2];
}

static eg_index eg_reached(const eg_lanes* job, eg_index windows) {
  const eg_index last = (windows - 1) * job->strides[job->axis] + job->reach;
  return windows == job->counts[job->axis] ? job->room[job->axis] : eg_least(last, job->room[job->axis]);
}

// The places of the axis that results [first, first + count) are mixed from: the first one, and how many.
static eg_index eg_mixed_from(const eg_lanes* job, eg_index first, eg_index count, eg_index* length) {
  const eg_index* const places = job->places[job->axis] + first * job->mixed[job->axis];
  eg_index low = places[0], high = low;
  for (eg_index i = 1; i < count * job->mixed[job->axis]; ++i) {
    low = eg_least(low, places[i]);
    high = places[i] > high ? places[i] : high;
  }
  *length = high + 1 - low;
  return low;
}

// Elements of the room for so many windows along the axis, and of their results.
static eg_index eg_windows_room(const eg_lanes* job, eg_index windows, eg_index columns) {
  const eg_index across = job->axis ? job->room[0] : job->room[1], count = job->counts[job->axis];
  eg_index length = eg_reached(job, windows), line = 0;
  if (job->kind == EG_MIXED) {
    line = job->room[2];
    length = 0;
    for (eg_index first = 0; first < count; first += windows) {
      eg_index own;
      eg_mixed_from(job, first, eg_least(windows, count - first), &own);
      length = own > length ? own : length;
    }
  }
  return (length * across * job->room[2] + line + columns + EG_VL) * EG_VL;
}

// Rows of `line` elements of some channels; rows of the room are `apart` vectors apart. Nothing is read from `end` on.
static void eg_turn_in(const float* from, eg_index plane, eg_index channels, const float* end, eg_index length,
                       eg_index line, eg_index apart, float* to) {
  eg_index x = 0;
  for (eg_index p = 0; p < length; p += EG_VL) {
    eg_vector v[EG_VL];
    const eg_index count = eg_least(length - p, EG_VL);
    if (channels == EG_VL && from + (EG_VL - 1) * plane + p + EG_VL <= end) {
#pragma GCC unroll 16
      for (int i = 0; i < EG_VL; ++i) v[i] = *(const eg_vector*)(from + i * plane + p);
    } else {
      for (int i = 0; i < EG_VL; ++i) {
        v[i] = (eg_vector){0};
        if (i < channels) memcpy(&v[i], from + i * plane + p, count * sizeof(float));
      }
    }
    eg_turn(v);
    for (eg_index i = 0; i < count; ++i, to += EG_VL) {
      *(eg_vector*)to = v[i];
      if (++x == line) {
        x = 0;
        to += (apart - line) * EG_VL;
      }
    }
  }
}

static void eg_turn_out(const float* from, eg_index count, eg_index channels, float* to, eg_index step) {
  for (eg_index p = 0; p < count; p += EG_VL) {
    eg_vector v[EG_VL];
#pragma GCC unroll 16
    for (int i = 0; i < EG_VL; ++i) v[i] = *(const eg_vector*)(from + (p + i) * EG_VL);
    eg_turn(v);
    const eg_index left = eg_least(count - p, EG_VL);
    if (left == EG_VL)
      for (eg_index i = 0; i < channels; ++i) *(eg_vector*)(to + i * step + p) = v[i];
    else
      for (eg_index i = 0; i < channels; ++i) memcpy(to + i * step + p, &v[i], left * sizeof(float));
  }
}

// What lies at [first, last) of the axis of the room.
static void eg_lanes_in(const eg_lanes* job, const float* image, const float* end, eg_index channels, eg_index first,
                        eg_index last, float* to) {
  const eg_index *const sizes = job->sizes, *const begins = job->begins, along = job->axis;
  const eg_index low[2] = {along ? 0 : first, along ? first : 0};
  const eg_index high[2] = {along ? job->room[0] : last, along ? last : job->room[1]};
  const eg_index top = low[1] > begins[1] ? low[1] : begins[1], bottom = eg_least(high[1], begins[1] + sizes[1]);
  if (top >= bottom) return;
  for (eg_index z = low[0]; z < high[0]; ++z) {
    const eg_index plane = z - begins[0];
    if (plane < 0 || plane >= sizes[0]) continue;
    const eg_index place = ((z - low[0]) * (high[1] - low[1]) + top - low[1]) * job->room[2] + begins[2];
    eg_turn_in(image + (plane * sizes[1] + top - begins[1]) * sizes[2], eg_plane(job), channels, end,
               (bottom - top) * sizes[2], sizes[2], job->room[2], to + place * EG_VL);
  }
}

// NaN wins.
EG_INLINE eg_vector eg_larger_of(eg_vector a, eg_vector b) {
  const __typeof__(a > b) first = (a > b) | (a != a);
  return (eg_vector)(((__typeof__(first))a & first) | ((__typeof__(first))b & ~first));
}

EG_INLINE void eg_slide(const int kind, const int width, const float* image, const eg_index* taps, eg_index k,
                        const float* weights, eg_index step, float* to) {
  eg_vector found[EG_MR];
  const float* from = image + taps[0] * EG_VL;
#pragma GCC unroll 16
  for (int j = 0; j < width; ++j) {
    found[j] = *(const eg_vector*)(from + j * step);
    if (kind == EG_SUMS) found[j] = eg_fused(found[j], *(const eg_vector*)weights, (eg_vector){0});  // of zeros it is 0.0
  }
  for (eg_index p = 1; p < k; ++p) {
    from = image + taps[p] * EG_VL;
    const eg_vector weight = kind == EG_SUMS ? *(const eg_vector*)(weights + p * EG_VL) : (eg_vector){0};
#pragma GCC unroll 16
    for (int j = 0; j < width; ++j) {
      const eg_vector x = *(const eg_vector*)(from + j * step);
      if (kind == EG_SUMS)
        found[j] = eg_fused(weight, x, found[j]);
      else if (kind == EG_MEANS)
        found[j] += x;
      else
        found[j] = eg_larger_of(found[j], x);
    }
  }
#pragma GCC unroll 16
  for (int j = 0; j < width; ++j) *(eg_vector*)(to + j * EG_VL) = found[j];
}

typedef void (*eg_slides)(const float*, const eg_index*, eg_index, const float*, eg_index, float*);
#define EG_SLIDE(kind, width)                                                                                     \
  static void eg_slide_##kind##_##width(const float* image, const eg_index* taps, eg_index k, const float* weights, \
                                        eg_index step, float* to) {                                               \
    eg_slide(kind, width, image, taps, k, weights, step, to);                                                     \
  }
#define EG_SLIDES(width) EG_SLIDE(0, width) EG_SLIDE(1, width) EG_SLIDE(2, width)
#define EG_ALL_KINDS(width) {eg_slide_0_##width, eg_slide_1_##width, eg_slide_2_##width}
EG_EACH_ROWS(EG_SLIDES)
static const eg_slides eg_slide_of[EG_MR + 1][3] = {{0}, EG_ALL_ROWS(EG_ALL_KINDS)};

// The results of some windows of EG_VL channels, at `to`, from a room whose first line is that of the first window.
static void eg_slide_lines(const eg_lanes* job, const float* room, eg_index windows, const float* weights, eg_index k,
                           float* to) {
  const eg_index *const strides = job->strides, width = job->counts[2], parts = eg_parts_of(width, EG_MR);
  const eg_index deep = job->axis ? job->counts[0] : windows, lines = job->axis ? windows : job->counts[1];
  const eg_index high = job->axis ? eg_reached(job, windows) : job->room[1];
  for (eg_index z = 0; z < deep; ++z)
    for (eg_index y = 0; y < lines; ++y) {
      const float* const line = room + (z * strides[0] * high + y * strides[1]) * job->room[2] * EG_VL;
      for (eg_index part = 0; part < parts; ++part) {
        const eg_index x = width * part / parts, count = width * (part + 1) / parts - x;
        eg_slide_of[count][job->kind](line + x * strides[2] * EG_VL, job->taps, k, weights, strides[2] * EG_VL, to);
        to += count * EG_VL;
      }
    }
}

// A product that is rounded before it is added: by chance sums of rounded numbers are zeros, which have no other sign then.
#if defined(__x86_64__) || defined(__i386__)
#define EG_ROUNDED(vector) __asm__("" : "+x"(vector))
#elif defined(__aarch64__)
#define EG_ROUNDED(vector) __asm__("" : "+w"(vector))
#else
#define EG_ROUNDED(vector) (void)(vector)
#endif

EG_INLINE void eg_mix(eg_index taps, const float* from, const eg_index* places, const float* factors, float* to) {
  eg_vector sum = *(const eg_vector*)(from + places[0] * EG_VL);
  if (factors) sum *= factors[0];
  EG_ROUNDED(sum);
  for (eg_index t = 1; t < taps; ++t) {
    eg_vector own = factors[t] * *(const eg_vector*)(from + places[t] * EG_VL);
    EG_ROUNDED(own);
    sum += own;
  }
  *(eg_vector*)to = sum;
}

// A line of the room that is mixed along the first two axes: `z` and `y` are those of the result.
static const float* eg_mixed_line(const eg_lanes* job, const float* room, eg_index high, eg_index low, eg_index z,
                                  eg_index y, float* line) {
  const eg_index taps[2] = {job->mixed[0], job->mixed[1]}, width = job->room[2];
  const eg_index *const deep = job->places[0] + z * taps[0], *const lines = job->places[1] + y * taps[1];
  for (eg_index i = 0; i < taps[0]; ++i)
    for (eg_index j = 0; j < taps[1]; ++j) {
      const eg_index place = job->axis ? deep[i] * high + lines[j] - low : (deep[i] - low) * high + lines[j];
      const float* const from = room + place * width * EG_VL;
      if (!job->factors[0] && !job->factors[1]) return from;
      const float factor = (job->factors[0] ? job->factors[0][z * taps[0] + i] : 1.0f) *
                           (job->factors[1] ? job->factors[1][y * taps[1] + j] : 1.0f);
      for (eg_index x = 0; x < width; ++x) {
        eg_vector own = factor * *(const eg_vector*)(from + x * EG_VL);
        EG_ROUNDED(own);
        if (i + j) own += *(const eg_vector*)(line + x * EG_VL);
        *(eg_vector*)(line + x * EG_VL) = own;
      }
    }
  return line;
}

static void eg_mixed_lines(const eg_lanes* job, const float* room, eg_index high, eg_index low, eg_index first,
                           eg_index windows, float* line, float* to) {
  const eg_index taps = job->mixed[2], width = job->counts[2];
  for (eg_index z = 0; z < (job->axis ? job->counts[0] : windows); ++z)
    for (eg_index y = 0; y < (job->axis ? windows : job->counts[1]); ++y) {
      const float* const from = eg_mixed_line(job, room, high, low, job->axis ? z : first + z,
                                              job->axis ? first + y : y, line);
      for (eg_index x = 0; x < width; ++x, to += EG_VL)
        if (taps == 2)
          eg_mix(2, from, job->places[2] + 2 * x, job->factors[2] + 2 * x, to);
        else
          eg_mix(taps, from, job->places[2] + taps * x, job->factors[2] ? job->factors[2] + taps * x : 0, to);
    }
}

// Results of `rows` channels at [column, column + columns): whole lines along the axis.
static void eg_slid(const eg_lanes* job, const float* image, const float* end, eg_index rows, const float* weights,
                    eg_index k, eg_index column, eg_index columns, float* c, eg_index step, float* room) {
  const eg_index line = job->axis ? job->counts[2] : job->counts[1] * job->counts[2], windows = columns / line;
  const int mixed = job->kind == EG_MIXED;
  eg_index first = column / line * job->strides[job->axis], length = eg_reached(job, windows);
  if (mixed) first = eg_mixed_from(job, column / line, windows, &length);
  const eg_index elements = length * (job->axis ? job->room[0] : job->room[1]) * job->room[2] * EG_VL;
  const float fill = job->kind == EG_MAXIMA ? -__builtin_inff() : 0.0f;
  float *const mixing = room + elements, *const to = mixing + (mixed ? job->room[2] * EG_VL : 0);
  if (!mixed)
    for (eg_index i = 0; i < elements; ++i) room[i] = fill;
  for (eg_index row = 0; row < rows; row += EG_VL) {
    const eg_index channels = eg_least(rows - row, EG_VL);
    eg_lanes_in(job, image + row * eg_plane(job), end, channels, first, first + length, room);
    if (mixed)
      eg_mixed_lines(job, room, job->axis ? length : job->room[1], first, column / line, windows, mixing, to);
    else
      eg_slide_lines(job, room, windows, weights + row * k, k, to);
    if (job->kind == EG_MEANS)
      for (eg_index i = 0; i < columns; ++i) *(eg_vector*)(to + i * EG_VL) /= job->counted[column + i];
    eg_turn_out(to, columns, channels, c + row * step, step);
  }
}
