// What runs kernels: sharing one among threads, products with what follows them, padding, packing.
#include "pool.h"
#include "product.h"

// A fused kernel (`reading.h`) and what it is called with. Pointers whose source is -1 are row buffers: their `base` is
// the place in a thread's room.
typedef void (*eg_kernel)(void* const* pointers, const eg_index* sizes);
#define EG_MOST_POINTERS 96
#define EG_MOST_SIZES 512

typedef struct {
  eg_kernel kernel;
  eg_index pointers, sizes, room;
  const eg_index* buffers;  // of each pointer: 1 for a row buffer
  const eg_index* bases;    // addresses, or places in the room
  const eg_index* steps;    // bytes of each pointer for one trip of the loop that is shared
  const eg_index* values;   // of the sizes
  eg_index split;           // the place among the sizes of the loop that is shared
  eg_index parts, threads;
} eg_launch;

static void eg_call(const eg_launch* launch, void** pointers, const eg_index* sizes) {
  char* const room = launch->room ? eg_room(EG_ROWS, launch->room) : NULL;
  for (eg_index p = 0; p < launch->pointers; ++p)
    if (launch->buffers[p]) pointers[p] = room + launch->bases[p];
  launch->kernel(pointers, sizes);
}

static void eg_part(void* work, eg_index number) {
  const eg_launch* const launch = work;
  void* pointers[EG_MOST_POINTERS];
  eg_index sizes[EG_MOST_SIZES], first = 0;
  memcpy(sizes, launch->values, launch->sizes * sizeof(eg_index));
  if (launch->parts > 1) {
    const eg_index trips = sizes[launch->split];
    first = trips * number / launch->parts;
    sizes[launch->split] = trips * (number + 1) / launch->parts - first;
  }
  for (eg_index p = 0; p < launch->pointers; ++p)
    pointers[p] = (char*)launch->bases[p] + first * launch->steps[p];
  eg_call(launch, pointers, sizes);
}

void eg_run(const eg_launch* launch) { eg_parallel(eg_part, (void*)launch, launch->parts, launch->threads); }

// C = A B for each of `batches`, then (where there is one) a kernel over what was just computed. `table` has a row for
// each batch: bytes that A, B, C and the kernel's pointers are moved by.
typedef struct {
  const char *a, *b;
  char* c;
  eg_index batches, m, n, k;
  const eg_index* table;
  eg_index a_row, a_column, b_row, b_column, c_row;  // elements
  eg_index a_packed, b_packed;                       // these are panels already
  const eg_index *places, *positions;                // not NULL: B[k, n] = b[places[k] + positions[n]]
  eg_index b_elements;                               // of b, which nothing is read beyond
  eg_index whole_rows;                               // the kernel needs all columns at once
  const eg_launch* then;                             // or NULL
  const eg_index *row_steps, *column_steps;          // bytes of its pointers for a row, a column
  eg_index row_size, column_size;                    // the places of both among its sizes, or -1
  eg_index threads;
  eg_index rows, columns, row_tiles, column_tiles, serial;  // set here
} eg_product;

static eg_index eg_least(eg_index a, eg_index b) { return a < b ? a : b; }
static eg_index eg_parts_of(eg_index size, eg_index part) { return (size + part - 1) / part; }

// Rows of a panel of A: evenly, so that the last panel is not nearly empty.
eg_index eg_height(eg_index m) { return m ? eg_parts_of(m, eg_parts_of(m, EG_MR)) : 1; }
eg_index eg_width(void) { return EG_NR; }

