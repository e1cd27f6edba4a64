// rope and apply_rope on CUDA.
#include "cuda/rope_device.h"
#include "rope_ops.h"

namespace posenc {
namespace {

POSENC_CUDA_LIBRARY(m) { RopeOps<OnCuda>::add_to(m); }

}  // namespace
}  // namespace posenc
