// What runs kernels: sharing one among threads, products with what follows them, padding, packing.
#include "pool.h"
#include "product.h"
#include "lanes.h"
#include "subnormal.h"
#include "padding.h"
#include "winograd.h"

// A fused kernel (`reading.h`) and what it is called with. Pointers whose source is -1 are row buffers: their `base` is
// the place in a thread's room.
typedef void (*eg_kernel)(void* const* pointers, const eg_index* sizes);

// What a pointer reads across memory: element `batch * i + j + step * k` is that of row `i * rows + j`, at column `k`.
// `trips` of the loop that is shared belong to a row; `at_once` rows are turned around, to `at` in a thread's room.
typedef struct {
  eg_index pointer, batches, batch, rows, columns, step, trips, at_once, at;
} eg_turning;

enum { EG_TENSOR, EG_BUFFER, EG_CHAINED };
#define EG_MOST_POINTERS 96
#define EG_MOST_SIZES 512

typedef struct {
  eg_kernel kernel;
  eg_index pointers, sizes, room;
  const eg_index* buffers;  // of each pointer: EG_BUFFER for a row buffer, EG_CHAINED for what only a tile has
  const eg_index* bases;    // addresses, or places in the room
  const eg_index* steps;    // bytes of each pointer for one trip of the loop that is shared
  const eg_index* values;   // of the sizes
  eg_index split;           // the place among the sizes of the loop that is shared
  eg_index parts, threads;
  char* memory;             // `room` bytes for each of the threads; unused behind a product
  const eg_turning* turned;
  eg_index turnings;
} eg_launch;

static void eg_call(const eg_launch* launch, void** pointers, const eg_index* sizes, char* room) {
  for (eg_index p = 0; p < launch->pointers; ++p)
    if (launch->buffers[p] == EG_BUFFER) pointers[p] = room + launch->bases[p];
  launch->kernel(pointers, sizes);
}

// A part of the rows, some at a time, with what is read across memory turned around before.
static void eg_rows_in_turn(const eg_launch* launch, eg_index number) {
  const eg_turning* const first = launch->turned;
  const eg_index all = first->batches * first->rows, end = all * (number + 1) / launch->parts;
  char* const room = launch->memory + eg_self * launch->room;
  eg_index sizes[EG_MOST_SIZES], count;
  memcpy(sizes, launch->values, launch->sizes * sizeof(eg_index));
  for (eg_index row = all * number / launch->parts; row < end; row += count) {
    const eg_index inside = row % first->rows;
    count = eg_least(eg_least(first->at_once, first->rows - inside), end - row);
    void* pointers[EG_MOST_POINTERS];
    for (eg_index p = 0; p < launch->pointers; ++p)
      pointers[p] = (char*)launch->bases[p] + row * first->trips * launch->steps[p];
    for (const eg_turning* each = first; each < first + launch->turnings; ++each) {
      const float* const from = (const float*)launch->bases[each->pointer] + row / first->rows * each->batch + inside;
      pointers[each->pointer] = room + each->at;
      eg_turned(from, each->step, each->columns, count, each->columns, pointers[each->pointer], each->columns);
    }
    sizes[launch->split] = count * first->trips;
    eg_call(launch, pointers, sizes, room);
  }
}

static void eg_part(void* work, eg_index number) {
  const eg_launch* const launch = work;
  if (launch->turnings) {
    eg_rows_in_turn(launch, number);
    return;
  }
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
  eg_call(launch, pointers, sizes, launch->memory + eg_self * launch->room);
}

void eg_run(const eg_launch* launch) { eg_parallel(eg_part, (void*)launch, launch->parts, launch->threads); }

