// LSTM, GRU and RNN: the inputs of some steps are projected at a time, then each step is a product with the state and
// the gates, while what was projected and the weights are still in the cache. Directions, and parts of a large batch,
// are tasks of their own.
//
// With few sequences a step is as fast as its weights come: sums of several panels beside each other hide how long an
// addition takes. More sequences are a product like others.
enum { EG_RNN, EG_GRU, EG_LATE_GRU, EG_LSTM };       // late: the reset gate multiplies what the product has made
enum { EG_SIGMOID, EG_TANH, EG_RELU };
enum { EG_X, EG_W, EG_R, EG_BIAS, EG_LENGTHS, EG_H0, EG_C0, EG_PEEPHOLES, EG_Y, EG_LAST_H, EG_LAST_C, EG_TOLD, EG_ALL };
#define EG_FEW 3                  // sequences that are computed without a product like others
#define EG_PROJECTED (1 << 16)    // bytes of projected inputs
#define EG_LEAST_ROWS EG_MR       // that are projected at a time, at least
#define EG_LEAST_SEQUENCES 4      // of a part of a batch

typedef struct {
  eg_index cell, directions, reversed, steps, batch, width, hidden;  // reversed: the first direction is
  eg_index x_step, x_row, x_column;               // elements between steps, sequences and features
  eg_index y_step, y_direction, y_row, state_direction, state_row;
  eg_index coupled;                               // LSTM: the forget gate is what the input gate leaves
  const float* bound;                             // what goes into activations is clipped by it, or NULL
  const eg_index* functions;                      // three for each direction
  eg_index w_packed, r_packed, w_plain, r_plain;  // panels already; finite, with nothing subnormal
  eg_index threads;
  // Set by `eg_plan_recurrent`: columns of gates and of what each of the two products with the state makes (whole
  // panels; the second one is 0 but in a GRU), parts of the batch, steps that are projected at a time, and where things
  // lie in the memory of a thread (floats) and behind it (bytes).
  eg_index gates, first, second, parts, chunk;
  eg_index projected_at, sums_at, lifted_at, h_at, c_at, left_at, spare_at, bias_at, table_at, own;
  eg_index w_at, r_at, product_at, product_room;
  const void* given[EG_ALL];                      // NULL where there is none
  char* memory;
} eg_recurrent;

static eg_index eg_whole(eg_index columns) { return eg_parts_of(columns, EG_NR) * EG_NR; }

// Rows of one thing (steps, or what is behind them) for each panel of weights that are packed: [first][second].
static eg_index eg_packed_gates(eg_index first, eg_index second, eg_index depth) {
  return (eg_whole(first) + eg_whole(second)) * depth;
}

// The weights of all directions as panels, those of `second` gates apart from the `first` ones.
void eg_pack_gates(const float* from, eg_index directions, eg_index first, eg_index second, eg_index depth, float* to) {
  for (eg_index d = 0; d < directions; ++d, from += (first + second) * depth) {
    eg_pack_b(from, 1, depth, depth, first, to);
    to += eg_packed_gates(first, 0, depth);
    if (second) eg_pack_b(from + first * depth, 1, depth, depth, second, to);
    to += eg_packed_gates(0, second, depth);
  }
}

static const float* eg_given(const eg_recurrent* job, int which, eg_index at) {
  return job->given[which] ? (const float*)job->given[which] + at : NULL;
}

static eg_index eg_second_of(const eg_recurrent* job) { return job->cell == EG_GRU ? job->hidden : 0; }

static eg_product eg_plain_product(eg_index m, eg_index n, eg_index k, const eg_index* table) {
  return (eg_product){.batches = 1, .m = m, .n = n, .k = k, .table = table, .a_row = k, .a_column = 1, .b_row = 1,
                      .b_column = k, .c_step = n, .b_packed = 1, .row_size = -1, .column_size = -1, .threads = 1};
}

// The inputs of `count` steps of `rows` sequences: all rows in one where they lie evenly, else a product for each
// sequence.
static eg_product eg_projection(const eg_recurrent* job, eg_index count, eg_index rows, const eg_index* table) {
  const int even = rows == job->batch && job->x_step == job->batch * job->x_row;
  eg_product made = eg_plain_product(even ? count * rows : count, job->gates, job->width, table);
  made.batches = even ? 1 : rows;
  made.a_row = even ? job->x_row : job->x_step;
  made.a_column = job->x_column;
  made.c_step = even ? job->gates : rows * job->gates;
  made.plain = job->w_plain;
  made.threads = job->directions * job->parts > 1 ? 1 : job->threads;
  return made;
}

