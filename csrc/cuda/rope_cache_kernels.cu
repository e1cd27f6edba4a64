// Keys and values into a cache on CUDA, keys rotated. A block takes a token: one thread finds its
// table row and its place, then neighbouring threads take neighbouring channels of all heads.
//
// Bytes moved: each channel of k and v is read once and written once.
#include "cuda/cache_rows.cuh"

namespace posenc {
namespace {

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

struct RopeCacheLauncher {
  template <class T, class Stored>
  static void launch(const RopeCacheCall& call, cudaStream_t stream) {
    const int64_t tokens = call.k.batch * call.k.tokens;
    POSENC_LAUNCH((rope_cache_kernel<T, Stored>), grid_for(tokens), kThreads, stream, call);
  }
};

}  // namespace

void launch_rope_cache(const RopeCacheCall& call, RopeDtype type, CacheFormat format,
                       cudaStream_t stream) {
  launch_types<RopeCacheLauncher>(call, type, format, stream);
}

}  // namespace posenc
