// The scheduler of the checking emulation: every thread of a block is a fiber, barriers and shuffles are where they
// wait for each other, and the order in which they run changes with the seed. A fiber is entered once by setcontext,
// then switched to by longjmp, which spares two system calls each time, and goes on from block to block.
#undef _FORTIFY_SOURCE  // it would take a jump to another stack for an overflow
#include <setjmp.h>
#include <ucontext.h>

#include <cstdio>
#include <memory>
#include <random>
#include <vector>

#include "emulation.h"

namespace {
constexpr size_t STACK = 256 << 10;  // of which the system only gives what is touched
enum Waits { RUNNABLE, BARRIER, EXCHANGE, DONE };
struct Fiber {
  ucontext_t context;
  jmp_buf jump;
  bool entered = false;
  std::unique_ptr<char[]> stack{new char[STACK]};
  eg_triple thread;
  int waits;
  char slot[8], received[8];
  int bytes, lane_xor;
};
std::vector<Fiber> fibers;
Fiber* current;
jmp_buf scheduler;
void (*entry)(void**);
void** arguments;
bool may_wait;
int faults;
char* report;
int capacity, used;

void yield(int waits) {
  current->waits = waits;
  if (!_setjmp(current->jump)) _longjmp(scheduler, 1);
}

void run_entry() {
  for (;;) {
    entry(arguments);
    yield(DONE);
  }
}

void resume(Fiber& fiber, int number) {
  current = &fiber;
  eg_now.thread = fiber.thread;
  eg_now.in_block = number;
  eg_now.in_grid = 1 + number + (long)eg_now.block.x * (long)fibers.size();
  if (_setjmp(scheduler)) return;
  if (fiber.entered) _longjmp(fiber.jump, 1);
  fiber.entered = true;
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.get();
  fiber.context.uc_stack.ss_size = STACK;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, run_entry, 0);
  setcontext(&fiber.context);
}

// Lets the warps go on whose lanes have all arrived at one shuffle. True if any does.
bool exchange_warps() {
  bool any = false;
  for (size_t first = 0; first < fibers.size(); first += 32) {
    const size_t last = first + 32 < fibers.size() ? first + 32 : fibers.size();
    bool ready = true;
    for (size_t i = first; i < last; i++)
      ready = ready && fibers[i].waits == EXCHANGE && fibers[i].lane_xor == fibers[first].lane_xor;
    if (!ready) continue;
    for (size_t i = first; i < last; i++) {
      const size_t other = first + ((i - first) ^ (size_t)fibers[first].lane_xor);
      if (other >= last) eg_fault("shuffle with a lane that does not exist", "", (long)i, (long)other);
      memcpy(fibers[i].received, fibers[other < last ? other : i].slot, 8);
      fibers[i].waits = RUNNABLE;
    }
    any = true;
  }
  return any;
}

bool run_block(std::mt19937& random, bool shuffle) {
  const size_t count = fibers.size();
  std::vector<int> order(count);
  for (size_t i = 0; i < count; i++) {
    order[i] = (int)i;
    fibers[i].waits = RUNNABLE;
  }
  for (;;) {
    for (size_t i = count; shuffle && i > 1; i--) std::swap(order[i - 1], order[random() % i]);
    for (int i : order)
      if (fibers[i].waits == RUNNABLE) resume(fibers[i], i);
    if (exchange_warps()) continue;
    size_t at_barrier = 0, done = 0;
    for (const Fiber& fiber : fibers) at_barrier += fiber.waits == BARRIER, done += fiber.waits == DONE;
    if (done == count) return true;
    if (at_barrier != count) {
      eg_fault("divergent barrier or shuffle: threads at a barrier, of", "", (long)at_barrier, (long)count);
      for (Fiber& fiber : fibers) fiber.entered = false;  // they stand in the middle of the kernel
      return false;
    }
    eg_now.epoch++;
    for (Fiber& fiber : fibers) fiber.waits = RUNNABLE;
  }
}

// Threads that never wait need no fibers.
void run_plain(size_t count) {
  const eg_triple size = eg_now.block_size;
  for (size_t i = 0; i < count; i++) {
    eg_now.thread = {(unsigned)(i % size.x), (unsigned)(i / size.x), 0};
    eg_now.in_block = (int)i;
    eg_now.in_grid = 1 + (long)i + (long)eg_now.block.x * (long)count;
    entry(arguments);
  }
}
}  // namespace

extern "C" {
eg_state eg_now;

void eg_fault(const char* what, const char* where, long a, long b) {
  if (faults++ < 20 && used < capacity)
    used += snprintf(report + used, (size_t)(capacity - used), "%s%s%s (%ld, %ld), block %u thread %u,%u\n", what,
                     *where ? " " : "", where, a, b, eg_now.block.x, eg_now.thread.x, eg_now.thread.y);
}

void eg_barrier() {
  if (!may_wait) return eg_fault("barrier in a kernel that declares none", "", 0, 0);
  yield(BARRIER);
}

void eg_exchange(void* value, int bytes, int lane_xor) {
  if (!may_wait) return eg_fault("shuffle in a kernel that declares none", "", 0, 0);
  Fiber* me = current;
  memcpy(me->slot, value, (size_t)bytes);
  me->lane_xor = lane_xor;
  yield(EXCHANGE);
  memcpy(value, me->received, (size_t)bytes);
}

// Runs a grid of blocks one after another. Returns the number of faults, their texts in `text`.
int eg_launch(void (*kernel)(void**), void** args, unsigned grid_x, const unsigned* block, unsigned seed, int waits,
              char* text, int text_capacity) {
  entry = kernel, arguments = args, may_wait = waits != 0;
  faults = 0, used = 0, report = text, capacity = text_capacity;
  if (capacity > 0) report[0] = 0;
  eg_now.grid_size = {grid_x, 1, 1};
  eg_now.block_size = {block[0], block[1], 1};
  const size_t count = (size_t)block[0] * block[1];
  std::mt19937 random(seed);
  if (may_wait) {
    if (fibers.size() != count) fibers = std::vector<Fiber>(count);
    for (size_t i = 0; i < count; i++) fibers[i].thread = {(unsigned)(i % block[0]), (unsigned)(i / block[0]), 0};
  }
  std::vector<unsigned> blocks(grid_x);
  for (unsigned b = 0; b < grid_x; b++) blocks[b] = b;
  for (size_t i = grid_x; seed && i > 1; i--) std::swap(blocks[i - 1], blocks[random() % i]);
  for (unsigned b : blocks) {
    eg_now.block = {b, 0, 0};
    eg_now.epoch++;
    if (!may_wait) run_plain(count);
    else if (!run_block(random, seed != 0)) break;
  }
  return faults;
}
}
