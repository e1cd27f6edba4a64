#include "cuda_on_cpu.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

namespace cuda_on_cpu {
namespace {

constexpr size_t kStackBytes = size_t{256} << 10;
constexpr unsigned kMaxThreads = 1024;

// AddressSanitizer's longjmp, in the place of libc's, makes each jump a hundred times slower, so
// under it libc is asked for its own. The functions that jump must not be seen by it either.
using Jump = void (*)(jmp_buf, int);
#ifdef __SANITIZE_ADDRESS__
const Jump go_to = reinterpret_cast<Jump>(dlsym(dlopen("libc.so.6", RTLD_LAZY), "_longjmp"));
#else
const Jump go_to = _longjmp;
#endif
#define POSENC_JUMPS [[gnu::noinline, gnu::no_sanitize("address")]]

// Reached `expected` times, it lets all who wait go on.
struct Barrier {
  unsigned arrived = 0, generation = 0, expected = 0;

  void leave() {  // one thread less will ever come
    --expected;
    open_if_full();
  }
  void open_if_full() {
    if (arrived > 0 && arrived == expected) {
      arrived = 0;
      ++generation;
    }
  }
};

// A stack, and what AddressSanitizer has to hear when the processor goes to it and is there.
struct Stack {
  const void* bottom = nullptr;
  size_t size = 0;
  void* fake = nullptr;  // AddressSanitizer's own, while the processor is elsewhere

  void leave_for(const Stack& other) {
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(&fake, other.bottom, other.size);
#else
    static_cast<void>(other);
#endif
  }
  void arrive_from(Stack& other) {
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(fake, &other.bottom, &other.size);
#else
    static_cast<void>(other);
#endif
  }
};

// A thread of the block. Its stack is made once and kept: each launch runs on it anew.
struct Fiber {
  ucontext_t context;
  Stack switching;
  std::unique_ptr<char[]> stack;
  jmp_buf place;
  bool started = false, done = false;
  const Barrier* waits_for = nullptr;
  unsigned generation = 0;

