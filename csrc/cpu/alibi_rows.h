// Row kernels of alibi: the torch-free inner loops, one copy per instruction set.
#pragma once

#include <cmath>
#include <cstdint>

#include "cpu/isa.h"
#include "half.h"

namespace posenc {

// Sums over keys are taken in this many partial sums, key j in sum j % 16, which are then added in
// a fixed tree: the same bits for any register width.
constexpr int64_t kAlibiLanes = 16;

// Some query rows of one head. Strides count elements. `out` is `x` itself or does not overlap it.
struct AlibiTile {
  const void* x;     // scores; for the gradients, the probabilities y
  const void* grad;  // the gradient of the result, for the gradients
  void* out;
  int64_t rows, keys;
  int64_t x_row, x_key, grad_row, grad_key, out_row, out_key;
  int64_t position;  // of the first row, as an index of keys: i + K - Q
  bool causal;       // keys beyond the position of a row are masked
  double slope, scale;
  const int64_t* key_positions;  // [keys], or null for 0, 1, ...
  const uint8_t* keep;           // [keys], 0 for a masked key, or null
  void* scratch;                 // two rows of doubles, each of keys rounded up to kAlibiLanes
};

struct AlibiRows {  // the index is a RopeDtype
  void (*bias[4])(const AlibiTile&);
  void (*add[4])(const AlibiTile&);
  void (*softmax[4])(const AlibiTile&);
  void (*softmax_grad[4])(const AlibiTile&);
  double (*slope_grad[4])(const AlibiTile&);          // sum of grad * unit bias
  double (*softmax_slope_grad[4])(const AlibiTile&);  // sum of y * (grad - dot) * unit bias
};

const AlibiRows& alibi_rows(Isa isa);

}  // namespace posenc
