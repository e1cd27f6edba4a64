// Whether this process is a forked child: see parallel.h.
#include "cpu/parallel.h"

#ifndef _WIN32
#include <pthread.h>
#endif

namespace posenc {
namespace {

bool forked = false;  // written in the child, by its only thread

#ifndef _WIN32
[[maybe_unused]] const int registered = pthread_atfork(nullptr, nullptr, [] { forked = true; });
#endif

}  // namespace

bool in_forked_child() { return forked; }

}  // namespace posenc
