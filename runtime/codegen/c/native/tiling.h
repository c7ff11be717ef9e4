// How products are cut into tiles, how much memory that takes, and what computes them.
#include "chain.h"

#define EG_TILE_BYTES (1 << 19)  // of C, and of A in one block of rows: half of a second-level cache of 1 MiB
#define EG_SHARE 12              // of the elements of A, B and C: those of A in one block of rows
#define EG_ALL_PANELS 8          // of A beside constant panels of B: so many are packed at a time
#define EG_LEAST_PANELS 4        // the same where there are more
#define EG_TURNED_PANELS 8       // of A, whose sums wait for being turned around
#define EG_TASKS 4               // for each thread, so that one that is held up leaves work to the others
#define EG_LEAST_BAND (1 << 17)  // bytes
#define EG_MOST_COLUMNS 1536     // beside so many, to pack A costs nothing
#define EG_FEW_ROWS 64           // of A, beside which B is read as it lies
#define EG_CHAIN_ROWS 16         // planes of a chain at a time, about
#define EG_LEAST_LINES 4         // of results, of a part
#define EG_WAYS 7                // rows of A that may want the same place in a first-level cache of 8 ways or more
#define EG_SETS 64               // of lines of 64 bytes, there

// Tiles of windows: some of the channels, all positions or some lines of them.
static eg_index eg_plan_windows(eg_product* job) {
  const eg_lanes* const lanes = job->lanes;
  const eg_index windows = lanes->counts[lanes->axis], line = job->n / windows, blocks = eg_parts_of(job->m, EG_VL);
  const int by_lines = eg_by_lines(lanes);
  const eg_index bytes = by_lines ? lanes->strides[1] * eg_line_room(lanes) * 4 : eg_line_of(lanes) * EG_VL * 4;
  const eg_index fitting = EG_TILE_BYTES / (by_lines ? 16 : 4) / bytes;
  const eg_index most = job->whole_rows || lanes->whole ? windows : fitting;
  const eg_index parts = eg_parts_of(windows, most > 1 ? most : 1), per_part = eg_parts_of(windows, parts);
  job->columns = per_part * line;
  job->column_tiles = eg_parts_of(windows, per_part);
  eg_index wide = EG_TILE_BYTES / 4 / (job->columns * EG_VL * 4);
  if (job->threads > 1)
    wide = eg_least(wide, blocks * job->batches * job->column_tiles / (job->threads * EG_TASKS));
  wide = eg_least(wide > 1 ? wide : 1, blocks);
  job->rows = eg_parts_of(blocks, eg_parts_of(blocks, wide)) * EG_VL;
  job->row_tiles = eg_parts_of(job->m, job->rows);
  const int packs = !job->a_packed && lanes->kind == EG_SUMS;
  job->left_at = job->turned_at = job->buffers_at = packs ? eg_lines(job->rows * job->k + EG_SLACK) : 0;
  job->image_at = job->buffers_at + (job->then ? eg_bytes(job->then->room) : 0);
  job->room = job->image_at + eg_lines(by_lines ? eg_lines_room(lanes, per_part)
                                                : eg_windows_room(lanes, per_part, job->columns));
  return job->room;
}