// Columns of B out of an image: runs of positions that follow each other there are copied as whole vectors, what such a
// copy writes too much is overwritten by the next run or row.
static void eg_gather(const float* image, eg_index elements, const eg_index* places, const eg_index* positions,
                      eg_index first, eg_index depth, eg_index columns, float* to) {
  eg_index starts[EG_NR], lengths[EG_NR], count = 0;
  for (eg_index j = 0; j < columns; ++j) {
    if (j && positions[j] == positions[j - 1] + 1) {
      ++lengths[count - 1];
    } else {
      starts[count] = j;
      lengths[count++] = 1;
    }
  }
  const int runs = count * 4 <= columns || count == 1;
  const eg_index furthest = positions[columns - 1] + EG_NR;  // positions ascend
  for (eg_index p = first; p < first + depth; ++p, to += EG_NR) {
    const float* const from = image + places[p];
    if (runs && places[p] + furthest <= elements) {
      for (eg_index run = 0; run < count; ++run) {
        const float* const source = from + positions[starts[run]];
        float* const target = to + starts[run];
        for (int v = 0; v < EG_NV; ++v) *(eg_vector*)(target + v * EG_VL) = *(const eg_vector*)(source + v * EG_VL);
      }
    } else {
      for (eg_index j = 0; j < columns; ++j) to[j] = from[positions[j]];
    }
    for (eg_index j = columns; j < EG_NR; ++j) to[j] = 0.0f;
  }
}

static void eg_tile(void* work, eg_index number) {
  const eg_product* const job = work;
  static __thread eg_index packed_serial, packed_tile;  // which rows of A lie in this thread's room
  const eg_index column_tile = number % job->column_tiles, row_tile = number / job->column_tiles % job->row_tiles;
  const eg_index batch = number / job->column_tiles / job->row_tiles;
  const eg_index* const offsets = job->table + batch * (3 + (job->then ? job->then->pointers : 0));
  const eg_index height = eg_height(job->m), row = row_tile * job->rows, column = column_tile * job->columns;
  const eg_index rows = eg_least(job->rows, job->m - row), columns = eg_least(job->columns, job->n - column);
  const float* a = (const float*)(job->a + offsets[0]);
  const float* const b = (const float*)(job->b + offsets[1]);
  float* const c = (float*)(job->c + offsets[2]) + row * job->c_row + column;
  // The last copy of a run goes beyond a panel.
  float* const panel = eg_room(EG_PANELS, (EG_KC * EG_NR + 2 * EG_NR) * sizeof(float));
  // Rows of A that other tiles need too are packed whole and kept for them, else block by block.
  const eg_index kept = job->column_tiles > 1 ? job->k : eg_least(EG_KC, job->k), tile = number / job->column_tiles;
  float* room = NULL;
  if (job->a_packed) {
    a += row * job->k;
  } else {
    a += row * job->a_row;
    room = eg_room(EG_RESULTS, eg_parts_of(rows, height) * height * kept * sizeof(float));
    if (kept == job->k && (packed_serial != job->serial || packed_tile != tile))
      eg_pack_left(a, job->a_row, job->a_column, rows, job->k, height, room);
    packed_serial = job->serial;
    packed_tile = tile;
  }
  for (eg_index first = 0; first < job->k; first += EG_KC) {
    const eg_index depth = eg_least(EG_KC, job->k - first);
    const float* left = a;
    eg_index k = job->k, from_row = first;  // of what `left` holds, and where this block begins there
    if (room) {
      left = room;
      if (kept < job->k) {
        eg_pack_left(a + first * job->a_column, job->a_row, job->a_column, rows, depth, height, room);
        k = depth;
        from_row = 0;
      }
    }
    for (eg_index j = 0; j < columns; j += EG_NR) {
      const eg_index width = eg_least(EG_NR, columns - j);
      const float* from = panel;
      if (job->b_packed)
        from = b + ((column + j) / EG_NR * job->k + first) * EG_NR;
      else if (job->places)
        eg_gather(b, job->b_elements, job->places, job->positions + column + j, first, depth, width, panel);
      else
        eg_pack_right(b + (column + j) * job->b_column, job->b_row, job->b_column, first, depth, width, panel);
      eg_panel(left, height, rows, k, from_row, depth, from, width, c + j, job->c_row, first > 0);
    }
  }
  if (!job->then) return;
  void* pointers[EG_MOST_POINTERS];
  eg_index sizes[EG_MOST_SIZES];
  memcpy(sizes, job->then->values, job->then->sizes * sizeof(eg_index));
  if (job->row_size >= 0) sizes[job->row_size] = rows;
  if (job->column_size >= 0) sizes[job->column_size] = columns;
  for (eg_index p = 0; p < job->then->pointers; ++p)
    pointers[p] = (char*)job->then->bases[p] + offsets[3 + p] + row * job->row_steps[p] + column * job->column_steps[p];
  eg_call(job->then, pointers, sizes);
}

