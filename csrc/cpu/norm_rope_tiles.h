// What the tasks of norm_rope and of its gradient share: weights as the row kernels want them.
#pragma once

#include <vector>

#include "cpu/norm_rope_rows.h"
#include "cpu/rope_tables.h"
#include "norm_rope.h"
#include "rope_operand.h"

namespace posenc {

// The weights of one tensor in the math type, made once for all tasks.
template <class Math>
struct NormWeights {
  std::vector<Math> weight, bias, ones, zeros;
  NormRule rule;
  bool all;
  int64_t scratch;  // elements that a task needs

  NormWeights(const NormInput& in, const NormOptions& norm, NormRule rule, int64_t heads)
      : rule(rule), all(norm.norm_dims == "all") {
    const int64_t dim = in.x.tensor.size(-1), size = all ? heads * dim : dim;
    weight = read(in.weight, size, 1, norm.weight_offset);
    bias = read(in.bias, size, 0, 0);
    ones.assign(dim, 1);
    zeros.assign(dim, 0);
    scratch = norm_scratch(heads, dim, all);
  }

  NormRows rows(std::vector<Math>& buffer) const {
    if (static_cast<int64_t>(buffer.size()) < scratch) buffer.resize(scratch);
    return {rule, all, weight.data(), bias.data(), ones.data(), zeros.data(), buffer.data()};
  }

 private:
  template <class Stored>
  static void add(const at::Tensor& t, Math offset, std::vector<Math>& to) {
    const Stored* from = static_cast<const Stored*>(t.const_data_ptr());
    for (size_t i = 0; i < to.size(); ++i)
      to[i] = static_cast<Math>(widen(from[static_cast<int64_t>(i) * t.stride(0)])) + offset;
  }

  static std::vector<Math> read(const std::optional<at::Tensor>& t, int64_t size, Math otherwise,
                                double offset) {
    std::vector<Math> values(size, otherwise);
    if (!t) return values;
    const Math added = static_cast<Math>(offset);
    switch (rope_dtype(t->scalar_type())) {
      case RopeDtype::f32:
        add<float>(*t, added, values);
        break;
      case RopeDtype::f64:
        add<double>(*t, added, values);
        break;
      case RopeDtype::bf16:
        add<bf16>(*t, added, values);
        break;
      case RopeDtype::f16:
        add<f16>(*t, added, values);
        break;
    }
    return values;
  }
};

// Tokens [first, first + tokens) of one batch entry of o.
inline void place_tile(RopeTile& tile, const RopeOperand& o, int64_t batch, int64_t first,
                       int64_t tokens, int64_t item) {
  tile.tokens = tokens;
  tile.heads = o.heads;
  tile.x = o.x + (batch * o.x_batch + first * o.x_token) * item;
  tile.out = o.out + (batch * o.out_batch + first * o.out_token) * item;
  tile.x_token = o.x_token, tile.x_head = o.x_head, tile.x_dim = o.x_dim;
  tile.out_token = o.out_token, tile.out_head = o.out_head, tile.out_dim = o.out_dim;
}

}  // namespace posenc