// Tiles of squares: some lines of them, all maps; where lines are few, some of the maps. What a thread needs stays small
// beside image and result, or beside the weights, which are read again for each tile.
static eg_index eg_plan_winograd(eg_product* job) {
  const eg_winograd* const winograd = job->winograd;
  const eg_index lines = eg_parts_of(winograd->counts[0], 2), across = eg_across(winograd);
  const eg_index panels = eg_parts_of(job->m, EG_NR), weights = EG_PLACES * eg_deep(winograd->channels) * panels * EG_NR;
  const eg_index image = winograd->channels * winograd->sizes[0] * winograd->sizes[1];
  const eg_index share = (image + job->m * job->n) * job->batches / EG_SHARE, fitting = share > weights / 4 ? share : weights / 4;
  const eg_index most = eg_least(fitting > EG_LEAST_BAND / 2 ? fitting : EG_LEAST_BAND / 2, EG_TILE_BYTES / 2);
  eg_index parts = 1, shared = 1;
  while (parts < lines && eg_room_of(winograd, eg_parts_of(lines, parts)).all > most) ++parts;
  if (job->threads > 1) {
    const eg_index wanted = eg_parts_of(2 * job->threads, job->batches);
    if (parts < wanted) parts = eg_least(wanted, eg_parts_of(lines * across, EG_MR));
    parts = eg_least(parts, lines);
    shared = eg_least(eg_parts_of(job->threads, parts * job->batches), panels);
  }
  const eg_index each = eg_parts_of(lines, parts);
  job->columns = 2 * each * winograd->counts[1];
  job->column_tiles = eg_parts_of(lines, each);
  job->rows = eg_parts_of(panels, shared) * EG_NR;
  job->row_tiles = eg_parts_of(job->m, job->rows);
  job->left_at = job->turned_at = 0;
  // The last tile has fewer lines, but may have panels of more squares.
  const eg_index room = eg_room_of(winograd, each).all, last = eg_room_of(winograd, lines - (job->column_tiles - 1) * each).all;
  job->buffers_at = eg_lines(room > last ? room : last);
  job->image_at = job->buffers_at + (job->then ? eg_bytes(job->then->room) : 0);
  return job->room = job->image_at;
}

// Elements of an image that a tile of so many columns copies; 0 if it copies none.
static eg_index eg_copied(const eg_product* job, eg_index columns) {
  const eg_padding* const padding = job->padding;
  if (!padding) return 0;
  const eg_index lines = (columns + padding->line - 2) / padding->line;  // ends of lines in a tile, at most
  const eg_index high = eg_least(lines * padding->step + padding->reach, padding->room[padding->axis]);
  return padding->channels * high * (padding->axis ? 1 : padding->room[1]) * padding->room[2];
}

// Bytes of such copies that weigh little: a part of image and result, for all threads.
static eg_index eg_share_of_image(const eg_product* job) {
  const eg_padding* const padding = job->padding;
  if (!padding) return 0;
  const eg_index image = padding->channels * padding->room[0] * padding->room[1] * padding->room[2];
  const eg_index share = (image + job->m * job->n) * job->batches * 4 / EG_SHARE / job->threads;
  return share > EG_LEAST_BAND ? share : EG_LEAST_BAND;
}

// Elements that weigh little beside what is multiplied.
static eg_index eg_share(const eg_product* job) {
  const eg_index others = job->b_packed ? 0 : job->k * job->n;
  return (job->m * job->k + others + job->m * job->n) * job->batches / EG_SHARE;
}

// Whether some rows of A would put each other out of the cache: such that lie a multiple of 4096 bytes apart.
static int eg_in_each_others_way(const eg_product* job, eg_index rows) {
  eg_index wanted[EG_SETS] = {0};
  for (eg_index row = 0; row < rows; ++row)
    if (++wanted[row * job->a_row / 16 % EG_SETS] > EG_WAYS) return 1;
  return 0;
}

// Whether rows of A are read as they lie, and how many at a time. To pack them costs up to 3 % beside few columns, but
// nothing beside many; rows in each other's way cost 20 %, so there are half as many at a time. Packed rows that are
// much beside what is multiplied are read as they lie in any case.
static void eg_plan_rows(eg_product* job) {
  const eg_index height = eg_height(job->m);
  job->height = height;
  job->given = 0;
  if (job->a_packed || job->turned || job->a_column != 1 || job->a_row < 1 || eg_is_direct(job)) return;
  const eg_index packed = eg_least(job->m, EG_ALL_PANELS * height) * eg_least(job->k, EG_KC);
  const int much = packed > eg_share(job), crossing = eg_in_each_others_way(job, height);
  job->given = much || (job->n <= EG_MOST_COLUMNS && !crossing);
  if (job->given && crossing) job->height = eg_parts_of(job->m, eg_parts_of(job->m, EG_WAYS));
}

