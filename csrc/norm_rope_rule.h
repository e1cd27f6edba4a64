// What a norm before or after the rotation does, as kernels see it. Torch-free.
#pragma once

#include <cstdint>

namespace posenc {

struct NormRule {
  double eps;
  bool centred;     // "layer": the mean is taken off
  bool averaged;    // not "l2": the mean of squares, not their sum
  bool rope_first;  // rotates, then normalises
  // Rounded to the dtype of x: between norm and weight, and between norm and rotation.
  bool round_unit, round_between;
};

constexpr int kNormSums = 16;  // channel d is added to partial sum d % 16
// Tokens whose gradients of weights are added up before those of the next: a fixed order.
constexpr int64_t kNormGradTokens = 16;

}  // namespace posenc
