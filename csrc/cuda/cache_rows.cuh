// Tokens of a cache as its kernels walk them.
#pragma once

#include <type_traits>

#include "cuda/rope_cache_kernels.h"
#include "cuda/rope_tile.cuh"

namespace posenc {

// Of a token: offsets into cos and sin, and those of its place in the two caches.
struct CachePlace {
  bool stored;
  int64_t cos, sin, k_out, v_out;
};

// The slot of a token, -1 for none.
POSENC_DEVICE int64_t slot_of(const RopeCacheCall& call, int64_t batch, int64_t token,
                              int64_t table_row) {
  if (call.slots.data != nullptr) {
    const int64_t slot = read_index(call.slots, batch * call.slots.batch + token * call.slots.step);
    const bool inside = slot >= -1 && slot < call.blocks * call.rows;
    POSENC_DEVICE_CHECK(inside, "slots must be -1 or places in the cache");
    return inside ? slot : -1;
  }
  if (call.window > 0 && call.consecutive && token < call.k.tokens - call.window) return -1;
  const int64_t row = call.window > 0 ? table_row % call.window : table_row;
  POSENC_DEVICE_CHECK(row < call.rows, "the cache must have a row for each position");
  return row < call.rows ? batch * call.rows + row : -1;
}

POSENC_DEVICE void find_place(const RopeCacheCall& call, int64_t batch, int64_t token,
                              CachePlace& place) {
  const int64_t row = table_row(call.source, batch, token);
  const int64_t slot = slot_of(call, batch, token, row);
  place.stored = slot >= 0;
  if (!place.stored) return;
  const int64_t block = slot / call.rows, within = slot % call.rows;
  place.cos = batch * call.cos.batch + row * call.cos.row;
  place.sin = batch * call.sin.batch + row * call.sin.row;
  place.k_out = block * call.k.out_block + within * call.k.out_row;
  place.v_out = block * call.v.out_block + within * call.v.out_row;
}

// One head of one operand, and its scale.
template <class T, class Stored>
struct CacheHead {
  const T* x;
  Stored* out;
  float scale;

  POSENC_DEVICE_METHOD CacheHead(const CacheOperand& o, int64_t from, int64_t to, int64_t head)
      : x(reinterpret_cast<const T*>(o.x) + from + head * o.x_head),
        out(reinterpret_cast<Stored*>(o.out) + to + head * o.out_head),
        scale(o.scale == nullptr ? 1.0f : load(o.scale + head * o.scale_head)) {}

  POSENC_DEVICE_METHOD void put(int64_t at, math_t<T> value) const {
    Stored stored;
    if constexpr (std::is_same_v<T, Stored>) {
      narrow(value, stored);
    } else {
      saturate(static_cast<float>(value) / scale, stored);
    }
    store(out + at, stored);
  }

  POSENC_DEVICE_METHOD void copy(int64_t from, int64_t to) const {
    if constexpr (std::is_same_v<T, Stored>) {
      store(out + to, load(x + from));
    } else {
      put(to, widen(load(x + from)));
    }
  }
};

template <class T, class Stored>
POSENC_DEVICE void store_value(const RopeCacheCall& call, const CachePlace& place, int64_t from) {
  const CacheOperand& v = call.v;
  for (int64_t i = threadIdx.x; i < v.heads * v.dim; i += kThreads) {
    const int64_t head = i / v.dim, channel = i - head * v.dim;
    CacheHead<T, Stored>(v, from, place.v_out, head).copy(channel * v.x_dim, channel * v.out_dim);
  }
}

// Launcher::launch<T, Stored>(call, stream) with the types of x and of the cache.
template <class Launcher, class T, class Call>
void launch_format(const Call& call, CacheFormat format, cudaStream_t stream) {
  switch (format) {
    case CacheFormat::same:
      return Launcher::template launch<T, T>(call, stream);
    case CacheFormat::e4m3:
      return Launcher::template launch<T, e4m3>(call, stream);
    case CacheFormat::e5m2:
      return Launcher::template launch<T, e5m2>(call, stream);
    case CacheFormat::int8:
      return Launcher::template launch<T, int8_t>(call, stream);
  }
}
template <class Launcher, class Call>
void launch_types(const Call& call, RopeDtype type, CacheFormat format, cudaStream_t stream) {
  switch (type) {
    case RopeDtype::f32:
      return launch_format<Launcher, float>(call, format, stream);
    case RopeDtype::f64:
      return Launcher::template launch<double, double>(call, stream);
    case RopeDtype::bf16:
      return launch_format<Launcher, bf16>(call, format, stream);
    case RopeDtype::f16:
      return launch_format<Launcher, f16>(call, format, stream);
  }
}

}  // namespace posenc
