// norm_rope, qk_norm_rope and their gradient on CPU: walk tiles of tokens in parallel, call the row
// kernels.
#include <vector>

#include "cpu/huge_pages.h"
#include "cpu/norm_rope_tiles.h"
#include "cpu/parallel.h"
#include "cpu/rope_index.h"
#include "cpu/rope_tiles.h"
#include "norm_rope_ops.h"

namespace posenc {
namespace {

using at::Tensor;

constexpr int64_t kNormGrain = 16384;  // less work than this is not worth a second thread

const NormKernels& kernels_for(at::ScalarType type) {
  return norm_rope_rows(current_isa()).of[static_cast<int>(rope_dtype(type))];
}

struct Operand {
  RopeOperand rope;
  const NormInput& in;
};

template <class Math>
void norm_tiles(c10::ArrayRef<Operand> operands, const NormOptions& norm, NormRule rule,
                const RopeOptions<int64_t>& options, const RopeIndex& index, int64_t length) {
  const Tensor& like = operands[0].in.x.tensor;
  const auto type = like.scalar_type(), math = sizeof(Math) == 8 ? at::kDouble : at::kFloat;
  const Table cos(options.cos, false, math), sin(options.sin, options.inverse, math);
  const int64_t dim = like.size(-1), pairs = options.cos.size(-1);
  const auto item = static_cast<int64_t>(c10::elementSize(type));
  int64_t heads = 0, scratch = 0;
  c10::SmallVector<NormWeights<Math>, 2> weights;
  for (const auto& o : operands) {
    heads += o.rope.heads;
    weights.emplace_back(o.in, norm, rule, o.rope.heads);
    if (!plain_norm(rule, o.rope.x_dim, o.rope.out_dim))
      scratch = std::max(scratch, weights.back().scratch);
  }
  const TilePlan plan(operands[0].rope.batch, length, heads * dim, kNormGrain);
  parallel_for(0, plan.all, plan.grain, [&](int64_t begin, int64_t end) {
    TileTables<Math> tables{cos, sin, pairs, {}, {}, {}};
    std::vector<Math> buffer(scratch);
    NormTile tile{};
    tile.rope.dim = dim, tile.rope.pairs = pairs;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t b = plan.batch_of(i), first = plan.first_of(i);
      tables.load(index, b, first, plan.tokens_from(first), tile.rope);
      for (size_t n = 0; n < operands.size(); ++n) {  // q and k share the table rows
        const auto& [o, in] = operands[n];
        if (!place_tile(tile.rope, o, item, b, first, plan.step)) continue;
        tile.norm = weights[n].rows(buffer.data());
        kernels_for(type).norm[options.interleaved][rule.centred || in.bias.has_value()](tile);
      }
    }
  });
}

// The sums of every tile in order, rounded once.
void add_tiles(const std::vector<double>& sums, int64_t tiles, const Tensor& out) {
  const int64_t size = out.numel();
  std::vector<double> total(size, 0.0);
  for (int64_t tile = 0; tile < tiles; ++tile)
    for (int64_t i = 0; i < size; ++i) total[i] += sums[tile * size + i];
  const auto store = [&]<class T>(T* to) {
    for (int64_t i = 0; i < size; ++i) narrow(total[i], to[i]);
  };
  void* to = out.mutable_data_ptr();
  switch (rope_dtype(out.scalar_type())) {
    case RopeDtype::f32:
      return store(static_cast<float*>(to));
    case RopeDtype::f64:
      return store(static_cast<double*>(to));
    case RopeDtype::bf16:
      return store(static_cast<bf16*>(to));
    case RopeDtype::f16:
      return store(static_cast<f16*>(to));
  }
}

template <class Math>
void grad_tiles(const Tensor& grad, const NormInput& in, RopeAxes axes, const NormOptions& norm,
                NormRule rule, const RopeOptions<int64_t>& options, const RopeIndex& index,
                const Tensor& dx, const Tensor& dweight, const Tensor& dbias) {
  const RopeOperand o = rope_operand(in.x.tensor, dx, axes);
  const RopeOperand g = rope_operand(grad, dx, axes);
  const auto type = dx.scalar_type(), math = sizeof(Math) == 8 ? at::kDouble : at::kFloat;
  const Table cos(options.cos, false, math), sin(options.sin, options.inverse, math);
  const int64_t dim = dx.size(-1), pairs = options.cos.size(-1);
  const auto item = static_cast<int64_t>(c10::elementSize(type));
  const NormWeights<Math> weights(in, norm, rule, o.heads);
  const int64_t tiles = (o.tokens + kNormGradTokens - 1) / kNormGradTokens;
  const int64_t all_tiles = o.batch * tiles;
  std::vector<double> weight_sums(all_tiles * dweight.numel()),
      bias_sums(all_tiles * dbias.numel());
  const int64_t per_tile = std::max<int64_t>(1, kNormGradTokens * o.heads * dim);
  const int64_t grain = std::max<int64_t>(1, kNormGrain / per_tile);
  parallel_for(0, all_tiles, grain, [&](int64_t begin, int64_t end) {
    TileTables<Math> tables{cos, sin, pairs, {}, {}, {}};
    std::vector<Math> scratch(weights.scratch);
    NormGradTile tile{};
    tile.rope.dim = dim, tile.rope.pairs = pairs;
    tile.norm = weights.rows(scratch.data());
    tile.grad_token = g.x_token, tile.grad_head = g.x_head, tile.grad_dim = g.x_dim;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t b = i / tiles, first = i % tiles * kNormGradTokens;
      place_tile(tile.rope, o, item, b, first, kNormGradTokens);
      tables.load(index, b, first, tile.rope.tokens, tile.rope);
      tile.grad = g.x + (b * g.x_batch + first * g.x_token) * item;
      if (dweight.numel()) tile.dweight = weight_sums.data() + i * dweight.numel();
      if (dbias.numel()) tile.dbias = bias_sums.data() + i * dbias.numel();
      kernels_for(type).grad[options.interleaved](tile);
    }
  });
  add_tiles(weight_sums, all_tiles, dweight);
  add_tiles(bias_sums, all_tiles, dbias);
}

