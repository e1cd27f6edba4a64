// Gradient of rope with respect to cos and sin. A thread owns one pair of one table row and adds
// what every token and head that used the row contributes, in double and in the order of batch,
// token, head: that of the CPU, so the bits are the same. No atomics.
//
// Bytes moved: grad and x are read once.
#include "cuda/rope_rows.cuh"
#include "rope_math.h"

namespace posenc {
namespace {

template <class T>
constexpr int kInFlight = sizeof(T) == 8 ? 2 : 4;  // heads that a thread loads before it adds any

__global__ void __launch_bounds__(kThreads)
    rope_rows_kernel(const __grid_constant__ RopeRowSource source, int64_t batch, int64_t* rows) {
  check_cu_seqlens(source);
  for (int64_t i = grid_thread(); i < batch * source.length; i += grid_step())
    store(rows + i, table_row(source, i / source.length, i % source.length));
}

// How many of the ascending rows are below `row`.
POSENC_DEVICE int64_t count_below(const int64_t* rows, int64_t count, int64_t row) {
  int64_t low = 0, high = count;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (load(rows + middle) < row) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// The sums of one pair of one row.
struct RopeSums {
  double dcos, dsin;
};

// Where the channels of a pair stand.
template <bool interleaved>
POSENC_DEVICE int64_t first_of(int64_t pair) {
  return interleaved ? 2 * pair : pair;
}
template <bool interleaved>
POSENC_DEVICE int64_t second_of(int64_t pair, int64_t pairs) {
  return interleaved ? 2 * pair + 1 : pairs + pair;
}

template <class T, bool of_x, bool of_grad>
POSENC_DEVICE void add_token(const RopeTableGradCall& call, int64_t batch, int64_t token,
                             int64_t pair, RopeSums& sums) {
  constexpr int in_flight = kInFlight<T>;
  const int64_t u = first_of<of_x>(pair) * call.x_dim;
  const int64_t v = second_of<of_x>(pair, call.pairs) * call.x_dim;
  const int64_t gu = first_of<of_grad>(pair) * call.grad_dim;
  const int64_t gv = second_of<of_grad>(pair, call.pairs) * call.grad_dim;
  const T* grad =
      reinterpret_cast<const T*>(call.grad) + batch * call.grad_batch + token * call.grad_token;
  const T* x = reinterpret_cast<const T*>(call.x) + batch * call.x_batch + token * call.x_token;
#pragma unroll 1
  for (int64_t first = 0; first < call.heads; first += in_flight) {
    T x_u[in_flight], x_v[in_flight], grad_u[in_flight], grad_v[in_flight];
#pragma unroll
    for (int j = 0; j < in_flight; ++j) {
      if (first + j >= call.heads) continue;
      const T* from_grad = grad + (first + j) * call.grad_head;
      const T* from_x = x + (first + j) * call.x_head;
      grad_u[j] = load(from_grad + gu);
      grad_v[j] = load(from_grad + gv);
      x_u[j] = load(from_x + u);
      x_v[j] = load(from_x + v);
    }
#pragma unroll
    for (int j = 0; j < in_flight; ++j) {
      if (first + j >= call.heads) continue;
      rotate_pair_table_grad<double>(widen(x_u[j]), widen(x_v[j]), widen(grad_u[j]),
                                     widen(grad_v[j]), sums.dcos, sums.dsin);
    }
  }
}

// The uses of a table row in order: n counts the sorted tokens, or else batch entries.
struct RopeUses {
  int64_t begin, end;
};

POSENC_DEVICE RopeUses uses_of(const RopeTableGradCall& call, int64_t row) {
  if (call.sorted_rows != nullptr) {
    const int64_t tokens = call.batch * call.source.length;
    return {count_below(call.sorted_rows, tokens, row),
            count_below(call.sorted_rows, tokens, row + 1)};
  }
  if (!call.batched) return {0, call.batch};
  const int64_t batch = row / call.source.rows;
  return {batch, batch + 1};
}

// Which token use n of the row is, counting from the start of `batch`; length or more for none.
POSENC_DEVICE uint64_t token_of(const RopeTableGradCall& call, int64_t row, int64_t n,
                                int64_t& batch) {
  const RopeRowSource& source = call.source;
  if (call.sorted_rows != nullptr) {
    const int64_t token = load(call.tokens + n);
    batch = token / source.length;
    return static_cast<uint64_t>(token % source.length);
  }
  batch = n;  // token s reads row first + s
  const int64_t first = source.offsets.data != nullptr
                            ? read_index(source.offsets, batch * source.offsets.step)
                            : source.offset;
  const bool inside = first >= 0 && first <= source.rows && source.length <= source.rows - first;
  POSENC_DEVICE_CHECK(inside || source.length == 0, "offset must keep all rows inside the table");
  if (!inside) return ~uint64_t{0};
  return static_cast<uint64_t>(row % source.rows - first);  // huge for a row before the first
}

POSENC_DEVICE void store_sum(RopeDtype type, void* out, int64_t at, double value) {
  switch (type) {
    case RopeDtype::f32: {
      float rounded;
      narrow(value, rounded);
      return store(static_cast<float*>(out) + at, rounded);
    }
    case RopeDtype::f64:
      return store(static_cast<double*>(out) + at, value);
    case RopeDtype::bf16: {
      bf16 rounded;
      narrow(value, rounded);
      return store(static_cast<bf16*>(out) + at, rounded);
    }
    case RopeDtype::f16: {
      f16 rounded;
      narrow(value, rounded);
      return store(static_cast<f16*>(out) + at, rounded);
    }
  }
}

template <class T, bool of_x, bool of_grad>
__global__ void __launch_bounds__(kThreads, 3)
    rope_table_grad_kernel(const __grid_constant__ RopeTableGradCall call) {
  const RopeRowSource& source = call.source;
  const int64_t rows = source.rows * (call.batched ? call.batch : 1);
  for (int64_t i = grid_thread(); i < rows * call.pairs; i += grid_step()) {
    const int64_t row = i / call.pairs, pair = i - row * call.pairs;
    RopeSums sums = {0, 0};
    const RopeUses uses = uses_of(call, row);
#pragma unroll 1
    for (int64_t n = uses.begin; n < uses.end; ++n) {
      int64_t batch;
      const uint64_t token = token_of(call, row, n, batch);
      if (token < static_cast<uint64_t>(source.length))
        add_token<T, of_x, of_grad>(call, batch, static_cast<int64_t>(token), pair, sums);
    }
    store_sum(call.table, call.dcos, i, sums.dcos);
    store_sum(call.table, call.dsin, i, call.inverse ? -sums.dsin : sums.dsin);
  }
}

template <class T>
void launch_typed(const RopeTableGradCall& call, RopePairing pairing, cudaStream_t stream) {
  const int64_t items = call.source.rows * (call.batched ? call.batch : 1) * call.pairs;
  const int64_t blocks = grid_for(ceil_div(items, kThreads));
  const auto launch = [&](auto kernel) { POSENC_LAUNCH(kernel, blocks, kThreads, stream, call); };
  if (pairing.x) {
    launch(pairing.out ? rope_table_grad_kernel<T, true, true>
                       : rope_table_grad_kernel<T, true, false>);
  } else {
    launch(pairing.out ? rope_table_grad_kernel<T, false, true>
                       : rope_table_grad_kernel<T, false, false>);
  }
}

}  // namespace

void launch_rope_rows(const RopeRowSource& source, int64_t batch, int64_t* rows,
                      cudaStream_t stream) {
  const int64_t blocks = grid_for(ceil_div(batch * source.length, kThreads));
  POSENC_LAUNCH(rope_rows_kernel, blocks, kThreads, stream, source, batch, rows);
}

void launch_rope_table_grad(const RopeTableGradCall& call, RopeDtype type, RopePairing pairing,
                            cudaStream_t stream) {
  switch (type) {
    case RopeDtype::f32:
      return launch_typed<float>(call, pairing, stream);
    case RopeDtype::f64:
      return launch_typed<double>(call, pairing, stream);
    case RopeDtype::bf16:
      return launch_typed<bf16>(call, pairing, stream);
    case RopeDtype::f16:
      return launch_typed<f16>(call, pairing, stream);
  }
}

}  // namespace posenc
