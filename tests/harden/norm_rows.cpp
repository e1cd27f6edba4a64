// Random rows of norm_rope and of its gradient: every instruction set, and all bytes of the result.
#include <vector>

#include "cpu/norm_rope_rows.h"
#include "guarded.h"

namespace posenc {
namespace {

// What both kinds of tile share: shapes, strides, tables, weights and scratch between guard pages.
struct NormTileCase {
  RopeDtype type, math;
  int64_t item, wide;
  bool interleaved, in_place;
  RopeTile rope{};
  NormRows norm{};
  Strides in, result;
  Guarded cos, sin, x, weight, bias;
  std::vector<int64_t> rows;

  explicit NormTileCase(Random& random)
      : type(static_cast<RopeDtype>(random.below(4))),
        math(type == RopeDtype::f64 ? RopeDtype::f64 : RopeDtype::f32),
        item(kItem[static_cast<int>(type)]),
        wide(kItem[static_cast<int>(math)]),
        interleaved(random.chance(2)),
        in_place(random.chance(3)),
        rope(shape(random)),
        in(random, rope.dim, rope.heads, rope.tokens, random.chance(2)),
        result(in_place ? in
                        : Strides(random, rope.dim, rope.heads, rope.tokens, random.chance(2))),
        cos(3 * rope.pairs * wide, true),
        sin(3 * rope.pairs * wide, true),
        x(in.elements * item, true),
        weight(size(random) * wide, true),
        bias(weight.bytes(), true) {
    for (const Guarded* each : {&cos, &sin, &weight, &bias}) randomise(random, *each, wide, math);
    randomise(random, x, item, type);
    for (int64_t i = 0; i < rope.tokens; ++i) rows.push_back(random.below(3) * rope.pairs);
    rope.cos = cos.data(), rope.sin = sin.data(), rope.x = x.data();
    rope.cos_row = rope.sin_row = rows.data();
    rope.x_head = in.inner, rope.x_token = in.outer, rope.x_dim = in.step;
    rope.out_head = result.inner, rope.out_token = result.outer, rope.out_dim = result.step;
    norm.rule.eps = random.unit();
    norm.rule.centred = random.chance(3), norm.rule.averaged = random.chance(2);
    norm.rule.rope_first = random.chance(2), norm.rule.round_unit = random.chance(3);
    norm.rule.round_between = norm.rule.round_unit || random.chance(3);
    norm.weight = weight.data(), norm.bias = bias.data();
  }

  int64_t scratch() const { return norm_scratch(rope.heads, rope.dim, norm.all) * wide; }

 private:
  static RopeTile shape(Random& random) {
    RopeTile tile{};
    tile.pairs = random.length(130);
    tile.tokens = random.below(4), tile.heads = random.below(4);
    tile.dim = 2 * tile.pairs + (random.chance(2) ? 0 : random.below(20));
    return tile;
  }
  int64_t size(Random& random) {
    norm.all = random.chance(2);
    return rope.dim * (norm.all ? rope.heads : 1);
  }
};

}  // namespace

bool norm_rope_case(Random& random) {
  const NormTileCase made(random);
  const bool shifted = made.norm.rule.centred || random.chance(2);
  const Guarded before(made.result.elements * made.item, true);
  if (made.in_place) before.fill_from(made.x);
  return agree(random, before, made.type, [&](Isa isa, const Guarded& out) {
    const Guarded scratch(made.scratch(), true);
    NormTile call{made.rope, made.norm};
    call.norm.scratch = scratch.data();
    call.rope.out = out.data();
    if (made.in_place) call.rope.x = out.data();
    norm_rope_rows(isa).of[static_cast<int>(made.type)].norm[made.interleaved][shifted](call);
  });
}

// The sums are compared in one case, the gradient of x in another.
bool norm_rope_grad_case(Random& random) {
  const NormTileCase made(random);
  const Strides of_grad(random, made.rope.dim, made.rope.heads, made.rope.tokens, random.chance(2));
  const Guarded grad(of_grad.elements * made.item, true);
  randomise(random, grad, made.item, made.type);
  const int64_t size = made.weight.bytes() / made.wide;
  const bool sums = random.chance(2);
  const Guarded before(sums ? 2 * size * 8 : made.result.elements * made.item, true);
  if (sums) std::memset(before.data(), 0, static_cast<size_t>(before.bytes()));
  const RopeDtype type = sums ? RopeDtype::f64 : made.type;
  return agree(random, before, type, [&](Isa isa, const Guarded& out) {
    const Guarded scratch(made.scratch(), true), dx(made.result.elements * made.item, true);
    NormGradTile call{made.rope,     made.norm,    grad.data(), of_grad.outer,
                      of_grad.inner, of_grad.step, nullptr,     nullptr};
    call.norm.scratch = scratch.data();
    call.rope.out = sums ? dx.data() : out.data();
    if (sums) {
      call.dweight = reinterpret_cast<double*>(out.data());
      call.dbias = call.dweight + size;
    }
    norm_rope_rows(isa).of[static_cast<int>(made.type)].grad[made.interleaved](call);
  });
}

}  // namespace posenc
