// Keys and values into a cache on CUDA, keys rotated. A block takes a token: one thread finds its
// table row and its place, then neighbouring threads take neighbouring channels of all heads.
//
// Bytes moved: each channel of k and v is read once and written once.
#include <type_traits>

#include "cuda/rope_cache_kernels.h"
#include "cuda/rope_tile.cuh"

namespace posenc {
namespace {

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
POSENC_DEVICE void store_key(const RopeCacheCall& call, const CachePlace& place, int64_t from) {
  const CacheOperand& k = call.k;
  const int64_t units = k.dim - call.pairs;  // of a head: its pairs, then channels beyond R
  for (int64_t i = threadIdx.x; i < k.heads * units; i += kThreads) {
    const int64_t head = i / units, pair = i - head * units;
    const CacheHead<T, Stored> of(k, from, place.k_out, head);
    if (pair >= call.pairs) {
      const int64_t channel = pair + call.pairs;
      of.copy(channel * k.x_dim, channel * k.out_dim);
      continue;
    }
    const bool in = call.pairing.x, out = call.pairing.out;
    const math_t<T> c = widen_entry<math_t<T>>(call.cos, place.cos + pair * call.cos.column);
    const math_t<T> s = widen_entry<math_t<T>>(call.sin, place.sin + pair * call.sin.column);
    const math_t<T> u = widen(load(of.x + (in ? 2 * pair : pair) * k.x_dim));
    const math_t<T> v = widen(load(of.x + (in ? 2 * pair + 1 : call.pairs + pair) * k.x_dim));
    math_t<T> u_out, v_out;
    rotate_pair(u, v, c, call.inverse ? -s : s, u_out, v_out);
    of.put((out ? 2 * pair : pair) * k.out_dim, u_out);
    of.put((out ? 2 * pair + 1 : call.pairs + pair) * k.out_dim, v_out);
  }
}

template <class T, class Stored>
POSENC_DEVICE void store_value(const RopeCacheCall& call, const CachePlace& place, int64_t from) {
  const CacheOperand& v = call.v;
  for (int64_t i = threadIdx.x; i < v.heads * v.dim; i += kThreads) {
    const int64_t head = i / v.dim, channel = i - head * v.dim;
    CacheHead<T, Stored>(v, from, place.v_out, head).copy(channel * v.x_dim, channel * v.out_dim);
  }
}

template <class T, class Stored>
__global__ void __launch_bounds__(kThreads, 3)
    rope_cache_kernel(const __grid_constant__ RopeCacheCall call) {
  __shared__ CachePlace place;
  check_cu_seqlens(call.source);
  for (int64_t i = blockIdx.x; i < call.k.batch * call.k.tokens; i += gridDim.x) {
    const int64_t batch = i / call.k.tokens, token = i % call.k.tokens;
    __syncthreads();  // the token before is done with shared memory
    if (threadIdx.x == 0) find_place(call, batch, token, place);
    __syncthreads();
    if (!place.stored) continue;
    store_key<T, Stored>(call, place, batch * call.k.x_batch + token * call.k.x_token);
    store_value<T, Stored>(call, place, batch * call.v.x_batch + token * call.v.x_token);
  }
}

template <class T, class Stored>
void launch_stored(const RopeCacheCall& call, cudaStream_t stream) {
  const int64_t tokens = call.k.batch * call.k.tokens;
  POSENC_LAUNCH((rope_cache_kernel<T, Stored>), grid_for(tokens), kThreads, stream, call);
}

template <class T>
void launch_typed(const RopeCacheCall& call, CacheFormat format, cudaStream_t stream) {
  switch (format) {
    case CacheFormat::same:
      return launch_stored<T, T>(call, stream);
    case CacheFormat::e4m3:
      return launch_stored<T, e4m3>(call, stream);
    case CacheFormat::e5m2:
      return launch_stored<T, e5m2>(call, stream);
    case CacheFormat::int8:
      return launch_stored<T, int8_t>(call, stream);
  }
}

}  // namespace

void launch_rope_cache(const RopeCacheCall& call, RopeDtype type, CacheFormat format,
                       cudaStream_t stream) {
  switch (type) {
    case RopeDtype::f32:
      return launch_typed<float>(call, format, stream);
    case RopeDtype::f64:
      return launch_stored<double, double>(call, stream);
    case RopeDtype::bf16:
      return launch_typed<bf16>(call, format, stream);
    case RopeDtype::f16:
      return launch_typed<f16>(call, format, stream);
  }
}

}  // namespace posenc
