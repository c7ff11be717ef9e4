// Tiles, each with the kernel behind its product. And chains: the planes of a depthwise convolution that another product
// makes, with a kernel behind that, some planes and lines of them at a time: they never lie in memory as a whole.
#include "engine.c"

// The kernel behind a product, on `rows` rows of a tile from `row` on. `planes`: of what only a tile has.
static void eg_finish(const eg_product* job, const eg_tile* tile, eg_index row, eg_index rows, const eg_index* moves,
                      float* planes) {
  const eg_launch* const then = job->then;
  void* pointers[EG_MOST_POINTERS];
  eg_index sizes[EG_MOST_SIZES];
  if (then->sizes) memcpy(sizes, then->values, then->sizes * sizeof(eg_index));
  if (job->row_size >= 0) sizes[job->row_size] = rows;
  if (job->column_size >= 0) sizes[job->column_size] = tile->columns;
  for (eg_index p = 0; p < then->pointers; ++p)
    pointers[p] = then->buffers[p] == EG_CHAINED
                      ? (char*)planes
                      : (char*)then->bases[p] + moves[p] + row * job->row_steps[p] + tile->column * job->column_steps[p];
  eg_call(then, pointers, sizes, eg_own(job, job->buffers_at));
}

// Where a batch is in all tensors: A, B, C, and the pointers of the kernel behind.
static const eg_index* eg_moves(const eg_product* job, eg_index batch) {
  return job->table + batch * (3 + (job->then ? job->then->pointers : 0));
}

// What a tile of a depthwise convolution reads: the lines that it reaches over, of its planes, one plane after the other.
static void eg_chain(const eg_product* job, eg_tile* tile, eg_index batch) {
  const eg_product* const before = job->before;
  const eg_lanes* const lanes = job->lanes;
  const eg_index *const moves = eg_moves(before, batch), width = lanes->counts[2], line = lanes->sizes[2];
  const eg_index begin = tile->column / width * lanes->strides[1] - lanes->begins[1];
  const eg_index end = eg_least(begin + eg_reached(lanes, tile->columns / width), lanes->sizes[1]);
  const eg_index first = begin > 0 ? begin : 0, columns = (end - first) * line;
  float* const planes = (float*)eg_own(job, job->chained_at);
  tile->plane = eg_parts_of(columns > 0 ? columns : 0, EG_VL) * EG_VL;
  tile->b = planes - first * line - tile->row * tile->plane;
  if (columns <= 0) return;  // padding alone
  eg_tile made = {.row = tile->row, .rows = tile->rows, .column = first * line, .columns = columns,
                  .height = before->height, .a = (const float*)(before->a + moves[0]),
                  .b = (const float*)(before->b + moves[1]), .c = planes, .step = tile->plane,
                  .places = before->places, .elements = before->elements};
  made.a += tile->row * (before->a_packed ? before->k : before->a_row);
  eg_multiplied(before, &made);
  for (eg_index row = 0; before->then && row < tile->rows; ++row)  // they do not lie as far apart as in a tensor
    eg_finish(before, &made, tile->row + row, 1, moves + 3, planes + row * tile->plane);
}

static void eg_compute(void* work, eg_index number) {
  const eg_product* const job = work;
  // Planes of a chain that the same lines are read for come one after the other.
  const eg_index inner = job->before ? job->row_tiles : job->column_tiles, tiles = job->row_tiles * job->column_tiles;
  const eg_index one = number % inner, other = number % tiles / inner, batch = number / tiles;
  const eg_index row = (job->before ? one : other) * job->rows, column = (job->before ? other : one) * job->columns;
  const eg_index* const moves = eg_moves(job, batch);
  eg_tile tile = {.number = number, .row = row, .rows = eg_least(job->rows, job->m - row), .column = column,
                  .columns = eg_least(job->columns, job->n - column), .height = job->height,
                  .a = (const float*)(job->a + moves[0]), .b = (const float*)(job->b + moves[1]),
                  .c = (float*)(job->c + moves[2]), .step = job->c_step, .places = job->places,
                  .elements = job->elements, .plane = job->lanes ? eg_plane(job->lanes) : 0};
  tile.c += job->turned ? row + column * tile.step : row * tile.step + column;
  float* const c = tile.c;
  if (job->a_packed)
    tile.a += row * job->k;
  else if (!job->turned)
    tile.a += row * job->a_row;
  if (job->turned) {
    tile.step = job->columns;
    tile.c = (float*)eg_own(job, job->turned_at);
  }
  if (job->padding) eg_band(job, &tile);
  if (job->before) eg_chain(job, &tile, batch);
  eg_multiplied(job, &tile);
  if (job->turned) eg_turned(tile.c, tile.step, tile.rows, tile.columns, tile.rows, c, job->c_step);
  if (job->then) eg_finish(job, &tile, row, tile.rows, moves + 3, NULL);
}