static eg_index eg_most(eg_index a, eg_index b) { return a > b ? a : b; }

// How it is cut, and the bytes of memory that it needs.
eg_index eg_plan_recurrent(eg_recurrent* job) {
  const eg_index hidden = job->hidden, batch = job->batch, second = eg_second_of(job);
  job->gates = hidden * (job->cell == EG_RNN ? 1 : job->cell == EG_LSTM ? 4 : 3);
  job->first = eg_whole(job->gates - second);
  job->second = eg_whole(second);
  const eg_index wanted = eg_parts_of(job->threads, job->directions);
  job->parts = eg_most(eg_least(wanted, batch / EG_LEAST_SEQUENCES), 1);
  const eg_index rows = eg_parts_of(batch, job->parts);
  const eg_index fit = eg_most(EG_PROJECTED / (rows * job->gates * 4), eg_parts_of(EG_LEAST_ROWS, rows));
  job->chunk = eg_parts_of(job->steps, eg_most(job->steps / fit, 1));
  eg_index at = 0;
#define EG_PLACE(place, floats) job->place = at, at += eg_lines((floats) + EG_NR) / 4
  EG_PLACE(projected_at, job->chunk * rows * job->gates);
  EG_PLACE(sums_at, rows * (job->first + job->second));
  EG_PLACE(lifted_at, EG_FEW * (job->first + job->second));
  EG_PLACE(h_at, rows * hidden);
  EG_PLACE(c_at, rows * hidden);
  EG_PLACE(left_at, EG_FEW * hidden);
  EG_PLACE(spare_at, EG_FEW * hidden);
  EG_PLACE(bias_at, job->gates + hidden);
  EG_PLACE(table_at, rows * 3 * 2);
#undef EG_PLACE
  job->own = at * 4;
  const eg_index tasks = job->directions * job->parts, together = eg_least(tasks, job->threads);
  job->w_at = job->own * together;
  job->r_at = job->w_at + (job->w_packed ? 0 : eg_lines(job->directions * eg_packed_gates(job->gates, 0, job->width)));
  job->product_at = job->r_at;
  if (!job->r_packed)
    job->product_at += eg_lines(job->directions * eg_packed_gates(job->gates - second, second, hidden));
  job->product_room = 0;
  for (eg_index part = 0; part < job->parts; ++part) {
    const eg_index own = batch * (part + 1) / job->parts - batch * part / job->parts;
    const eg_index last = job->steps - (eg_parts_of(job->steps, job->chunk) - 1) * job->chunk;
    eg_product each[] = {eg_projection(job, job->chunk, own, NULL), eg_projection(job, last, own, NULL),
                         eg_plain_product(own, job->gates - second, hidden, NULL),
                         eg_plain_product(own, hidden, hidden, NULL)};
    for (int p = 0; p < 4; ++p) job->product_room = eg_most(job->product_room, eg_plan(&each[p]));
  }
  return job->product_at + job->product_room * (tasks > 1 ? together : job->threads);
}

// One direction of some sequences.
typedef struct {
  const eg_recurrent* job;
  eg_index direction, row, rows, backward;
  const float *w, *r, *peepholes;
  const int* lengths;
  const eg_index* functions;
  float *projected, *sums, *lifted, *h, *c, *left, *spare, *bias;
  eg_index* table;
} eg_sequences;

#define EG_EACH(i, n) EG_PRAGMA(omp simd) for (eg_index i = 0; i < (n); ++i)

static void eg_activate(const eg_sequences* own, int which, int clipped, float* x, eg_index count) {
  if (clipped && own->job->bound) {
    const float bound = *own->job->bound;
    EG_EACH(i, count) x[i] = eg_min_f(eg_max_f(x[i], -bound), bound);
  }
  if (own->functions[which] == EG_SIGMOID) {
    EG_EACH(i, count) x[i] = eg_sigmoid(x[i]);
  } else if (own->functions[which] == EG_TANH) {
    EG_EACH(i, count) x[i] = eg_tanhf(x[i]);
  } else {
    EG_EACH(i, count) x[i] = eg_max_f(x[i], 0.0f);
  }
}