// C = A B for each of `batches`, then (where there is one) a kernel over what was just computed. `table` has a row for
// each batch: bytes that A, B, C and the kernel's pointers are moved by. `turned`: what lies `c_step` apart in C are
// its columns; tiles are turned around when they are done.
typedef struct eg_product {
  const char *a, *b;
  char* c;
  eg_index batches, m, n, k;
  const eg_index* table;
  eg_index a_row, a_column, b_row, b_column, c_step;   // elements
  eg_index a_packed, b_packed;                         // these are panels already
  eg_index turned;
  eg_index plain;                                      // a packed operand is finite, with nothing subnormal
  // Not NULL: B[k, n] = b[places[k] + positions[n]]; or A[m, k] = a[places[k] + positions[m]] if C is turned.
  const eg_index *places, *positions;
  eg_index elements;                                   // of such an image, which nothing is read beyond
  eg_index run;                                        // positions that follow each other
  const eg_padding* padding;                           // what each tile does to its part of b before, or NULL
  const eg_lanes* lanes;  // not NULL: row m of C are windows over plane m of b, row m of A their weights
  const eg_winograd* winograd;  // not NULL: A are the sums of weights that it needs
  eg_index whole_rows;                                 // the kernel needs all columns at once
  const eg_launch* then;                               // or NULL
  const eg_index *row_steps, *column_steps;            // bytes of its pointers for a row, a column
  eg_index row_size, column_size;                      // the places of both among its sizes, or -1
  struct eg_product* before;                           // not NULL: b is what it makes, some planes at a time (`chain.h`)
  eg_index threads;
  char* memory;                                        // as `eg_plan` says
  eg_index rows, columns, row_tiles, column_tiles, serial;  // set here and below
  eg_index left_at, turned_at, buffers_at, image_at, room;  // bytes: where things lie in the memory of a thread
  eg_index band;                                       // elements of a channel that a tile pads at most
  eg_index given, height;                              // A is read as it lies; so many rows of it at a time
  eg_index chained_at, before_at;                      // bytes: where that lies, and what the product before needs
  eg_index kept;                                       // packed rows of A are kept for the tiles beside, else block by block
  eg_index across;                                     // B is read as it lies: the step of its rows; else 0
} eg_product;

// A part of C that one thread computes: where it is, and what it is made of.
typedef struct {
  eg_index number, row, rows, column, columns, height;
  const float *a, *b;
  float* c;
  eg_index step;  // of the rows of c
  const eg_index* places;
  eg_index elements;
  // Subnormal numbers: where it is told that A or B has some (or NULL), of which of both only they are meant (or none),
  // and where it is told that the other one is not as it has to be then.
  int *subnormal, lifted, *unfit;
  int again;  // it is computed once more: rows of A that are packed now are not for other tiles
  eg_index given;  // the step of A's rows where these are read as they lie, else 0
  eg_index across;  // the same of B
  eg_index plane;  // of windows: how far apart the planes of b lie
  float* apart;  // not NULL: where rows of A are packed, which else are read as they lie
} eg_tile;
enum { EG_LEFT, EG_RIGHT, EG_NEITHER };

#define EG_SLACK (2 * EG_NR)  // elements that copies of whole vectors may write beyond the last panel

static void eg_look(const eg_tile* tile, int side, float* packed, eg_index count) {
  if (tile->lifted == side)
    tile->subnormal[side] = eg_lift(packed, count);
  else if (tile->lifted != EG_NEITHER)
    *tile->unfit |= !eg_is_plain(packed, count);
  else if (tile->subnormal && eg_has_subnormal(packed, count)) {
    tile->subnormal[side] = 1;
    eg_without_subnormal(packed, count);
  }
}

// Rows [first, first + depth) of k of the tile's A as panels.
static void eg_left(const eg_product* job, const eg_tile* tile, eg_index first, eg_index depth, float* room) {
  if (!job->turned) {
    eg_pack_left(tile->a + first * job->a_column, job->a_row, job->a_column, tile->rows, depth, tile->height, room);
    eg_look(tile, EG_LEFT, room, eg_parts_of(tile->rows, tile->height) * tile->height * depth);
    return;
  }
  float* const start = room;
  for (eg_index row = 0; row < tile->rows; row += tile->height, room += depth * tile->height) {
    const eg_index rows = eg_least(tile->height, tile->rows - row);
    const eg_index *const places = tile->places + first, *const positions = job->positions + tile->row + row;
    if (tile->height <= EG_VL)
      eg_gather(1, tile->a, tile->elements, places, positions, depth, rows, tile->height, room);
    else
      eg_gather(EG_NV, tile->a, tile->elements, places, positions, depth, rows, tile->height, room);
  }
  eg_look(tile, EG_LEFT, start, room - start);
}

// Panel `j` of the tile's B, rows [first, first + depth).
static const float* eg_right(const eg_product* job, const eg_tile* tile, eg_index j, eg_index first, eg_index depth,
                             float* panel) {
  const eg_index column = tile->column + j, width = eg_least(EG_NR, tile->columns - j);
  if (job->b_packed) return tile->b + (column / EG_NR * job->k + first) * EG_NR;
  if (job->places && !job->turned)
    eg_gather(EG_NV, tile->b, tile->elements, tile->places + first, job->positions + column, depth, width, EG_NR,
              panel);
  else
    eg_pack_right(tile->b + column * job->b_column, job->b_row, job->b_column, first, depth, width, panel);
  eg_look(tile, EG_RIGHT, panel, depth * EG_NR);
  return panel;
}

