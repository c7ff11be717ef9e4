// Images of `channels` planes of `sizes` (three dimensions) into zeros of `room`, `begins` from the start. Row-major; a
// row of the room holds, for each of `phases`, the columns that are `stride` apart from there on. Windows of a row of
// the result (`line` positions) are `step` apart along `axis` of the room (0 or 1), and reach over `reach` of it.
typedef struct {
  eg_index channels, sizes[3], begins[3], room[3], stride, count;
  const eg_index* phases;
  eg_index axis, line, step, reach;
} eg_padding;

// to[i] = from[i * stride]. What may be read and written: `readable` from `from`, `writable` from `to`.
static void eg_pick(const float* from, eg_index stride, eg_index count, float* to, eg_index readable,
                    eg_index writable) {
  eg_index i = 0;
  if (stride == 1) {
    memcpy(to, from, count * sizeof(float));
    return;
  }
  if (stride == 2)
    for (; i < count && 2 * (i + EG_VL) <= readable && i + EG_VL <= writable; i += EG_VL) {
      const eg_vector* const pair = (const eg_vector*)(from + 2 * i);
      *(eg_vector*)(to + i) = EG_MIXED(pair[0], pair[1], EG_EVEN);
    }
  if (stride == 4)
    for (; i < count && 4 * (i + EG_VL) <= readable && i + EG_VL <= writable; i += EG_VL) {
      const eg_vector* const four = (const eg_vector*)(from + 4 * i);
      const eg_vector low = EG_MIXED(four[0], four[1], EG_EVEN), high = EG_MIXED(four[2], four[3], EG_EVEN);
      *(eg_vector*)(to + i) = EG_MIXED(low, high, EG_EVEN);
    }
  for (; i < count; ++i) to[i] = from[i * stride];
}

// Windows that lie side by side, whole vectors wide (patches): a line of them is a matrix to be turned around.
static int eg_has_patches(const eg_padding* job) {
  const eg_index stride = job->stride;
  return stride == job->count && stride % EG_VL == 0 && !job->begins[2] && job->sizes[2] % stride == 0;
}

// Of one plane what lies at [first, last) along the axis.
static void eg_pad_lines(const eg_padding* job, const float* image, eg_index plane, eg_index first, eg_index last,
                         float* to) {
  const eg_index* const room = job->room;
  const eg_index size = job->sizes[2], width = room[2] / job->count, lines = job->sizes[0] * job->sizes[1];
  const eg_index high = job->axis ? last - first : room[1], rows = job->axis ? high : (last - first) * high;
  const float* const from = image + plane * lines * size;
  float* const end = to + rows * room[2];
  const int patches = eg_has_patches(job);
  for (eg_index row = 0; row < rows; ++row) {
    const eg_index z = job->axis ? 0 : first + row / high, y = job->axis ? first + row : row % high;
    const eg_index d = z - job->begins[0], h = y - job->begins[1], line = d * job->sizes[1] + h;
    const int inside = d >= 0 && d < job->sizes[0] && h >= 0 && h < job->sizes[1];
    if (patches && inside) {
      eg_turned(from + line * size, job->stride, eg_least(size / job->stride, width), job->stride, width, to, width);
      to += room[2];
      continue;
    }
    for (eg_index f = 0; f < job->count; ++f, to += width) {
      // The columns before, before + stride, ... of this line.
      const eg_index begin = job->phases[f] - job->begins[2];
      const eg_index before = eg_least(begin < 0 ? eg_parts_of(-begin, job->stride) : 0, width);
      const eg_index start = begin + before * job->stride;
      eg_index length = 0;
      if (inside && start < size) length = eg_least(eg_parts_of(size - start, job->stride), width - before);
      memset(to, 0, before * sizeof(float));
      if (length)
        eg_pick(from + line * size + start, job->stride, length, to + before, (lines - line) * size - start,
                end - to - before);
      memset(to + before + length, 0, (width - before - length) * sizeof(float));
    }
  }
}