// c[i, j] = sums of a[k][i] times one panel, or two that follow each other.
EG_INLINE void eg_beside(const int rows, const int panels, eg_index depth, const float* a, const float* b, float* c,
                         eg_index step) {
  eg_vector sums[EG_FEW][2 * EG_NV];
#pragma GCC unroll 4
  for (int i = 0; i < rows; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < panels * EG_NV; ++j) sums[i][j] = (eg_vector){0};
  for (eg_index p = 0; p < depth; ++p, a += rows, b += EG_NR)
#pragma GCC unroll 4
    for (int j = 0; j < panels * EG_NV; ++j) {
      const float* const from = b + (j / EG_NV) * depth * EG_NR + j % EG_NV * EG_VL;
#pragma GCC unroll 4
      for (int i = 0; i < rows; ++i) sums[i][j] += a[i] * *(const eg_vector*)from;
    }
#pragma GCC unroll 4
  for (int i = 0; i < rows; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < panels * EG_NV; ++j) *(eg_vector*)(c + i * step + j * EG_VL) = sums[i][j];
}

#define EG_FEW_OF(rows)                                                                                           \
  static void eg_few_##rows(eg_index depth, const float* a, const float* b, eg_index panels, float* c,           \
                            eg_index step) {                                                                      \
    for (; panels > 1; panels -= 2, b += 2 * depth * EG_NR, c += 2 * EG_NR)                                       \
      eg_beside(rows, 2, depth, a, b, c, step);                                                                   \
    if (panels) eg_beside(rows, 1, depth, a, b, c, step);                                                         \
  }
EG_FEW_OF(1) EG_FEW_OF(2) EG_FEW_OF(3)
typedef void (*eg_fews)(eg_index, const float*, const float*, eg_index, float*, eg_index);
static const eg_fews eg_few_of[EG_FEW + 1] = {0, eg_few_1, eg_few_2, eg_few_3};

// Some columns of all gates for all rows: of `state` (rows by hidden) times panels `r`, into the sums from `to` on.
static void eg_with_state(const eg_sequences* own, const float* state, const float* r, eg_index columns, eg_index to) {
  const eg_recurrent* const job = own->job;
  const eg_index hidden = job->hidden, rows = own->rows, step = job->first + job->second;
  const eg_index panels = eg_parts_of(columns, EG_NR), count = rows * hidden;
  float* const sums = own->sums + to;
  if (rows > EG_FEW) {
    static const eg_index nowhere[3];
    eg_product made = eg_plain_product(rows, columns, hidden, nowhere);
    made.a = (const char*)state;
    made.b = (const char*)r;
    made.c = (char*)sums;
    made.c_step = step;
    made.plain = job->r_plain;
    made.memory = job->memory + job->product_at + eg_self * (job->product_room - eg_plan(&made));
    eg_multiply(&made);
    return;
  }
  float* const left = own->left;
  for (eg_index i = 0; i < rows; ++i)
    for (eg_index k = 0; k < hidden; ++k) left[k * rows + i] = state[i * hidden + k];
  const int subnormal = job->r_plain && eg_has_subnormal(left, count);
  if (subnormal) {
    memcpy(own->spare, left, count * sizeof(float));
    eg_without_subnormal(left, count);
  }
  eg_few_of[rows](hidden, left, r, panels, sums, step);
  if (!subnormal) return;
  eg_lift(own->spare, count);
  eg_few_of[rows](hidden, own->spare, r, panels, own->lifted, step);
  for (eg_index i = 0; i < rows; ++i)
    EG_EACH(j, columns) sums[i * step + j] += own->lifted[i * step + j] * 0x1p-64f;
}

static int eg_lives(const eg_sequences* own, eg_index row, eg_index step) {
  return !own->lengths || step < own->lengths[row];
}

// The gates of a row: `x` is what was projected, `sums` what the state adds; the new state takes the place of the old.
static void eg_lstm_row(const eg_sequences* own, const float* restrict x, float* restrict sums, float* restrict h,
                        float* restrict c) {
  const eg_index n = own->job->hidden;
  const float *restrict const bias = own->bias, *restrict const peep = own->peepholes;
  float *restrict const in = sums, *restrict const out = sums + n, *restrict const forget = sums + 2 * n,
        *restrict const cell = sums + 3 * n;
  EG_EACH(j, 4 * n) sums[j] += x[j] + bias[j];
  if (peep) {
    EG_EACH(j, n) in[j] += peep[j] * c[j];
    EG_EACH(j, n) forget[j] += peep[2 * n + j] * c[j];
  }
  eg_activate(own, 0, 1, in, n);
  if (own->job->coupled) {
    EG_EACH(j, n) forget[j] = 1.0f - in[j];
  } else {
    eg_activate(own, 0, 1, forget, n);
  }
  eg_activate(own, 1, 1, cell, n);
  EG_EACH(j, n) c[j] = forget[j] * c[j] + in[j] * cell[j];
  if (peep) EG_EACH(j, n) out[j] += peep[n + j] * c[j];
  eg_activate(own, 0, 1, out, n);
  memcpy(h, c, n * sizeof(float));
  eg_activate(own, 2, 0, h, n);
  EG_EACH(j, n) h[j] *= out[j];
}