  bool can_run() const {
    return !done && (waits_for == nullptr || waits_for->generation != generation);
  }
};

struct Block {
  std::vector<Fiber> fibers{kMaxThreads};
  unsigned current = 0, threads = 0, alive = 0;
  jmp_buf scheduler;
  ucontext_t scheduler_context;
  Stack scheduler_stack;
  const std::function<void()>* kernel = nullptr;
  std::exception_ptr error;
  Barrier all;
  Barrier warps[kMaxThreads / 32];
  uint64_t slots[kMaxThreads];
};

Block* block = nullptr;

POSENC_JUMPS void yield() {
  Fiber& fiber = block->fibers[block->current];
  fiber.switching.leave_for(block->scheduler_stack);
  if (_setjmp(fiber.place) == 0) go_to(block->scheduler, 1);
  block->fibers[block->current].switching.arrive_from(block->scheduler_stack);
  block->fibers[block->current].waits_for = nullptr;
}

void wait(Barrier& barrier) {
  Fiber& fiber = block->fibers[block->current];
  fiber.waits_for = &barrier;
  fiber.generation = barrier.generation;
  ++barrier.arrived;
  barrier.open_if_full();
  yield();
}

void fiber_main() {
  block->fibers[block->current].switching.arrive_from(block->scheduler_stack);
  for (;;) {
    try {
      (*block->kernel)();
    } catch (...) {
      block->error = std::current_exception();
    }
    block->fibers[block->current].done = true;
    --block->alive;
    block->all.leave();
    block->warps[block->current / 32].leave();
    yield();
  }
}

POSENC_JUMPS void resume(unsigned thread) {
  Fiber& fiber = block->fibers[thread];
  block->current = thread;
  threadIdx = {thread, 0, 0};
  if (!fiber.stack) {
    fiber.stack = std::make_unique_for_overwrite<char[]>(kStackBytes);
    fiber.switching = {fiber.stack.get(), kStackBytes};
  }
  block->scheduler_stack.leave_for(fiber.switching);
  if (_setjmp(block->scheduler) != 0) {
    block->scheduler_stack.arrive_from(block->fibers[thread].switching);
    return;
  }
  if (fiber.started) go_to(fiber.place, 1);
  fiber.started = true;
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.get();
  fiber.context.uc_stack.ss_size = kStackBytes;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, fiber_main, 0);
  swapcontext(&block->scheduler_context, &fiber.context);
}

// All that a warp can do without the others, its threads one by one up to each barrier, from the
// first to the last in even blocks and the other way in odd ones: a missing barrier then shows in
// one of them. Was there anything?
bool run_warp(unsigned warp) {
  const unsigned begin = warp * 32, count = std::min(32u, block->threads - begin);
  bool ran = false;
  for (bool again = true; again;) {
    again = false;
    for (unsigned i = 0; i < count; ++i) {
      const unsigned thread = begin + (blockIdx.x % 2 ? count - 1 - i : i);
      if (!block->fibers[thread].can_run()) continue;
      again = ran = true;
      resume(thread);
      if (block->error) return ran;
    }
  }
  return ran;
}

// Warps take turns in random order, each up to a barrier of the block: where such a barrier is
// missing, or is one of the warp only, one warp is far ahead of another.
void run_block() {
  static std::minstd_rand random;
  block->alive = block->threads;
  block->all = {0, 0, block->threads};
  for (unsigned warp = 0; warp * 32 < block->threads; ++warp)
    block->warps[warp] = {0, 0, std::min(32u, block->threads - warp * 32)};
  for (unsigned i = 0; i < block->threads; ++i) block->fibers[i].done = false;
  std::vector<unsigned> warps((block->threads + 31) / 32);
  std::iota(warps.begin(), warps.end(), 0u);
  while (block->alive > 0) {
    bool progress = false;
    std::shuffle(warps.begin(), warps.end(), random);
    for (const unsigned warp : warps) {
      progress = run_warp(warp) || progress;
      if (block->error) return;
    }
    if (!progress) {
      block->error = std::make_exception_ptr(
          std::runtime_error("deadlock: a barrier that not every thread reaches"));
      return;
    }
  }
}

}  // namespace

void launch(int64_t blocks, int threads, const std::function<void()>& kernel) {
  if (blocks < 1 || blocks > POSENC_MAX_BLOCKS || threads < 1 || threads > int{kMaxThreads})
    throw std::runtime_error("invalid configuration of a launch");
  static std::unique_ptr<Block> kept;
  if (!kept) kept = std::make_unique<Block>();
  block = kept.get();
  block->threads = static_cast<unsigned>(threads);
  block->kernel = &kernel;
  gridDim = {static_cast<unsigned>(blocks), 1, 1};
  blockDim = {block->threads, 1, 1};
  for (unsigned i = 0; i < gridDim.x && !block->error; ++i) {
    blockIdx = {i, 0, 0};
    run_block();
  }
  if (block->error) {
    const std::exception_ptr error = block->error;
    kept.reset();  // with the stacks of threads that stand in the middle of the kernel
    std::rethrow_exception(error);
  }
}

void block_barrier() { wait(block->all); }

void warp_barrier(unsigned mask) {
  if ((mask >> block->current % 32 & 1) == 0)
    throw std::runtime_error("a lane that its mask does not name");
  wait(block->warps[block->current / 32]);
}

uint64_t exchange(unsigned mask, uint64_t value, unsigned from) {
  if ((mask >> from & 1) == 0) throw std::runtime_error("a value of a lane outside the mask");
  block->slots[block->current] = value;
  warp_barrier(mask);
  const uint64_t result = block->slots[block->current / 32 * 32 + from];
  warp_barrier(mask);
  return result;
}

}  // namespace cuda_on_cpu
