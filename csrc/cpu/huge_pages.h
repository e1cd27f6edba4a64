// Large fresh outputs cost more in page faults than in arithmetic: the kernel clears every 4 KB
// page as it is first touched. Huge pages take a few faults instead of tens of thousands. NumPy
// asks for them in the same way, from the same size on.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace posenc {

// Advice only: a kernel that does not follow it changes nothing, so its answer is not looked at.
inline void prefer_huge_pages(const at::Tensor& fresh) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr size_t threshold = size_t{1} << 22, page = 4096;
  const size_t bytes = fresh.storage().nbytes();
  if (bytes < threshold) return;
  const auto begin = reinterpret_cast<uintptr_t>(fresh.storage().data());
  const uintptr_t aligned = (begin + page - 1) / page * page;
  madvise(reinterpret_cast<void*>(aligned), bytes - (aligned - begin), MADV_HUGEPAGE);
#else
  (void)fresh;
#endif
}

}  // namespace posenc
