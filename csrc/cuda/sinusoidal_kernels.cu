// add_sinusoidal, see table.cuh, and frequencies from the host.
#include "cuda/table.cuh"

namespace posenc {
namespace {

constexpr int kDoubles = 448;  // arguments of a kernel are 4 KB at most
struct Doubles {
  double at[kDoubles];
};

__global__ void __launch_bounds__(kThreads)
    write_doubles_kernel(const __grid_constant__ Doubles values, int count, double* out) {
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads)
    store(out + i, values.at[i]);
}

}  // namespace

void launch_add_table(const TableCall& call, RopeDtype type, cudaStream_t stream) {
  launch_tables<true>(call, type, stream);
}

void launch_write_doubles(const double* values, int64_t count, double* out, cudaStream_t stream) {
  for (int64_t first = 0; first < count; first += kDoubles) {
    Doubles some;
    const auto n = static_cast<int>(std::min<int64_t>(kDoubles, count - first));
    std::copy_n(values + first, n, some.at);
    POSENC_LAUNCH(write_doubles_kernel, 1, kThreads, stream, some, n, out + first);
  }
}

}  // namespace posenc