#define EG_TILE_BYTES (1 << 19)  // of C, and of A in one block of rows: half of a second-level cache of 1 MiB
#define EG_TASKS 4               // for each thread, so that one that is held up leaves work to the others

void eg_multiply(eg_product* job) {
  static eg_index serial;
  const eg_index height = eg_height(job->m), panels = eg_parts_of(job->n, EG_NR);
  job->serial = __atomic_add_fetch(&serial, 1, __ATOMIC_RELAXED);
  // As many rows as fit beside each other in the cache in blocks of EG_KC columns.
  eg_index row_panels = EG_TILE_BYTES / (eg_least(EG_KC, job->k) * height * 4);
  if (job->whole_rows) row_panels = eg_least(row_panels, EG_TILE_BYTES / (job->n * height * 4));
  row_panels = eg_least(row_panels > 1 ? row_panels : 1, eg_parts_of(job->m, height));
  if (job->whole_rows && job->threads > 1 && job->batches < job->threads)
    row_panels = eg_least(row_panels, eg_parts_of(eg_parts_of(job->m, height), job->threads));
  job->row_tiles = eg_parts_of(eg_parts_of(job->m, height), row_panels);
  job->rows = eg_parts_of(eg_parts_of(job->m, height), job->row_tiles) * height;  // evenly
  job->row_tiles = eg_parts_of(job->m, job->rows);
  eg_index width = panels;
  // One thread takes all columns of rows that it has to pack.
  if (!job->whole_rows && (job->threads > 1 || job->a_packed)) {
    const eg_index wanted = job->threads > 1 ? job->threads * EG_TASKS : 1;
    const eg_index tiles = eg_parts_of(wanted, job->batches * job->row_tiles);
    width = eg_least(EG_TILE_BYTES / (job->rows * EG_NR * 4), eg_parts_of(panels, tiles));
    width = width > 1 ? width : 1;
    width = eg_parts_of(panels, eg_parts_of(panels, width));
  }
  job->columns = width * EG_NR;
  job->column_tiles = eg_parts_of(panels, width);
  eg_parallel(eg_tile, job, job->batches * job->row_tiles * job->column_tiles, job->threads);
}

// All of A or B as panels.
void eg_pack_a(const float* a, eg_index row_step, eg_index column_step, eg_index m, eg_index k, float* to) {
  eg_pack_left(a, row_step, column_step, m, k, eg_height(m), to);
}

void eg_pack_b(const float* b, eg_index row_step, eg_index column_step, eg_index k, eg_index n, float* to) {
  for (eg_index j = 0; j < n; j += EG_NR, to += k * EG_NR)
    eg_pack_right(b + j * column_step, row_step, column_step, 0, k, eg_least(EG_NR, n - j), to);
}

// Planes of `sizes` (three dimensions) into zeros of `room`, `begins` from the start. Row-major.
typedef struct {
  const float* from;
  float* to;
  eg_index planes, sizes[3], begins[3], room[3], threads;
} eg_padding;

static void eg_pad_plane(void* work, eg_index plane) {
  const eg_padding* const job = work;
  const eg_index* const room = job->room;
  const float* const from = job->from + plane * job->sizes[0] * job->sizes[1] * job->sizes[2];
  float* to = job->to + plane * room[0] * room[1] * room[2];
  for (eg_index z = 0; z < room[0]; ++z)
    for (eg_index y = 0; y < room[1]; ++y, to += room[2]) {
      const eg_index d = z - job->begins[0], h = y - job->begins[1], before = eg_least(job->begins[2], room[2]);
      const eg_index length = eg_least(job->sizes[2], room[2] - before);
      if (d < 0 || d >= job->sizes[0] || h < 0 || h >= job->sizes[1]) {
        memset(to, 0, room[2] * sizeof(float));
        continue;
      }
      memset(to, 0, before * sizeof(float));
      memcpy(to + before, from + (d * job->sizes[1] + h) * job->sizes[2], length * sizeof(float));
      memset(to + before + length, 0, (room[2] - before - length) * sizeof(float));
    }
}

void eg_pad(const eg_padding* job) { eg_parallel(eg_pad_plane, (void*)job, job->planes, job->threads); }