// What the reset gate leaves of the state, before its product.
static void eg_reset_row(const eg_sequences* own, const float* restrict x, float* restrict sums,
                         const float* restrict h, float* restrict left) {
  const eg_index n = own->job->hidden;
  const float* restrict const bias = own->bias;
  EG_EACH(j, 2 * n) sums[j] += x[j] + bias[j];
  eg_activate(own, 0, 1, sums, 2 * n);
  EG_EACH(j, n) left[j] = sums[n + j] * h[j];
}

static void eg_gru_row(const eg_sequences* own, const float* restrict x, float* restrict sums, float* restrict h) {
  const eg_index n = own->job->hidden, late = own->job->cell == EG_LATE_GRU;
  const float *restrict const bias = own->bias, *restrict const inner = bias + 3 * n;
  float* restrict const hidden = sums + (late ? 2 * n : own->job->first);
  if (late) {
    EG_EACH(j, 2 * n) sums[j] += x[j] + bias[j];
    eg_activate(own, 0, 1, sums, 2 * n);
    EG_EACH(j, n) hidden[j] = sums[n + j] * (hidden[j] + inner[j]);
  }
  EG_EACH(j, n) hidden[j] += x[2 * n + j] + bias[2 * n + j];
  eg_activate(own, 1, 1, hidden, n);
  EG_EACH(j, n) h[j] = (1.0f - sums[j]) * hidden[j] + sums[j] * h[j];
}

static void eg_rnn_row(const eg_sequences* own, const float* restrict x, float* restrict sums, float* restrict h) {
  const eg_index n = own->job->hidden;
  const float* restrict const bias = own->bias;
  EG_EACH(j, n) sums[j] += x[j] + bias[j];
  eg_activate(own, 0, 1, sums, n);
  memcpy(h, sums, n * sizeof(float));
}

static void eg_recurrent_step(const eg_sequences* own, const float* x, eg_index step) {
  const eg_recurrent* const job = own->job;
  const eg_index n = job->hidden, apart = job->first + job->second, gates = job->gates, second = eg_second_of(job);
  eg_with_state(own, own->h, own->r, gates - second, 0);
  if (second) {
    for (eg_index row = 0; row < own->rows; ++row)
      eg_reset_row(own, x + row * gates, own->sums + row * apart, own->h + row * n, own->c + row * n);
    eg_with_state(own, own->c, own->r + eg_packed_gates(gates - second, 0, n), second, job->first);
  }
  const float* const y = eg_given(job, EG_Y, step * job->y_step + own->direction * job->y_direction);
  for (eg_index row = 0; row < own->rows; ++row) {
    float *const h = own->h + row * n, *const sums = own->sums + row * apart;
    float* const to = y ? (float*)y + (own->row + row) * job->y_row : NULL;
    if (!eg_lives(own, row, step)) {
      if (to) memset(to, 0, n * sizeof(float));
      continue;
    }
    if (job->cell == EG_LSTM)
      eg_lstm_row(own, x + row * gates, sums, h, own->c + row * n);
    else if (job->cell == EG_RNN)
      eg_rnn_row(own, x + row * gates, sums, h);
    else
      eg_gru_row(own, x + row * gates, sums, h);
    if (to) memcpy(to, h, n * sizeof(float));
  }
}

static void eg_project(const eg_sequences* own, eg_index first, eg_index count) {
  const eg_recurrent* const job = own->job;
  eg_product made = eg_projection(job, count, own->rows, own->table);
  made.a = (const char*)eg_given(job, EG_X, first * job->x_step + own->row * job->x_row);
  made.b = (const char*)own->w;
  made.c = (char*)own->projected;
  made.memory = job->memory + job->product_at;
  // A thread's room begins where the plan of the greatest product says, whatever this one needs.
  if (made.threads == 1) made.memory += eg_self * (job->product_room - eg_plan(&made));
  eg_multiply(&made);
}

// The states of all rows to or from tensors; zeros from none.
static void eg_states(const eg_sequences* own, float* state, int from, int to) {
  const eg_recurrent* const job = own->job;
  const size_t bytes = job->hidden * sizeof(float);
  const eg_index at = own->direction * job->state_direction;
  for (eg_index row = 0; row < own->rows; ++row, state += job->hidden) {
    const eg_index place = at + (own->row + row) * job->state_row;
    if (from >= 0 && job->given[from])
      memcpy(state, eg_given(job, from, place), bytes);
    else if (from >= 0)
      memset(state, 0, bytes);
    if (to >= 0 && job->given[to]) memcpy((float*)eg_given(job, to, place), state, bytes);
  }
}