// Whether B is read as it lies, and how far apart its rows are: beside few rows of packed A, to pack it takes half of the
// time. An image that is one where its positions, and those of its rows, lie evenly.
static eg_index eg_plan_across(const eg_product* job, eg_index rows) {
  if (!job->a_packed || job->b_packed || job->turned || job->padding || eg_is_direct(job) || rows > EG_FEW_ROWS) return 0;
  if (!job->places) return job->b_column == 1 && job->b_row > 0 ? job->b_row : 0;
  const eg_index apart = job->k > 1 ? job->places[1] - job->places[0] : 1;
  if (job->positions[job->n - 1] - job->positions[0] != job->n - 1 || job->places[0] || apart < 1) return 0;
  for (eg_index p = 1; p < job->k; ++p)
    if (job->places[p] != p * apart) return 0;
  return apart;
}

static eg_index eg_plan_chain(eg_product* job);

// How the product is cut into tiles, and the bytes of memory that it needs for each thread: a panel of B, rows of A,
// what is to be turned around, row buffers.
eg_index eg_plan(eg_product* job) {
  if (job->before) return eg_plan_chain(job);
  if (job->lanes) return eg_plan_windows(job);
  if (job->winograd) return eg_plan_winograd(job);
  eg_plan_rows(job);
  job->across = eg_plan_across(job, job->m);
  const eg_index height = job->height, panels = eg_parts_of(job->n, EG_NR);
  // As many rows as fit beside each other in the cache in blocks of EG_KC columns.
  eg_index row_panels = EG_TILE_BYTES / (eg_least(EG_KC, job->k) * height * 4);
  if (job->whole_rows) row_panels = eg_least(row_panels, EG_TILE_BYTES / (job->n * height * 4));
  if (job->turned) row_panels = eg_least(row_panels, EG_TURNED_PANELS);
  // What is packed of A stays small beside what is multiplied. Panels of B are read again for each block of rows, and
  // packed again where they are not constants.
  if (!job->a_packed && !job->places && !job->given) {
    const eg_index fitting = eg_share(job) / (eg_least(EG_KC, job->k) * height);
    const eg_index some = eg_parts_of(job->m, height) > EG_ALL_PANELS ? EG_LEAST_PANELS : EG_ALL_PANELS;
    const eg_index least = job->b_packed ? some : 1;
    row_panels = eg_least(row_panels, fitting > least ? fitting : least);
  }
  row_panels = eg_least(row_panels > 1 ? row_panels : 1, eg_parts_of(job->m, height));
  if (job->whole_rows && job->threads > 1 && job->batches < job->threads)
    row_panels = eg_least(row_panels, eg_parts_of(eg_parts_of(job->m, height), job->threads));
  job->row_tiles = eg_parts_of(eg_parts_of(job->m, height), row_panels);
  job->rows = eg_parts_of(eg_parts_of(job->m, height), job->row_tiles) * height;  // evenly
  job->row_tiles = eg_parts_of(job->m, job->rows);
  eg_index width = panels;
  // One thread takes all columns of rows that it has to pack.
  if (!job->whole_rows && (job->threads > 1 || job->a_packed || job->given)) {
    const eg_index wanted = job->threads > 1 ? job->threads * EG_TASKS : 1;
    const eg_index tiles = eg_parts_of(wanted, job->batches * job->row_tiles);
    width = eg_least(EG_TILE_BYTES / (job->rows * EG_NR * 4), eg_parts_of(panels, tiles));
    width = width > 1 ? width : 1;
    width = eg_parts_of(panels, eg_parts_of(panels, width));
  }
  // The lines that a tile copies of the image stay small beside it and the result, too.
  for (eg_index share = eg_share_of_image(job); width > 1 && eg_copied(job, width * EG_NR) * 4 > share;)
    width = eg_parts_of(width, 2);
  job->columns = width * EG_NR;
  job->column_tiles = eg_parts_of(panels, width);
  const eg_index deepest = eg_parts_of(job->k, eg_parts_of(job->k, EG_KC));
  const eg_index rows = eg_least(job->rows, eg_parts_of(job->m, height) * height);
  const int direct = eg_is_direct(job);
  job->left_at = job->b_packed || direct ? 0 : eg_lines(deepest * EG_NR + EG_SLACK);
  job->turned_at = job->left_at;
  job->kept = job->column_tiles > 1 && !job->given && (job->places || rows * job->k * job->threads <= eg_share(job));
  const eg_index packed = rows * (job->kept ? job->k : deepest);
  if (!job->a_packed && !job->given && !direct) job->turned_at += eg_lines(packed + EG_SLACK);
  job->buffers_at = job->turned_at + (job->turned ? eg_lines(rows * job->columns) : 0);
  job->image_at = job->buffers_at + (job->then ? eg_bytes(job->then->room) : 0);
  job->room = job->image_at;
  if (job->padding) {
    const eg_index copied = eg_copied(job, job->columns);
    job->band = copied / job->padding->channels;
    job->room += eg_lines(copied) + eg_lines(2 * job->k);
  }
  return job->room;
}

