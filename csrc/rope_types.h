// ATen's dtypes as the kernels name them.
#pragma once

#include <c10/core/ScalarType.h>

#include "half.h"

namespace posenc {

// For the four dtypes that check_rope lets through.
inline RopeDtype rope_dtype(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return RopeDtype::f32;
    case at::kDouble:
      return RopeDtype::f64;
    case at::kBFloat16:
      return RopeDtype::bf16;
    default:
      return RopeDtype::f16;
  }
}

}  // namespace posenc