struct OnCpu {
  using Int = int64_t;
  static constexpr bool fake = false;

  static Tensor empty(const Tensor& x) {
    Tensor out = at::empty_strided(x.sizes(), output_strides<int64_t>(x), x.options());
    prefer_huge_pages(out);
    return out;
  }

  static void run(const char* op, std::initializer_list<NormOutput> outputs, RopeAxes axes,
                  const NormOptions& norm, const RopeOptions<int64_t>& options) {
    c10::SmallVector<Operand, 2> operands;
    int64_t length = 0, elements = 0;
    for (const auto& [in, out] : outputs) {
      operands.push_back({rope_operand(in.x.tensor, out, axes), in});
      length = std::max(length, operands.back().rope.tokens);
      elements += out.numel();
    }
    const RopeIndex index = rope_index(op, options, operands[0].rope.batch, length);
    if (elements == 0) return;
    const NormRule rule = check_norm_options(op, norm);
    if (operands[0].in.x.tensor.scalar_type() == at::kDouble) {
      norm_tiles<double>(operands, norm, rule, options, index, length);
    } else {
      norm_tiles<float>(operands, norm, rule, options, index, length);
    }
  }

  static void grad(const Tensor& grad, const NormInput& in, RopeAxes axes, const NormOptions& norm,
                   const RopeOptions<int64_t>& options, const Tensor& dx, const Tensor& dweight,
                   const Tensor& dbias) {
    const char* op = "norm_rope_grad";
    const int64_t batch = axes.batch < 0 ? 1 : dx.size(axes.batch), length = dx.size(axes.seq);
    const RopeIndex index = rope_index(op, options, batch, length);
    const NormRule rule = check_norm_options(op, norm);
    if (dx.scalar_type() == at::kDouble) {
      grad_tiles<double>(grad, in, axes, norm, rule, options, index, dx, dweight, dbias);
    } else {
      grad_tiles<float>(grad, in, axes, norm, rule, options, index, dx, dweight, dbias);
    }
  }
};

TORCH_LIBRARY_IMPL(posenc_ext, CPU, m) { NormRopeOps<OnCpu>::add_to(m); }

}  // namespace
}  // namespace posenc