// Tiles of a chain: some panels of rows of the product before, as many lines as stay in the cache with what they are made
// of.
static eg_index eg_plan_chain(eg_product* job) {
  eg_product* const before = job->before;
  const eg_lanes* const lanes = job->lanes;
  before->threads = 1;
  eg_plan(before);
  const eg_index height = before->height, windows = lanes->counts[1], panels = eg_parts_of(before->m, height);
  const eg_index together = EG_CHAIN_ROWS / height > 1 ? EG_CHAIN_ROWS / height : 1;
  job->rows = eg_parts_of(panels, eg_parts_of(panels, together)) * height;
  job->row_tiles = eg_parts_of(job->m, job->rows);
  const eg_index fitting = EG_TILE_BYTES / 2 / (job->rows * lanes->sizes[2] * 4) - lanes->reach, least = EG_LEAST_LINES;
  eg_index parts = eg_parts_of(windows, fitting / lanes->strides[1] > least ? fitting / lanes->strides[1] : least);
  if (job->threads > 1) {  // lines at the ends of parts are computed twice
    const eg_index wanted = eg_parts_of(job->threads * EG_TASKS, job->batches * job->row_tiles);
    parts = wanted > parts ? eg_least(wanted, eg_parts_of(windows, least)) : parts;
  }
  const eg_index each = eg_parts_of(windows, parts);
  job->columns = each * lanes->counts[2];
  job->column_tiles = eg_parts_of(windows, each);
  job->left_at = job->turned_at = 0;
  job->buffers_at = job->a_packed ? 0 : eg_lines(eg_parts_of(job->rows, EG_VL) * EG_VL * job->k + EG_SLACK);
  job->image_at = job->buffers_at + (job->then ? eg_bytes(job->then->room) : 0);
  job->chained_at = job->image_at + eg_lines(eg_lines_room(lanes, each));
  const eg_index plane = eg_reached(lanes, each) * lanes->sizes[2];
  job->before_at = job->chained_at + eg_lines(job->rows * eg_parts_of(plane, EG_VL) * EG_VL + EG_SLACK);
  const eg_index deepest = eg_parts_of(before->k, eg_parts_of(before->k, EG_KC));
  before->kept = 0;
  before->across = eg_plan_across(before, job->rows);
  before->turned_at = before->left_at;
  if (!before->a_packed && !before->given) before->turned_at += eg_lines(job->rows * deepest + EG_SLACK);
  before->buffers_at = before->turned_at;
  job->room = job->before_at + before->buffers_at + (before->then ? eg_bytes(before->then->room) : 0);
  before->memory = job->memory + job->before_at;
  before->room = job->room;
  return job->room;
}

void eg_multiply(eg_product* job) {
  static eg_index serial;
  eg_plan(job);
  job->serial = __atomic_add_fetch(&serial, 1, __ATOMIC_RELAXED);
  eg_parallel(eg_compute, job, job->batches * job->row_tiles * job->column_tiles, job->threads);
}
