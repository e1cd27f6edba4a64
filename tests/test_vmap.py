"""torch.func.vmap over every op, bit for bit what a call for each sample gives."""

import itertools

import pytest
import torch
from alibi_cases import mask_of, scores_of, slopes_of
from rope_cases import LAYOUTS, assert_bits, shape, table, uniform
from torch.func import vmap
from transform_cases import V, assert_vmap, batched

import posenc_ext
from posenc_ext.ops import functions
from posenc_ext.ops.rope_autograd import ApplyRope, Rope

A = torch.tensor


def options_of(layout, rows):
    """(cos, sin, options) for S = 4, B = 2 of a layout, each with another way to find its rows."""
    cos, sin = table(4)
    batch = 2 if "b" in layout else 1
    return {
        "rows": (cos, sin, {"offset": 3}),
        "positions": (cos, sin, {"positions": A([3, 1, 3, 0])}),
        "positions_per_batch": (cos, sin, {"positions": torch.arange(4 * batch).view(batch, 4)}),
        "offsets": (cos, sin, {"offset": torch.arange(batch) * 2}),
        "offset_tensor": (cos, sin, {"offset": A(5)}),
        "per_token": (uniform((batch, 4, 4), seed=1), uniform((batch, 4, 4), seed=2), {}),
        "per_token_broadcast": (uniform((1, 4, 4), seed=1), uniform((1, 4, 4), seed=2), {}),
    }[rows]


ROWS = (
    "rows",
    "positions",
    "positions_per_batch",
    "offsets",
    "offset_tensor",
    "per_token",
    "per_token_broadcast",
)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_vmap_of_rope_over_x_and_tables(layout, rows):
    cos, sin, options = options_of(layout, rows)
    x = uniform(shape(layout, b=2, s=4, h=2, d=10), seed=3)

    def call(x, cos, sin):
        return posenc_ext.rope(x, cos, sin, layout=layout, **options)

    for dims in ((0, None, None), (1, None, None), (None, 0, 0), (0, 1, None), (2, 0, 2)):
        tensors = [
            batched(t, d, 10 * i) for i, (t, d) in enumerate(zip((x, cos, sin), dims, strict=True))
        ]
        assert_vmap(call, tensors, dims)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("rows", ["positions", "positions_per_batch", "offsets", "offset_tensor"])
def test_vmap_of_rope_over_positions(layout, rows):
    cos, sin, options = options_of(layout, rows)
    x = uniform(shape(layout, b=2, s=4, h=2, d=8), seed=3)
    name, index = next(iter(options.items()))
    for x_dim, index_dim, cos_dim in (
        (None, 0, None),
        (0, 0, None),
        (1, index.dim(), None),
        (0, 0, 0),
    ):

        def call(x, index, cos):
            return posenc_ext.rope(x, cos, sin, layout=layout, **{name: index})

        indices = torch.stack(
            [index, (index + 1) % 8, index.flip(-1) if index.dim() else index * 2], index_dim
        )
        assert_vmap(
            call,
            (batched(x, x_dim, 1), indices, batched(cos, cos_dim, 5)),
            (x_dim, index_dim, cos_dim),
        )


@pytest.mark.parametrize("over", ["x", "offset", "cu_seqlens", "cos"])
def test_vmap_of_packed_sequences(over):
    x, (cos, sin) = uniform((5, 2, 8), seed=1), table(4)
    cu_seqlens = torch.stack([A([0, 3, 5]), A([0, 1, 5]), A([0, 5, 5])])
    offsets = torch.arange(6).view(3, 2)
    dims = [0 if name == over else None for name in ("x", "cos", "cu_seqlens", "offset")]
    if over == "x":
        dims[0] = 2

    def call(x, cos, cu_seqlens, offset):
        return posenc_ext.rope(x, cos, sin, layout="thd", cu_seqlens=cu_seqlens, offset=offset)

    tensors = (
        batched(x, dims[0], 1),
        batched(cos, dims[1], 5),
        cu_seqlens if over == "cu_seqlens" else cu_seqlens[0],
        offsets if over == "offset" else offsets[0],
    )
    assert_vmap(call, tensors, tuple(dims))


@pytest.mark.parametrize("lengths", [(4, 4), (1, 4)], ids=str)
@pytest.mark.parametrize("layout", ["bshd", "hsd", "sbd"])
def test_vmap_of_apply_rope(layout, lengths):
    q, k = (
        uniform(shape(layout, b=2, s=s, h=h, d=8), seed=s + h)
        for s, h in zip(lengths, (3, 1), strict=True)
    )
    cos, sin = table(4)

    def call(q, k, cos, sin):
        return posenc_ext.apply_rope(q, k, cos, sin, layout=layout, offset=2)

    for dims in ((0, 0, None, None), (1, None, None, None), (None, 2, None, None), (0, 1, 0, 0)):
        tensors = [
            batched(t, d, i) for i, (t, d) in enumerate(zip((q, k, cos, sin), dims, strict=True))
        ]
        assert_vmap(call, tensors, dims)