static void eg_begin(eg_sequences* own) {
  const eg_recurrent* const job = own->job;
  const eg_index n = job->hidden, gates = job->gates, late = job->cell == EG_LATE_GRU;
  const float* const bias = eg_given(job, EG_BIAS, own->direction * 2 * gates);
  for (eg_index j = 0; j < gates; ++j)
    own->bias[j] = !bias ? 0.0f : late && j >= 2 * n ? bias[j] : bias[j] + bias[gates + j];
  for (eg_index j = 0; late && j < n; ++j) own->bias[gates + j] = bias ? bias[gates + 2 * n + j] : 0.0f;
  for (eg_index row = 0; row < own->rows; ++row) {
    own->table[3 * row] = row * job->x_row * (eg_index)sizeof(float);
    own->table[3 * row + 1] = 0;
    own->table[3 * row + 2] = row * gates * (eg_index)sizeof(float);
  }
  eg_states(own, own->h, EG_H0, -1);
  if (job->cell == EG_LSTM) eg_states(own, own->c, EG_C0, -1);
}

static void eg_recur(void* work, eg_index number) {
  const eg_recurrent* const job = work;
  const eg_index direction = number / job->parts, part = number % job->parts, gates = job->gates, n = job->hidden;
  float* const room = (float*)(job->memory + eg_self * job->own);
  const eg_index row = job->batch * part / job->parts;
  const int* const lengths = job->given[EG_LENGTHS];
  eg_sequences own = {
      .job = job, .direction = direction, .row = row, .rows = job->batch * (part + 1) / job->parts - row,
      .backward = direction || job->reversed, .lengths = lengths ? lengths + row : NULL,
      .w = eg_given(job, EG_W, direction * eg_packed_gates(gates, 0, job->width)),
      .r = eg_given(job, EG_R, direction * (job->first + job->second) * n),
      .peepholes = eg_given(job, EG_PEEPHOLES, direction * 3 * n), .functions = job->functions + 3 * direction,
      .projected = room + job->projected_at, .sums = room + job->sums_at, .lifted = room + job->lifted_at,
      .h = room + job->h_at, .c = room + job->c_at, .left = room + job->left_at, .spare = room + job->spare_at,
      .bias = room + job->bias_at, .table = (eg_index*)(room + job->table_at)};
  eg_begin(&own);
  const eg_index chunks = eg_parts_of(job->steps, job->chunk);
  for (eg_index each = 0; each < chunks; ++each) {
    const eg_index first = (own.backward ? chunks - 1 - each : each) * job->chunk;
    const eg_index count = eg_least(job->chunk, job->steps - first);
    eg_project(&own, first, count);
    for (eg_index s = 0; s < count; ++s) {
      const eg_index step = own.backward ? count - 1 - s : s;
      eg_recurrent_step(&own, own.projected + step * own.rows * gates, first + step);
    }
  }
  eg_states(&own, own.h, -1, EG_LAST_H);
  if (job->cell == EG_LSTM) eg_states(&own, own.c, -1, EG_LAST_C);
}

// A length beyond the steps is an error where a sequence runs backward.
static int eg_is_too_long(const eg_recurrent* job) {
  const int* const lengths = job->given[EG_LENGTHS];
  int found = 0;
  for (eg_index row = 0; lengths && row < job->batch; ++row) found |= lengths[row] > job->steps;
  return found && (job->reversed || job->directions > 1);
}

void eg_run_recurrent(eg_recurrent* job) {
  eg_plan_recurrent(job);
  if (eg_is_too_long(job)) {
    *(eg_index*)job->given[EG_TOLD] = 1;
    return;
  }
  const eg_index second = eg_second_of(job), first = job->gates - second;
  if (!job->w_packed) {
    float* const to = (float*)(job->memory + job->w_at);
    eg_pack_gates(job->given[EG_W], job->directions, job->gates, 0, job->width, to);
    job->given[EG_W] = to;
    job->w_plain = eg_is_plain(to, job->directions * eg_packed_gates(job->gates, 0, job->width));
  }
  if (!job->r_packed) {
    float* const to = (float*)(job->memory + job->r_at);
    eg_pack_gates(job->given[EG_R], job->directions, first, second, job->hidden, to);
    job->given[EG_R] = to;
    job->r_plain = eg_is_plain(to, job->directions * eg_packed_gates(first, second, job->hidden));
  }
  eg_parallel(eg_recur, job, job->directions * job->parts, job->threads);
}