#define EG_ASKING 4  // panels of A: beside fewer, asking costs more than it brings

// What the panel after that is packed from, where its rows can be asked for: elements of them that follow each other.
static eg_wanted eg_after(const eg_product* job, const eg_tile* tile, eg_index j, eg_index first, eg_index depth) {
  const eg_wanted none = {NULL};
  const int last = j + EG_NR >= tile->columns;  // of this block
  j = last ? 0 : j + EG_NR;
  first += last ? depth : 0;
  if (job->b_packed || job->turned || job->padding || first >= job->k) return none;
  if (tile->rows < EG_ASKING * tile->height) return none;
  const eg_index columns = eg_least(EG_NR, tile->columns - j), column = tile->column + j;
  depth = eg_least(depth, job->k - first);
  if (!job->places)
    return job->b_column == 1 ? (eg_wanted){tile->b + column + first * job->b_row, NULL, job->b_row, depth, columns} : none;
  const eg_index* const positions = job->positions + column;
  if (positions[columns - 1] - positions[0] != columns - 1) return none;
  return (eg_wanted){tile->b + positions[0], tile->places + first, 0, depth, columns};
}

static eg_index eg_bytes(eg_index bytes) { return (bytes + 63) / 64 * 64; }  // whole lines of the cache
static eg_index eg_lines(eg_index floats) { return (floats * (eg_index)sizeof(float) + 63) / 64 * 64; }

// A place in the memory of this thread.
static char* eg_own(const eg_product* job, eg_index at) { return job->memory + eg_self * job->room + at; }

// The beginning of rows [first, ...) of the tile's B, which are read as they lie, from column `j` on.
static const float* eg_across_at(const eg_product* job, const eg_tile* tile, eg_index j, eg_index first) {
  const eg_index column = tile->column + j;
  return tile->b + first * job->across + (job->places ? job->positions[column] : column);
}

static void eg_sums(const eg_product* job, const eg_tile* tile) {
  static __thread eg_index packed_serial, packed_tile;  // which rows of A lie in this thread's room
  static __thread int packed_subnormal;
  const eg_index height = tile->height, blocks = eg_parts_of(job->k, EG_KC), same = tile->number / job->column_tiles;
  const int whole = job->kept, as_is = job->a_packed || tile->given;
  float *const panel = (float*)eg_own(job, 0), *const own = (float*)eg_own(job, job->left_at);
  float* const room = as_is ? NULL : tile->apart ? tile->apart : own;
  if (room) {
    if (whole && (packed_serial != job->serial || packed_tile != same || tile->again)) {
      eg_left(job, tile, 0, job->k, room);
      packed_subnormal = tile->subnormal && tile->subnormal[EG_LEFT];
    } else if (whole && packed_subnormal) {
      tile->subnormal[EG_LEFT] = 1;
    }
    packed_serial = tile->again ? -1 : job->serial;
    packed_tile = same;
  }
  for (eg_index block = 0; block < blocks; ++block) {
    const eg_index first = job->k * block / blocks, depth = job->k * (block + 1) / blocks - first;
    const int alone = room && !whole;  // only this block lies in the room
    if (alone) eg_left(job, tile, first, depth, room);
    for (eg_index j = 0; j < tile->columns; j += EG_NR) {
      if (tile->across && tile->columns - j >= EG_NR) {
        eg_panel_across(tile->a, height, tile->rows, job->k, first, depth, eg_across_at(job, tile, j, first),
                        tile->across, tile->c + j, tile->step, block > 0);
        continue;
      }
      const float* const right = eg_right(job, tile, j, first, depth, panel);
      if (tile->lifted == EG_RIGHT && !tile->subnormal[EG_RIGHT]) continue;  // this panel has none
      const float* next = NULL;
      if (job->b_packed)
        next = j + EG_NR < tile->columns ? right + job->k * EG_NR : eg_right(job, tile, 0, first + depth, 0, panel);
      const eg_wanted wanted = eg_after(job, tile, j, first, depth);
      eg_panel(room ? room : tile->a, tile->given, height, tile->rows, alone ? depth : job->k, alone ? 0 : first, depth,
               right, eg_least(EG_NR, tile->columns - j), tile->c + j, tile->step, block > 0, next, &wanted,
               tile->lifted != EG_NEITHER);
    }
  }
}

