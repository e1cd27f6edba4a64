// Tables of cos and sin, written once: see table.cuh.
#include "cuda/table.cuh"

namespace posenc {

void launch_table(const TableCall& call, RopeDtype type, cudaStream_t stream) {
  launch_tables<false>(call, type, stream);
}

}  // namespace posenc
