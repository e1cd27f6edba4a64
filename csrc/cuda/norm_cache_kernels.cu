// Keys and values into a cache on CUDA, keys normalised and rotated. A block takes a token, as
// without a norm; for each norm, 16 of its threads first add up the channels d % 16, in the order
// of the CPU.
//
// Bytes moved: as without a norm, and k once more, mostly from the first cache, twice if the mean
// is taken off; the weights once per token.
#include "cuda/cache_rows.cuh"
#include "cuda/norm_channel.cuh"

namespace posenc {
namespace {

constexpr int kTeams = kThreads / kNormSums;

// The keys of one token.
template <class T>
struct CacheKeys {
  using A = math_t<T>;
  const NormCacheCall& call;
  const CachePlace& place;
  int64_t from;  // of the token in x

  POSENC_DEVICE_METHOD const T* row(int64_t head) const {
    return reinterpret_cast<const T*>(call.cache.k.x) + from + head * call.cache.k.x_head;
  }
  POSENC_DEVICE_METHOD int64_t first(int64_t pair) const {
    return call.cache.pairing.x ? 2 * pair : pair;
  }
  POSENC_DEVICE_METHOD int64_t second(int64_t pair) const {
    return call.cache.pairing.x ? 2 * pair + 1 : call.cache.pairs + pair;
  }
  POSENC_DEVICE_METHOD A read(int64_t head, int64_t d) const {
    return widen(load(row(head) + d * call.cache.k.x_dim));
  }
  POSENC_DEVICE_METHOD void turn(int64_t pair, A& u, A& v) const {
    const RopeCacheCall& c = call.cache;
    const A cos = widen_entry<A>(c.cos, place.cos + pair * c.cos.column);
    const A sin = widen_entry<A>(c.sin, place.sin + pair * c.sin.column);
    A u_out, v_out;
    rotate_pair(u, v, cos, c.inverse ? -sin : sin, u_out, v_out);
    u = u_out, v = v_out;
  }
  // A pair as the norm is given it.
  POSENC_DEVICE_METHOD void read_pair(int64_t head, int64_t pair, A& u, A& v) const {
    u = read(head, first(pair)), v = read(head, second(pair));
    if (!call.norm.rule.rope_first) return;
    turn(pair, u, v);
    if (call.norm.rule.round_between) u = rounded<T>(u), v = rounded<T>(v);
  }
  // A channel as the norm is given it.
  POSENC_DEVICE_METHOD A channel(int64_t head, int64_t d) const {
    const int64_t pairs = call.cache.pairs;
    if (!call.norm.rule.rope_first || d >= 2 * pairs) return read(head, d);
    A u, v;
    const int64_t pair = call.cache.pairing.x ? d / 2 : d % pairs;
    read_pair(head, pair, u, v);
    return d == first(pair) ? u : v;
  }
  // A channel after the norm.
  POSENC_DEVICE_METHOD A norm(const NormStatistics<A>& statistic, int64_t head, int64_t d,
                              A x) const {
    const NormCall& n = call.norm;
    A weight, bias;
    read_weights<A, 1>(n.q, false, static_cast<A>(n.weight_offset), (n.all ? head * n.dim : 0) + d,
                       &weight, &bias);
    return norm_channel<T>(n.rule, n.q, statistic).norm(x, weight, bias);
  }

  // The heads [begin, end), of which one has statistics[head - begin], or all the first.
  template <class Stored>
  POSENC_DEVICE_METHOD void store_heads(int64_t begin, int64_t end,
                                        const NormStatistics<A>* statistics) const {
    const CacheOperand& k = call.cache.k;
    const int64_t pairs = call.cache.pairs, units = k.dim - pairs;
    for (int64_t i = threadIdx.x; i < (end - begin) * units; i += kThreads) {
      const int64_t nth = i / units, pair = i - nth * units, head = begin + nth;
      const NormStatistics<A>& s = statistics[call.norm.all ? 0 : nth];
      const CacheHead<T, Stored> of(k, from, place.k_out, head);
      if (pair >= pairs) {
        const int64_t d = pair + pairs;
        of.put(d * k.out_dim, norm(s, head, d, read(head, d)));
        continue;
      }
      A u, v;
      read_pair(head, pair, u, v);
      u = norm(s, head, first(pair), u), v = norm(s, head, second(pair), v);
      if (!call.norm.rule.rope_first) turn(pair, u, v);
      of.put(first(pair) * k.out_dim, u);
      of.put(second(pair) * k.out_dim, v);
    }
  }
};

template <class T, class Stored>
__global__ void __launch_bounds__(kThreads, 2)
    norm_cache_kernel(const __grid_constant__ NormCacheCall call) {
  using A = math_t<T>;
  __shared__ CachePlace place;
  __shared__ NormStatistics<A> statistics[kTeams];
  const RopeCacheCall& cache = call.cache;
  const int team = static_cast<int>(threadIdx.x) / kNormSums;
  const int lane = static_cast<int>(threadIdx.x) % kNormSums;
  const int64_t heads = cache.k.heads, each = call.norm.all ? heads : 1;  // heads of a norm
  check_cu_seqlens(cache.source);
  for (int64_t i = blockIdx.x; i < cache.k.batch * cache.k.tokens; i += gridDim.x) {
    const int64_t batch = i / cache.k.tokens, token = i % cache.k.tokens;
    __syncthreads();  // the token before is done with shared memory
    if (threadIdx.x == 0) find_place(cache, batch, token, place);
    __syncthreads();
    if (!place.stored) continue;
    const CacheKeys<T> keys = {call, place, batch * cache.k.x_batch + token * cache.k.x_token};
    for (int64_t begin = 0; begin < heads; begin += each * kTeams) {
      const int64_t head = begin + team * each;
      const auto x = [&](int h, int64_t d) { return keys.channel(head + h, d); };
      NormStatistics<A> found;
      norm_statistic(call.norm, head < heads ? static_cast<int>(each) : 0, lane, x, found);
      __syncthreads();  // the heads before are done with the statistics
      if (lane == 0) statistics[team] = found;
      __syncthreads();
      const int64_t end = begin + each * kTeams;
      keys.template store_heads<Stored>(begin, end < heads ? end : heads, statistics);
    }
    store_value<T, Stored>(cache, place, batch * cache.v.x_batch + token * cache.v.x_token);
  }
}

struct NormCacheLauncher {
  template <class T, class Stored>
  static void launch(const NormCacheCall& call, cudaStream_t stream) {
    const int64_t tokens = call.cache.k.batch * call.cache.k.tokens;
    POSENC_LAUNCH((norm_cache_kernel<T, Stored>), grid_for(tokens), kThreads, stream, call);
  }
};

}  // namespace

void launch_norm_cache(const NormCacheCall& call, RopeDtype type, CacheFormat format,
                       cudaStream_t stream) {
  launch_types<NormCacheLauncher>(call, type, format, stream);
}

}  // namespace posenc
