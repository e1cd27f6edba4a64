// What one thread of a table kernel reads and writes: positions, columns, 16 bytes at a time.
#pragma once

#include "cuda/device.cuh"
#include "cuda/table_kernels.h"

namespace posenc {
namespace {

#include "angle_math.h"
#include "rope_math.h"

struct CosSin {
  double cos, sin;
};

POSENC_DEVICE CosSin exact(double position, double frequency) {
  CosSin r;
  exact_cos_sin(position, frequency, r.cos, r.sin);
  return r;
}

POSENC_DEVICE PositionSplit position_of(const TablePositions& p, int64_t group, int64_t row) {
  if (p.data == nullptr) {
    int64_t first = p.first;
    if (p.firsts != nullptr) {
      const int64_t i = group * p.firsts_step;
      first = p.wide ? load(static_cast<const int64_t*>(p.firsts) + i)
                     : load(static_cast<const int32_t*>(p.firsts) + i);
    }
    constexpr int64_t limit = int64_t{1} << 62;
    POSENC_DEVICE_CHECK(first >= -limit && first <= limit, "offset must be between -2^62 and 2^62");
    return split_position(static_cast<int64_t>(static_cast<uint64_t>(first) + row));
  }
  if (p.whole) {
    return split_position(p.wide ? load(static_cast<const int64_t*>(p.data) + row)
                                 : load(static_cast<const int32_t*>(p.data) + row));
  }
  if (p.type == RopeDtype::f64)
    return split_position(load(static_cast<const double*>(p.data) + row));
  const float position = p.type == RopeDtype::f32 ? load(static_cast<const float*>(p.data) + row)
                         : p.type == RopeDtype::bf16
                             ? widen(load(static_cast<const bf16*>(p.data) + row))
                             : widen(load(static_cast<const f16*>(p.data) + row));
  return split_position(static_cast<double>(position));
}

POSENC_DEVICE double frequency_of(const TableCall& call, int64_t i) {
  return load(call.frequencies + i * call.frequency_step);
}

// W elements of a row, from two places: half of what one thread makes in each.
template <class T, int W>
struct Halves {
  T at[2][W];
};

// Where the columns of a thread are.
struct TablePlace {
  int64_t column[2];
  bool present[2];
  bool paired, cos_first;  // pairs of one frequency side by side
};

template <class T, int W>
POSENC_DEVICE TablePlace place_of(const TableCall& call, int64_t i) {
  TablePlace place{};
  place.paired = call.step == 2;
  place.cos_first = call.cos < call.sin;
  if (i >= call.n) {
    place.column[0] = call.zero;
    place.present[0] = i == call.n && call.zero >= 0;
  } else if (place.paired) {
    place.column[0] = (place.cos_first ? call.cos : call.sin) + 2 * i;
    place.column[1] = place.column[0] + W;
    place.present[0] = true, place.present[1] = i < call.pairs;
  } else {
    place.column[0] = call.cos + i;
    place.column[1] = call.sin + i;
    place.present[0] = i < call.pairs || place.cos_first;
    place.present[1] = i < call.pairs || !place.cos_first;
  }
  return place;
}

template <class T, int W>
POSENC_DEVICE Halves<T, W> read_x(const TableCall& call, const TablePlace& place, int64_t row) {
  Halves<T, W> x{};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (!place.present[half]) continue;
    const T* from = static_cast<const T*>(call.x.data) + row + place.column[half] * call.x.column;
    if constexpr (W == 1) {
      x.at[half][0] = load(from);
    } else {
      const Pack<T> pack = load_pack(from);
      memcpy(x.at[half], &pack, sizeof pack);
    }
  }
  return x;
}

template <class T, int W>
POSENC_DEVICE void write_out(const TableCall& call, const TablePlace& place, int64_t row,
                             const Halves<T, W>& values) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (!place.present[half]) continue;
    void* data = half == 1 ? call.sin_data : call.out.data;
    T* to = static_cast<T*>(data) + row + place.column[half] * call.out.column;
    if constexpr (W == 1) {
      store(to, values.at[half][0]);
    } else {
      Pack<T> pack;
      memcpy(&pack, values.at[half], sizeof pack);
      store_pack(to, pack);
    }
  }
}

// A value of the table in the type that arithmetic on T runs in. If it is to be rounded again
// without another operation, it keeps that rounding honest.
template <class T, bool add>
POSENC_DEVICE math_t<T> table_value(double value) {
  if constexpr (sizeof(T) == 2 && !add) return sticky_float(value);
  return static_cast<math_t<T>>(value);
}

}  // namespace
}  // namespace posenc
