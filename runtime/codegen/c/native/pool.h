// One pool of threads for all that egraft runs in C. A thread that has nothing to do sleeps, so that a machine with
// other work on it loses next to nothing: it looks for work before, for some microseconds, if the last work came in that
// time. Whoever calls works too, and takes whatever the others have not begun; where the pool is busy (several callers
// at once) or cannot be had, the caller does all of it.
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef long long eg_index;
typedef void (*eg_task)(void* work, eg_index number);

#define EG_MOST_THREADS 256
#define EG_PATIENCE 60000  // nanoseconds: about what waking up a thread takes; the next kernel of a graph comes sooner
#define EG_CALL_PATIENCE 500000  // while several kernels run in one call, some of which one thread does alone

#if defined(__x86_64__) || defined(__i386__)
#define EG_PAUSE() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define EG_PAUSE() __asm__ volatile("yield")
#else
#define EG_PAUSE() ((void)0)
#endif

static long long eg_now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static struct {
  pthread_mutex_t caller;  // held by the one whose work is under way
  pthread_mutex_t lock;    // guards what follows
  pthread_cond_t wake, done;
  eg_task task;
  void* work;
  struct { eg_index next, end, unused[6]; } shares[EG_MOST_THREADS];  // of the work, each in a line of the cache
  int sharers;
  int threads, wanted, joined, active, calls;  // `calls`: of several kernels that are under way
  unsigned long long round;
} eg_pool = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, PTHREAD_COND_INITIALIZER};

static __thread eg_index eg_self;  // which of the threads that share the work under way this is: 0 for the caller

// A thread begins with the same share of the work in each run, so that it finds its part of the weights in its cache.
static void eg_take_all(void) {
  for (int turn = 0; turn < eg_pool.sharers; ++turn) {
    const int share = (int)(eg_self + turn) % eg_pool.sharers;
    for (;;) {
      const eg_index number = __atomic_fetch_add(&eg_pool.shares[share].next, 1, __ATOMIC_RELAXED);
      if (number >= eg_pool.shares[share].end) break;
      eg_pool.task(eg_pool.work, number);
    }
  }
}

static void* eg_helper(void* unused) {
  (void)unused;
  unsigned long long seen = 0;
  long long idle = 4 * EG_PATIENCE;  // nanoseconds until there was something to do last time, waking up included
  for (;;) {
    const long long start = eg_now();
    while (idle < 4 * EG_PATIENCE && __atomic_load_n(&eg_pool.round, __ATOMIC_RELAXED) == seen &&
           eg_now() - start < (__atomic_load_n(&eg_pool.calls, __ATOMIC_RELAXED) ? EG_CALL_PATIENCE : EG_PATIENCE))
      EG_PAUSE();
    pthread_mutex_lock(&eg_pool.lock);
    while (eg_pool.round == seen || eg_pool.joined >= eg_pool.wanted) {
      seen = eg_pool.round;
      pthread_cond_wait(&eg_pool.wake, &eg_pool.lock);
    }
    seen = eg_pool.round;
    eg_self = ++eg_pool.joined;
    ++eg_pool.active;
    pthread_mutex_unlock(&eg_pool.lock);
    idle = eg_now() - start;
    eg_take_all();
    pthread_mutex_lock(&eg_pool.lock);
    if (__atomic_sub_fetch(&eg_pool.active, 1, __ATOMIC_RELAXED) == 0) pthread_cond_signal(&eg_pool.done);
    pthread_mutex_unlock(&eg_pool.lock);
  }
  return NULL;
}

// The child of a fork has no threads but its own.
static void eg_forked(void) {
  pthread_mutex_init(&eg_pool.caller, NULL);
  pthread_mutex_init(&eg_pool.lock, NULL);
  pthread_cond_init(&eg_pool.wake, NULL);
  pthread_cond_init(&eg_pool.done, NULL);
  eg_pool.threads = eg_pool.wanted = eg_pool.joined = eg_pool.active = 0;
}

static int eg_has_helpers(int wanted) {  // under the lock
  static int registered;
  if (!registered) registered = pthread_atfork(NULL, NULL, eg_forked) == 0;
  while (registered && eg_pool.threads < wanted && eg_pool.threads < EG_MOST_THREADS) {
    pthread_t made;
    if (pthread_create(&made, NULL, eg_helper, NULL)) break;
    pthread_detach(made);
    ++eg_pool.threads;
  }
  return eg_pool.threads > 0;
}

// task(work, 0), ..., task(work, count - 1), in any order, by at most `threads` threads; all are done on return.
static void eg_parallel(eg_task task, void* work, eg_index count, eg_index threads) {
  if (threads > count) threads = count;
  if (threads < 2 || pthread_mutex_trylock(&eg_pool.caller)) {
    for (eg_index number = 0; number < count; ++number) task(work, number);
    return;
  }
  pthread_mutex_lock(&eg_pool.lock);
  eg_pool.task = task;
  eg_pool.work = work;
  eg_pool.joined = 0;
  if (threads > EG_MOST_THREADS) threads = EG_MOST_THREADS;
  eg_pool.wanted = eg_has_helpers((int)threads - 1) ? (int)threads - 1 : 0;
  eg_pool.sharers = (int)threads;
  for (eg_index share = 0; share < threads; ++share) {
    eg_pool.shares[share].next = count * share / threads;
    eg_pool.shares[share].end = count * (share + 1) / threads;
  }
  __atomic_add_fetch(&eg_pool.round, 1, __ATOMIC_RELAXED);
  if (eg_pool.wanted == 1)
    pthread_cond_signal(&eg_pool.wake);
  else if (eg_pool.wanted)
    pthread_cond_broadcast(&eg_pool.wake);
  pthread_mutex_unlock(&eg_pool.lock);
  eg_take_all();
  pthread_mutex_lock(&eg_pool.lock);
  eg_pool.wanted = 0;  // who comes now comes too late
  if (eg_pool.active) {
    pthread_mutex_unlock(&eg_pool.lock);
    const long long start = eg_now();
    while (__atomic_load_n(&eg_pool.active, __ATOMIC_RELAXED) && eg_now() - start < EG_PATIENCE) EG_PAUSE();
    pthread_mutex_lock(&eg_pool.lock);
  }
  while (eg_pool.active) pthread_cond_wait(&eg_pool.done, &eg_pool.lock);
  pthread_mutex_unlock(&eg_pool.lock);
  pthread_mutex_unlock(&eg_pool.caller);
}