@pytest.mark.parametrize("norm_dims", ["head", "all"])
@pytest.mark.parametrize("layout", ["bshd", "hsd", "thd"])
def test_vmap_of_norm_rope(layout, norm_dims):
    x, (cos, sin) = uniform(shape(layout, b=2, s=4, h=3, d=8)), table(4)
    weight = uniform((8 if norm_dims == "head" else 24,), seed=4)
    packed = {"cu_seqlens": torch.tensor([0, 1, 4])} if layout == "thd" else {}

    def one(x, weight, cos):
        options = {"layout": layout, "norm_dims": norm_dims, **packed}
        return posenc_ext.norm_rope(x, weight, cos, sin, **options)

    def pair(x, weight, cos):
        options = {"layout": layout, "norm_dims": norm_dims, "k_bias": weight, **packed}
        return posenc_ext.qk_norm_rope(x, x + 1, None, weight, cos, sin, **options)

    for call in (one, pair):
        for dims in ((0, None, None), (1, 0, None), (None, None, 0), (2, 0, 1)):
            given = zip((x, weight, cos), dims, strict=True)
            tensors = [batched(t, d, i) for i, (t, d) in enumerate(given)]
            assert_vmap(call, tensors, dims)


def test_vmap_of_a_batch_is_one_call(monkeypatch):
    """Not one per sample, also over tables."""

    def refuse(*args):
        raise AssertionError("one call per sample")

    monkeypatch.setattr("posenc_ext.ops.rope_autograd.one_by_one", refuse)
    assert functions.one_by_one is not refuse
    x, (cos, sin) = uniform((V, 2, 4, 2, 8)), table(4)
    vmap(lambda x: posenc_ext.rope(x, cos, sin, offset=1))(x)
    vmap(lambda q: posenc_ext.apply_rope(q, q, cos, sin))(x)
    tables = cos.expand(V, -1, -1), sin.expand(V, -1, -1)
    vmap(lambda x, cos, sin: posenc_ext.rope(x, cos, sin, offset=1))(x, *tables)
    for op in (Rope, ApplyRope):
        assert op.vmap is not functions.Op.vmap


@pytest.mark.parametrize("inner", [0, 1])
def test_vmap_of_vmap(inner):
    x, (cos, sin) = uniform((V, 4, V, 2, 8)), table(4)
    nested = vmap(vmap(lambda x: posenc_ext.rope(x, cos, sin, layout="shd"), inner), 2)(
        x.movedim(0, inner)
    )
    assert nested.shape[:2] == (V, V)
    for i, j in itertools.product(range(V), range(V)):
        assert_bits(
            nested[i, j],
            posenc_ext.rope(
                x.movedim(0, inner).select(2, i).select(inner, j), cos, sin, layout="shd"
            ),
        )


SIZE = (2, 3, 4, 5)  # [B, H, Q, K]
KEYS = A([[0, 0, 1, 2, 3], [0, 1, 2, 3, 4]])
scores, slopes, many = scores_of(SIZE[2:]), slopes_of(), slopes_of(batch=2)
frequencies = posenc_ext.rope_frequencies(8).inv_freq

# (function, tensors, batch axes to map over)
VMAPS = {
    "add_alibi": (lambda s, m: posenc_ext.add_alibi(s, m, causal=True), (scores, slopes),
                  [(0, None), (None, 0), (2, 1)]),
    "add_alibi_batched": (posenc_ext.add_alibi, (scores, many), [(0, None), (None, 2), (1, 1)]),
    "alibi_softmax": (lambda s, m: posenc_ext.alibi_softmax(s, m, scale=0.5), (scores, slopes),
                      [(0, None), (None, 0), (3, 0)]),
    "alibi_softmax_padded": (
        lambda s, m, keep: posenc_ext.alibi_softmax(s, m, key_padding_mask=keep > 0),
        (scores, many, mask_of(2, 5).float()), [(0, None, None), (None, None, 0), (0, 1, 2)]),
    "alibi_bias": (lambda m: posenc_ext.alibi_bias(m, 4, 5, causal=True), (slopes,), [(0,), (1,)]),
    "alibi_bias_batched": (lambda m: posenc_ext.alibi_bias(m, 4, 5), (many,), [(0,), (2,)]),
    "alibi_bias_positions": (
        lambda m, p: posenc_ext.alibi_bias(m, 4, key_positions=p.long()),
        (slopes, KEYS.float()), [(0, None), (None, 0), (1, 1)]),
    "alibi_bias_batched_positions": (
        lambda m, p: posenc_ext.alibi_bias(m, 4, key_positions=p.long()),
        (many, KEYS.float()), [(0, None), (None, 0), (1, 1)]),
    "alibi_row_bias": (lambda m: posenc_ext.alibi_row_bias(m, 5), (slopes,), [(0,)]),
    "add_sinusoidal": (lambda x: posenc_ext.add_sinusoidal(x, offset=3, scale=2.0),
                       (uniform((2, 4, 6)),), [(0,), (1,), (3,)]),
    "add_sinusoidal_offsets": (
        lambda x, o: posenc_ext.add_sinusoidal(x, offset=(o * 9).long()),
        (uniform((2, 4, 6)), uniform((2,))), [(0, None), (None, 0), (1, 1)]),
    "sinusoidal_table": (lambda p: posenc_ext.sinusoidal_table(p, 6), (uniform((4,)) * 50,),
                         [(0,), (1,)]),
    "rope_table": (posenc_ext.rope_table, (uniform((4,)) * 50, frequencies),
                   [(0, None), (None, 0), (1, 1)]),
    "interleaved_to_half": (lambda w: posenc_ext.interleaved_to_half(w, 4), (uniform((3, 6)),),
                            [(0,), (2,)]),
    "half_to_interleaved": (lambda w: posenc_ext.half_to_interleaved(w, 4), (uniform((3, 6)),),
                            [(0,), (2,)]),
}  # fmt: skip


@pytest.mark.parametrize("call", VMAPS)
def test_vmap(call):
    function, tensors, every = VMAPS[call]
    for dims in every:
        pairs = enumerate(zip(tensors, dims, strict=True))
        assert_vmap(function, [batched(t, d, 10 * i + 20) for i, (t, d) in pairs], dims)