// A tile's part of the image, padded, in the memory of this thread.
static void eg_band(const eg_product* job, eg_tile* tile) {
  const eg_padding* const padding = job->padding;
  const eg_index across = padding->axis ? 1 : padding->room[1], line = across * padding->room[2];
  const eg_index first = tile->column / padding->line * padding->step;
  const eg_index last = (tile->column + tile->columns - 1) / padding->line * padding->step + padding->reach;
  float* const image = (float*)eg_own(job, job->image_at);
  eg_index* const places = (eg_index*)(image + (eg_lines(padding->channels * job->band) / (eg_index)sizeof(float)));
  const eg_index plane = padding->room[0] * padding->room[1] * padding->room[2], each = job->k / padding->channels;
  for (eg_index channel = 0; channel < padding->channels; ++channel)
    eg_pad_lines(padding, tile->b, channel, first, last, image + channel * job->band);
  for (eg_index p = 0; p < job->k; ++p) places[p] = job->places[p] - p / each * (plane - job->band) - first * line;
  tile->b = image;
  tile->places = places;
  tile->elements = padding->channels * job->band;
}

// One row of A, one image: sums of shifted images. Lines that lie near each other are computed together, with what is
// between them.
static int eg_is_direct(const eg_product* job) { return job->m == 1 && job->places && !job->turned; }

#define EG_GAP 9      // places between the last position of a line and the first of the next one, at most
#define EG_CHUNK (8 * EG_VL)

EG_INLINE void eg_shifted(const int vectors, const float* image, const eg_index* places, eg_index depth,
                          const float* weights, float* to) {
  eg_vector sums[8];
#pragma GCC unroll 8
  for (int v = 0; v < vectors; ++v) sums[v] = (eg_vector){0};
  for (eg_index p = 0; p < depth; ++p) {
    const float* const from = image + places[p];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) sums[v] += weights[p] * *(const eg_vector*)(from + v * EG_VL);
  }
#pragma GCC unroll 8
  for (int v = 0; v < vectors; ++v) *(eg_vector*)(to + v * EG_VL) = sums[v];
}

// Sums at the next `length` places or less of them; how many. `readable`: places at which whole vectors may be read.
static eg_index eg_next_sums(const eg_tile* tile, eg_index depth, const float* image, eg_index length,
                             eg_index readable, float* to) {
  if (length > 4 * EG_VL && readable >= 8 * EG_VL) {
    eg_shifted(8, image, tile->places, depth, tile->a, to);
    return eg_least(length, 8 * EG_VL);
  }
  if (length > 2 * EG_VL && readable >= 4 * EG_VL) {
    eg_shifted(4, image, tile->places, depth, tile->a, to);
    return eg_least(length, 4 * EG_VL);
  }
  if (length > EG_VL && readable >= 2 * EG_VL) {
    eg_shifted(2, image, tile->places, depth, tile->a, to);
    return eg_least(length, 2 * EG_VL);
  }
  if (readable >= EG_VL) {
    eg_shifted(1, image, tile->places, depth, tile->a, to);
    return eg_least(length, EG_VL);
  }
  // As vectors, too: else bits would depend on where tiles end.
  const eg_index count = eg_least(length, readable);
  eg_vector sum = {0};
  for (eg_index p = 0; p < depth; ++p) sum += tile->a[p] * eg_some(image + tile->places[p], count);
  *(eg_vector*)to = sum;
  return count;
}

static void eg_direct(const eg_product* job, const eg_tile* tile) {
  const eg_index *const positions = job->positions + tile->column, run = job->run, phase = tile->column % run;
  float sums[EG_CHUNK] __attribute__((aligned(64)));
  eg_index furthest = tile->places[0];
  for (eg_index p = 1; p < job->k; ++p) furthest = tile->places[p] > furthest ? tile->places[p] : furthest;
  for (eg_index j = 0; j < tile->columns;) {
    eg_index end = eg_least(j + run - (phase + j) % run, tile->columns);
    while (end < tile->columns && positions[end] - positions[end - 1] <= EG_GAP)
      end = eg_least(end + run, tile->columns);
    for (eg_index place = positions[j]; j < end;) {
      const eg_index done = eg_next_sums(tile, job->k, tile->b + place, positions[end - 1] + 1 - place,
                                         tile->elements - furthest - place, sums);
      while (j < end && positions[j] < place + done) {
        eg_index count = eg_least(run - (phase + j) % run, end - j);
        count = eg_least(count, place + done - positions[j]);
        memcpy(tile->c + j, sums + positions[j] - place, count * sizeof(float));
        j += count;
      }
      place += done;
    }
  }
}

