// One pool of threads for all that egraft runs in C. Nobody spins: a thread that has nothing to do sleeps, so that a
// machine with other work on it loses nothing. Whoever calls works too, and takes whatever the others have not begun;
// where the pool is busy (several callers at once) or cannot be had, the caller does all of it.
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef long long eg_index;
typedef void (*eg_task)(void* work, eg_index number);

#define EG_MOST_THREADS 256

static struct {
  pthread_mutex_t caller;  // held by the one whose work is under way
  pthread_mutex_t lock;    // guards what follows
  pthread_cond_t wake, done;
  eg_task task;
  void* work;
  eg_index count, next;
  int threads, wanted, joined, active;
  unsigned long long round;
} eg_pool = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, PTHREAD_COND_INITIALIZER};

static __thread eg_index eg_self;  // which of the threads that share the work under way this is: 0 for the caller

static void eg_take_all(void) {
  for (;;) {
    const eg_index number = __atomic_fetch_add(&eg_pool.next, 1, __ATOMIC_RELAXED);
    if (number >= eg_pool.count) return;
    eg_pool.task(eg_pool.work, number);
  }
}

static void* eg_helper(void* unused) {
  (void)unused;
  unsigned long long seen = 0;
  pthread_mutex_lock(&eg_pool.lock);
  for (;;) {
    while (eg_pool.round == seen || eg_pool.joined >= eg_pool.wanted) {
      seen = eg_pool.round;
      pthread_cond_wait(&eg_pool.wake, &eg_pool.lock);
    }
    seen = eg_pool.round;
    eg_self = ++eg_pool.joined;
    ++eg_pool.active;
    pthread_mutex_unlock(&eg_pool.lock);
    eg_take_all();
    pthread_mutex_lock(&eg_pool.lock);
    if (--eg_pool.active == 0) pthread_cond_signal(&eg_pool.done);
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
  eg_pool.count = count;
  eg_pool.next = 0;
  eg_pool.joined = 0;
  eg_pool.wanted = eg_has_helpers((int)threads - 1) ? (int)threads - 1 : 0;
  ++eg_pool.round;
  if (eg_pool.wanted == 1)
    pthread_cond_signal(&eg_pool.wake);
  else if (eg_pool.wanted)
    pthread_cond_broadcast(&eg_pool.wake);
  pthread_mutex_unlock(&eg_pool.lock);
  eg_take_all();
  pthread_mutex_lock(&eg_pool.lock);
  eg_pool.wanted = 0;  // who comes now comes too late
  while (eg_pool.active) pthread_cond_wait(&eg_pool.done, &eg_pool.lock);
  pthread_mutex_unlock(&eg_pool.lock);
  pthread_mutex_unlock(&eg_pool.caller);
}
