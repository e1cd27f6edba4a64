// Row kernels of the relative ops. An index comes as runs, found once per call: most schemes are
// made of neighbouring columns (a shifted row) and of one column (clipped, or in one bucket).
#pragma once

#include <cstdint>
#include <cstring>

#include "half.h"

namespace posenc {

// Entries [begin, end) of an index. Entry k is first + step * (k - begin), unless mixed.
struct RelativeRun {
  enum Kind : int64_t { down = -1, flat = 0, up = 1, mixed = 2 };
  int64_t begin, end;
  int64_t first;
  Kind kind;
};

// What one row sees of an index: the entries [window, window + keys).
struct RelativeWindow {
  const RelativeRun* run;  // the one that `window` is in
  const int64_t* index;
  int64_t window, keys;
};

// body(kind, its first column here, its first key, number of keys)
template <class Body>
POSENC_INLINE void for_each_run(const RelativeWindow& w, const Body& body) {
  const int64_t end = w.window + w.keys;
  const RelativeRun* r = w.run;
  for (int64_t at = w.window; at < end; ++r) {
    const int64_t stop = r->end < end ? r->end : end;
    const int64_t step = r->kind == RelativeRun::mixed ? 0 : static_cast<int64_t>(r->kind);
    body(r->kind, r->first + step * (at - r->begin), at - w.window, stop - at);
    at = stop;
  }
}

// out[j] = x[index[window + j]]. T is an unsigned integer of the size of an element.
template <class T>
POSENC_INLINE void relative_gather_row(const RelativeWindow& w, const T* x, T* out) {
  for_each_run(w, [&](RelativeRun::Kind kind, int64_t t, int64_t j, int64_t n) {
    T* to = out + j;
    if (kind == RelativeRun::up) {
      std::memcpy(to, x + t, static_cast<size_t>(n) * sizeof(T));
    } else if (kind == RelativeRun::down) {
      for (int64_t k = 0; k < n; ++k) to[k] = x[t - k];
    } else if (kind == RelativeRun::flat) {
      const T value = t < 0 ? T(0) : x[t];
      for (int64_t k = 0; k < n; ++k) to[k] = value;
    } else {
      const int64_t* index = w.index + w.window + j;
      for (int64_t k = 0; k < n; ++k) to[k] = index[k] < 0 ? T(0) : x[index[k]];
    }
  });
}

// Which columns get a sum of more than one key.
struct RelativeSums {
  const int64_t* columns;  // those, [count]
  int64_t count;
  const int64_t* slot;  // [T], where in `columns` a column is, or -1
};

constexpr int64_t kParts = 16;  // of a sum: see relative.h

// parts[j % 16] += y[j] for neighbouring keys.
template <class T, class A>
POSENC_INLINE void add_keys(const T* y, int64_t j, int64_t n, A* parts) {
  const int64_t end = j + n;
  for (; j < end && j % kParts != 0; ++j) parts[j % kParts] += widen(y[j]);
  if (j + kParts <= end) {
    A sums[kParts];
    for (int64_t l = 0; l < kParts; ++l) sums[l] = parts[l];
    for (; j + kParts <= end; j += kParts) {
      for (int64_t l = 0; l < kParts; ++l) sums[l] += widen(y[j + l]);
    }
    for (int64_t l = 0; l < kParts; ++l) parts[l] = sums[l];
  }
  for (; j < end; ++j) parts[j % kParts] += widen(y[j]);
}

// A sum of one value: as it is, but for -0, which becomes +0 as in any sum from +0.
POSENC_INLINE float lone(float x) { return x == 0 ? 0 : x; }
POSENC_INLINE double lone(double x) { return x == 0 ? 0 : x; }
POSENC_INLINE bf16 lone(bf16 x) { return x.bits == 0x8000u ? bf16{0} : x; }
POSENC_INLINE f16 lone(f16 x) { return x.bits == 0x8000u ? f16{0} : x; }

// out[t] = sum of y[j] over the j with index[window + j] == t. `parts` is scratch, [count][16].
template <class T>
POSENC_INLINE void relative_scatter_row(const RelativeWindow& w, const RelativeSums& sums,
                                        const T* y, math_t<T>* parts, T* out, int64_t size) {
  std::memset(static_cast<void*>(out), 0, static_cast<size_t>(size) * sizeof(T));
  for (int64_t i = 0; i < sums.count * kParts; ++i) parts[i] = 0;
  for_each_run(w, [&](RelativeRun::Kind kind, int64_t t, int64_t j, int64_t n) {
    if (kind == RelativeRun::flat) {
      if (t >= 0) add_keys(y, j, n, parts + sums.slot[t] * kParts);
    } else if (kind == RelativeRun::up) {
      for (int64_t k = 0; k < n; ++k) out[t + k] = lone(y[j + k]);
    } else if (kind == RelativeRun::down) {
      for (int64_t k = 0; k < n; ++k) out[t - k] = lone(y[j + k]);
    } else {
      for (int64_t k = j; k < j + n; ++k) {
        const int64_t column = w.index[w.window + k];
        if (column < 0) continue;
        if (sums.slot[column] >= 0) {
          parts[sums.slot[column] * kParts + k % kParts] += widen(y[k]);
        } else {
          out[column] = lone(y[k]);
        }
      }
    }
  });
  for (int64_t i = 0; i < sums.count; ++i) {
    math_t<T>* p = parts + i * kParts;
    for (int64_t half = kParts / 2; half > 0; half /= 2) {
      for (int64_t l = 0; l < half; ++l) p[l] += p[l + half];
    }
    narrow(p[0], out[sums.columns[i]]);
  }
}

}  // namespace posenc