static void eg_windows(const eg_product* job, const eg_tile* tile) {
  const eg_index first = job->a_packed ? tile->row : 0;
  const float *const image = tile->b + tile->row * tile->plane, *weights = tile->a;
  if (!job->a_packed && job->lanes->kind == EG_SUMS) {
    float* const panels = (float*)eg_own(job, 0);
    eg_pack_left(weights, job->a_row, job->a_column, tile->rows, job->k, EG_VL, panels);
    weights = panels;
  }
  if (eg_by_lines(job->lanes))
    eg_slid_by_lines(job->lanes, image, tile->plane, first, tile->rows, weights - first * job->k, job->k, tile->column,
                     tile->columns, tile->c, tile->step, (float*)eg_own(job, job->image_at));
  else
    eg_slid(job->lanes, image, tile->b + job->m * tile->plane, tile->rows, weights, job->k, tile->column, tile->columns,
            tile->c, tile->step, (float*)eg_own(job, job->image_at));
}

// Whether tiles are looked at for subnormal numbers.
static int eg_looks(const eg_product* job) {
  return (job->plain || (!job->a_packed && !job->b_packed)) && !job->lanes && !job->winograd && !eg_is_direct(job);
}

static void eg_products(const eg_product* job, const eg_tile* tile) {
  if (job->winograd)
    eg_transformed(job->winograd, tile->b, (const float*)job->a, tile->row, tile->rows, tile->column, tile->columns,
                   tile->c, tile->step, (float*)eg_own(job, 0), job->m);
  else if (job->lanes)
    eg_windows(job, tile);
  else if (eg_is_direct(job))
    eg_direct(job, tile);
  else
    eg_sums(job, tile);
}

static void eg_packed(const eg_product* job, eg_tile* tile) {
  int subnormal[2] = {0, 0}, unfit = 0;
  tile->lifted = EG_NEITHER;
  tile->subnormal = NULL;
  tile->again = 0;
  if (eg_looks(job)) {
    tile->subnormal = subnormal;
    eg_products(job, tile);
    if (!subnormal[EG_LEFT] && !subnormal[EG_RIGHT]) return;
    tile->again = 1;
    if (!subnormal[EG_LEFT] || !subnormal[EG_RIGHT]) {
      tile->lifted = subnormal[EG_LEFT] ? EG_LEFT : EG_RIGHT;
      tile->unfit = &unfit;
      eg_products(job, tile);
      if (!unfit) return;
    }
    tile->lifted = EG_NEITHER;
    tile->subnormal = NULL;
  }
  eg_products(job, tile);
}

// A tile whose B is read as it lies, or packed where there are subnormal numbers.
static void eg_multiplied_across(const eg_product* job, eg_tile* tile) {
  int found = 0;
  const float* const from = eg_across_at(job, tile, 0, 0);
  for (eg_index p = 0; job->plain && !found && p < job->k; ++p)
    found = eg_has_subnormal(from + p * job->across, tile->columns);
  if (found) {
    eg_packed(job, tile);
    return;
  }
  tile->across = job->across;
  tile->lifted = EG_NEITHER;
  tile->subnormal = NULL;
  tile->again = 0;
  eg_products(job, tile);
}

// A tile with rows of A that else are read as they lie: packed, those of one panel at a time. They lie on the stack, so
// that only a product with subnormal numbers takes memory for them.
static __attribute__((noinline)) void eg_packed_apart(const eg_product* job, const eg_tile* tile) {
  float room[EG_MR * EG_KC + EG_SLACK] __attribute__((aligned(64)));
  for (eg_index row = 0; row < tile->rows; row += tile->height) {
    eg_tile part = *tile;
    part.given = 0;
    part.apart = room;
    part.rows = eg_least(tile->height, tile->rows - row);
    part.a += row * job->a_row;
    part.c += row * tile->step;
    eg_packed(job, &part);
  }
}

static void eg_multiplied(const eg_product* job, eg_tile* tile) {
  if (job->across) {
    eg_multiplied_across(job, tile);
    return;
  }
  if (!job->given) {
    eg_packed(job, tile);
    return;
  }
  int subnormal[2] = {0, 0};
  tile->given = job->a_row;
  tile->lifted = EG_NEITHER;
  tile->again = 0;
  tile->subnormal = eg_looks(job) ? subnormal : NULL;
  const eg_index together = job->a_row == job->k ? tile->rows : 1;  // rows that follow each other
  for (eg_index row = 0; tile->subnormal && row < tile->rows; row += together)
    subnormal[EG_LEFT] |= eg_has_subnormal(tile->a + row * job->a_row, job->k * together);
  if (!subnormal[EG_LEFT]) eg_products(job, tile);
  if (subnormal[EG_LEFT] || subnormal[EG_RIGHT]) eg_packed_apart(job, tile);
}
