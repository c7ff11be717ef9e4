// A call of a fused kernel in one go: its launches and products one after the other, on arguments at given addresses.
#include "engine.c"
#include "recurrent.h"

// Whatever is the same in all calls is in templates. An argument's number of -1 means that the bytes are an address.
typedef struct eg_step {
  const eg_launch* launch;     // of the kernel, or of the one behind the product; NULL if there is none
  const eg_index* sources;     // for each of its pointers: argument, or -1 for a row buffer; bytes into it
  const eg_product* product;   // NULL for a launch alone
  eg_index left, left_at, right, right_at, target, target_at;
  // A product whose image is padded as a whole, one image at a time; else 0 images.
  eg_index images, image_at, image_bytes, table_step, channels;  // where it is padded in the memory; words of the table
  const eg_padding* padding;
  eg_index memory, memory_at;  // its own, which begins at a line of the cache: argument, bytes into it
  const eg_recurrent* recurrent;  // not NULL: that and no launch; `sources` are those of what it is given
  const struct eg_step* before;   // not NULL: the product of which this one reads what it makes, tile by tile
} eg_step;

static void eg_bind(const eg_step* step, const eg_index* arguments, eg_launch* launch, eg_index* bases) {
  *launch = *step->launch;
  for (eg_index p = 0; p < launch->pointers; ++p) {
    const eg_index argument = step->sources[2 * p], at = step->sources[2 * p + 1];
    bases[p] = argument < 0 ? at : arguments[argument] + at;
  }
  launch->bases = bases;
}

static const char* eg_at(const eg_index* arguments, eg_index argument, eg_index at) {
  return (const char*)(argument < 0 ? at : arguments[argument] + at);
}

// A product with its operands, and the kernel behind it.
static eg_product eg_bound(const eg_step* step, const eg_index* arguments, eg_launch* launch, eg_index* bases) {
  eg_product job = *step->product;
  job.a = eg_at(arguments, step->left, step->left_at);
  job.b = eg_at(arguments, step->right, step->right_at);
  job.c = (char*)eg_at(arguments, step->target, step->target_at);
  job.then = step->launch ? launch : NULL;
  if (step->launch) eg_bind(step, arguments, launch, bases);
  return job;
}

// All planes of an image into `to`.
typedef struct {
  const eg_padding* padding;
  const float* from;
  float* to;
  eg_index planes, threads;
} eg_padded;

static void eg_pad_plane(void* work, eg_index plane) {
  const eg_padded* const job = work;
  const eg_index* const room = job->padding->room;
  eg_pad_lines(job->padding, job->from, plane, 0, room[job->padding->axis], job->to + plane * room[0] * room[1] * room[2]);
}

static void eg_pad(const eg_padded* job) { eg_parallel(eg_pad_plane, (void*)job, job->planes, job->threads); }

static void eg_follow_recurrent(const eg_step* step, const eg_index* arguments, char* own) {
  eg_recurrent job = *step->recurrent;
  for (int which = 0; which < EG_ALL; ++which)
    job.given[which] = eg_at(arguments, step->sources[2 * which], step->sources[2 * which + 1]);
  job.memory = own;
  eg_run_recurrent(&job);
}

static void eg_images(const eg_step* step, eg_product* job, char* room) {
  const char* const from = job->a;
  const eg_index* const table = job->table;
  job->a = room;
  for (eg_index number = 0; number < step->images; ++number) {
    const eg_padded padded = {step->padding, (const float*)(from + number * step->image_bytes), (float*)room,
                              step->channels, job->threads};
    eg_pad(&padded);
    job->table = table + number * step->table_step;
    eg_multiply(job);
  }
}

// Argument `fault` is where faults are told: what comes after one is not run.
void eg_follow(const eg_step* steps, eg_index count, const eg_index* arguments, eg_index fault) {
  __atomic_add_fetch(&eg_pool.calls, count > 1, __ATOMIC_RELAXED);
  for (const eg_step* step = steps; step < steps + count && !*(const eg_index*)arguments[fault]; ++step) {
    eg_index bases[EG_MOST_POINTERS];
    eg_launch launch;
    char* const own = (char*)arguments[step->memory] + step->memory_at;
    if (step->recurrent) {
      eg_follow_recurrent(step, arguments, own);
      continue;
    }
    if (!step->product) {
      eg_bind(step, arguments, &launch, bases);
      launch.memory = own;
      eg_run(&launch);
      continue;
    }
    eg_product job = eg_bound(step, arguments, &launch, bases), before;
    eg_index bases_before[EG_MOST_POINTERS];
    eg_launch launch_before;
    if (step->before) {
      before = eg_bound(step->before, arguments, &launch_before, bases_before);
      job.before = &before;
    }
    job.memory = own;
    if (step->images)
      eg_images(step, &job, own + step->image_at);
    else
      eg_multiply(&job);
  }
  __atomic_sub_fetch(&eg_pool.calls, count > 1, __ATOMIC_RELAXED);
}

#if defined(__GLIBC__)
#include <malloc.h>
// Memory of arrays that were given up stays here, up to a limit: pages that come anew from the system in each run are
// cleared by it each time.
__attribute__((constructor)) static void eg_keep(void) {
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 64 << 20);
}
#endif
