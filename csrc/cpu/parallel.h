// The parallel loop of every op.
#pragma once

#include <ATen/Parallel.h>

namespace posenc {

// This process was made by fork(), without an exec since.
bool in_forked_child();

// at::parallel_for, except in a forked child: there the calling thread does all the work. The
// threads of OpenMP do not survive a fork, and the next parallel region would wait for them for
// ever. Nothing tells whether there were any.
template <class F>
void parallel_for(int64_t begin, int64_t end, int64_t grain, const F& f) {
  if (!in_forked_child()) {
    at::parallel_for(begin, end, grain, f);
  } else if (begin < end) {
    f(begin, end);
  }
}

}  // namespace posenc
