"""LearnedPositionalEncoding, resize_position_grid and RobertaEmbeddings."""

import re

import numpy as np
import oracle_learned
import pytest
import torch
import torch.nn.functional as F
from rope_cases import DTYPES, VIEWS, assert_bits, double, name, uniform

import posenc_ext

F64, I32 = torch.float64, torch.int32
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=name)
TOKENS = torch.tensor([[5, 6, 7, 1, 1], [1, 1, 5, 6, 7], [5, 1, 6, 7, 8]])


def encoding(max_len=16, dtype=torch.float32, **options):
    found = posenc_ext.LearnedPositionalEncoding(8, max_len, dtype=dtype, **options)
    found.weight.data = uniform((max_len, 8), dtype, 3)
    return found


def check(module, x, rows, /, **options):
    y = module(x, **options)
    assert (y.dtype, y.shape) == (x.dtype, x.shape)
    batch = x if x.dim() == 3 else x[None]
    rows = np.broadcast_to(np.asarray(rows), batch.shape[:2])
    right = oracle_learned.learned(double(batch), double(module.weight), rows)
    rtol, atol = oracle_learned.TOLERANCE[name(x.dtype)]
    np.testing.assert_allclose(double(y).reshape(right.shape), right, rtol=rtol, atol=atol)


@every_dtype
@pytest.mark.parametrize("view", VIEWS)
def test_formula(dtype, view):
    module, x = encoding(dtype=dtype), VIEWS[view](uniform((3, 5, 8), dtype))
    check(module, x, np.arange(5))
    check(module, x, np.arange(7, 12), offset=7)
    check(module, x, 3 + np.arange(5), offset=torch.tensor(3))
    offsets = torch.tensor([0, 4, 11], dtype=I32)
    check(module, x, offsets.numpy()[:, None] + np.arange(5), offset=offsets)
    for positions in ([3, 0, 0, 15, 1], [[4, 1, 2, 0, 9]], np.arange(15).reshape(3, 5)):
        check(module, x, positions, positions=torch.tensor(np.array(positions)))
    check(module, x[0], np.arange(2, 7), offset=2)
    check(module, x[0], [1, 1, 2, 0, 5], positions=torch.tensor([1, 1, 2, 0, 5], dtype=I32))


@every_dtype
def test_padding(dtype):
    module, x = encoding(dtype=dtype, padding_idx=1), uniform((3, 5, 8), dtype)
    right = oracle_learned.padding_aware_positions
    check(module, x, right(TOKENS.numpy(), 1), tokens=TOKENS)
    check(module, x, right(TOKENS.numpy(), 1, past=6), tokens=TOKENS, offset=6)
    past = torch.tensor([1, 2, 3])
    check(module, x, right(TOKENS.numpy(), 1, past=past), tokens=TOKENS, offset=past)
    check(module, x[0], right(TOKENS.numpy(), 1)[:1], tokens=TOKENS[0])
    check(module, x, np.arange(2, 7))
    check(module, x, np.arange(4, 9), offset=2)


def test_mixed_dtypes_round_once():
    x = uniform((2, 5, 8), torch.bfloat16)
    module = encoding()
    right = (x.float() + module.weight[:5]).bfloat16()
    assert_bits(module(x).detach(), right.detach())


def test_gradients():
    module, x = encoding(dtype=F64), uniform((3, 5, 8), F64).requires_grad_()
    upstream = uniform(x.shape, F64, 1)
    for options, positions in [
        ({}, np.arange(5)),
        ({"offset": 4}, np.arange(4, 9)),
        ({"positions": torch.tensor([[1, 1, 1, 0, 9]])}, np.array([1, 1, 1, 0, 9])),
    ]:
        grads = torch.autograd.grad(module(x, **options), (x, module.weight), upstream)
        assert_bits(grads[0], upstream)
        right = np.zeros((16, 8))
        np.add.at(right, np.broadcast_to(positions, (3, 5)), upstream.numpy())
        np.testing.assert_allclose(grads[1].numpy(), right, rtol=1e-13, atol=1e-14)


def test_gradcheck():
    module, x = encoding(dtype=F64, padding_idx=1), uniform((3, 5, 8), F64).requires_grad_()

    def call(x, weight):
        made = torch.func.functional_call(module, {"weight": weight}, (x,), {"tokens": TOKENS})
        return made[TOKENS != 1] ** 2

    weight = uniform((16, 8), F64, 5).requires_grad_()
    assert torch.autograd.gradcheck(call, (x, weight), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(call, (x, weight))


def test_the_row_of_padding_is_zero_and_stays_so():
    module = posenc_ext.LearnedPositionalEncoding(8, 16, padding_idx=1)
    assert not module.weight[1].any()
    assert module.weight.abs().sum(1).count_nonzero() == 15
    module(uniform((3, 5, 8)), tokens=TOKENS).sum().backward()
    assert not module.weight.grad[1].any()
    assert module.weight.grad[2].abs().sum() > 0


def test_one_hot_positions_are_the_identity_table():
    module = posenc_ext.LearnedPositionalEncoding(8, 8)
    module.weight.data = torch.eye(8)
    assert torch.equal(module(torch.zeros(1, 8, 8))[0], torch.eye(8))


def test_dropout_state_dict_and_meta_device():
    torch.manual_seed(0)
    module = encoding(dropout=0.5)
    x = torch.ones(64, 5, 8)
    assert 0.4 < (module(x) == 0).float().mean() < 0.6
    assert_bits(module.eval()(x).detach(), (x + module.weight[:5]).detach())
    assert list(module.state_dict()) == ["weight"]
    module.load_state_dict(torch.nn.Embedding(16, 8).state_dict())
    with torch.device("meta"):
        other = posenc_ext.LearnedPositionalEncoding(8, 16, padding_idx=1)
        assert other(torch.empty(2, 5, 8), offset=3).shape == (2, 5, 8)
        with pytest.raises(IndexError, match="max_len = 16 rows, got 17"):
            other(torch.empty(2, 5, 8), offset=10)
    assert "padding_idx=1" in repr(other)


def test_empty():
    module = encoding()
    for shape in ((0, 5, 8), (3, 0, 8), (0, 8)):
        assert module(torch.zeros(shape)).shape == shape
    assert module(torch.zeros(3, 0, 8), offset=100).shape == (3, 0, 8)
    none = torch.zeros(3, 0, dtype=torch.int64)
    assert module(torch.zeros(3, 0, 8), positions=none).shape == (3, 0, 8)


X = uniform((3, 5, 8))
# fmt: off
REFUSALS = [
    (IndexError, "x", ["max_len = 16", "got 17", "5 tokens from row 12"], {"offset": 12}),
    (IndexError, "positions", ["max_len - 1 = 15", "got 16"],
        {"positions": torch.tensor([0, 1, 16, 3, 4])}),
    (IndexError, "positions", ["got -1"], {"positions": torch.tensor([0, 1, -1, 3, 4])}),
    (IndexError, "positions", ["15", "got 16"], {"offset": torch.tensor([0, 12, 1])}),
    (IndexError, "positions", ["got -2"], {"offset": torch.tensor(-2)}),
    (ValueError, "offset", ["-1"], {"offset": -1}),
    (TypeError, "offset", ["float"], {"offset": 1.0}),
    (TypeError, "offset", ["sparse"], {"offset": torch.ones(3).long().to_sparse()}),
    (TypeError, "x", ["sparse"], {"x": X.to_sparse()}),
    (TypeError, "offset", [], {"offset": torch.zeros(3)}),
    (ValueError, "offset", ["[2]"], {"offset": torch.zeros(2).long()}),
    (ValueError, "offset", ["[3]"], {"x": X[0], "offset": torch.zeros(3).long()}),
    (TypeError, "x", ["list"], {"x": [1.0]}),
    (TypeError, "x", ["int64"], {"x": torch.ones(3, 5, 8).long()}),
    (ValueError, "x", ["D = 8", "[3, 5, 7]"], {"x": uniform((3, 5, 7))}),
    (ValueError, "x", ["[8]"], {"x": uniform((8,))}),
    (TypeError, "positions", [], {"positions": torch.zeros(5)}),
    (TypeError, "positions", ["list"], {"positions": [0, 1, 2, 3, 4]}),
    (ValueError, "positions", ["[4]"], {"positions": torch.arange(4)}),
    (ValueError, "positions", ["[1]"], {"x": X[0], "positions": torch.tensor([3])}),
    (ValueError, "positions", ["[2, 5]"], {"positions": torch.zeros(2, 5).long()}),
    (ValueError, "positions", ["offset"], {"positions": torch.arange(5), "offset": 1}),
    (ValueError, "tokens", ["padding_idx"], {"tokens": TOKENS}),
]
# fmt: on


def refused(call, op, exception, argument, fragments):
    with pytest.raises(exception, match=rf"^posenc_ext\.{op}: {argument} must .+, got .+") as e:
        call()
    assert type(e.value) is exception
    for fragment in fragments:
        assert re.search(re.escape(fragment), str(e.value))


@pytest.mark.parametrize(("exception", "argument", "fragments", "changes"), REFUSALS)
def test_refusals(exception, argument, fragments, changes):
    module, call = encoding(), {"x": X, **changes}
    refused(lambda: module(**call), "LearnedPositionalEncoding", exception, argument, fragments)


def test_refusals_with_padding():
    module = encoding(max_len=6, padding_idx=1)
    op = "LearnedPositionalEncoding"
    cases = [
        (IndexError, "positions", ["5", "got 6"], {"tokens": torch.full((3, 5), 9)}),
        (IndexError, "x", ["max_len = 6", "got 7"], {}),
        (IndexError, "positions", ["from 2", "got 1"], {"offset": torch.tensor([0, -1, 0])}),
        (ValueError, "tokens", ["[3, 5]", "[3, 4]"], {"tokens": TOKENS[:, :4]}),
        (TypeError, "tokens", [], {"tokens": TOKENS.float()}),
        (ValueError, "positions", ["tokens"], {"tokens": TOKENS, "positions": TOKENS}),
    ]
    for exception, argument, fragments, changes in cases:
        refused(lambda c=changes: module(X, **c), op, exception, argument, fragments)


def test_refusals_of_constructors():
    learned, grid = posenc_ext.LearnedPositionalEncoding, posenc_ext.resize_position_grid
    roberta = posenc_ext.RobertaEmbeddings
    table = uniform((10, 8))
    cases = [
        (learned, ValueError, "d_model", (0, 4), {}),
        (learned, ValueError, "max_len", (4, -1), {}),
        (learned, ValueError, "padding_idx", (4, 4), {"padding_idx": 4}),
        (learned, ValueError, "padding_idx", (4, 4), {"padding_idx": -1}),
        (learned, ValueError, "dropout", (4, 4, 1.5), {}),
        (learned, TypeError, "std", (4, 4), {"std": "1"}),
        (learned, ValueError, "std", (4, 4), {"std": -1}),
        (roberta, ValueError, "vocab_size", (1, 4), {}),
        (roberta, ValueError, "token_types", (9, 4), {"token_types": 0}),
        (roberta, TypeError, "dropout", (9, 4), {"dropout": None}),
        (grid, TypeError, "weight", ([1.0], (2, 2)), {}),
        (grid, TypeError, "weight", (table.long(), (2, 2)), {}),
        (grid, ValueError, "weight", (table[0], (2, 2)), {}),
        (grid, ValueError, "weight", (table[:2], (2, 2)), {"prefix": 3}),
        (grid, ValueError, "grid", (table, (2, 2)), {"prefix": 2}),
        (grid, ValueError, "grid", (table, (2, 2)), {"grid": (2, 4)}),
        (grid, ValueError, "prefix", (table, (2, 2)), {"prefix": -1}),
        (grid, TypeError, "size", (table, 4), {}),
        (grid, ValueError, "size", (table, (2, 0)), {}),
    ]
    for function, exception, argument, args, options in cases:
        with pytest.raises(exception, match=rf"^posenc_ext\.\w+: {argument} must .+, got .+"):
            function(*args, **options)


@pytest.mark.parametrize("options", ["none", "offset", "offsets", "positions", "tokens"])
def test_compile_with_any_length(options):
    torch._dynamo.reset()
    module = encoding(64, padding_idx=1)

    def given(length):
        return {
            "none": {},
            "offset": {"offset": 3},
            "offsets": {"offset": torch.tensor([1, 2, 3])},
            "positions": {"positions": torch.arange(length).flip(0)},
            "tokens": {"tokens": torch.arange(3 * length).view(3, length) % 4},
        }[options]

    compiled = torch.compile(module, fullgraph=True, backend="aot_eager", dynamic=True)
    for length in (5, 9, 17):
        x = uniform((3, length, 8), seed=length)
        assert_bits(compiled(x, **given(length)).detach(), module(x, **given(length)).detach())
    if options == "offset":
        compiled = torch.compile(module, backend="aot_eager", dynamic=True)
        with pytest.raises(IndexError, match="max_len = 64 rows, got 69"):
            compiled(uniform((3, 64, 8)), offset=3)


# ---- the grid of an image ----


@every_dtype
def test_grid(dtype):
    table = uniform((2, 1 + 12, 8), dtype)
    out = posenc_ext.resize_position_grid(table, (5, 7), grid=(3, 4))
    assert (out.dtype, out.shape) == (dtype, (2, 36, 8))
    assert_bits(out[:, :1], table[:, :1])
    exact = table if dtype == F64 else table.float()
    image = exact[:, 1:].reshape(2, 3, 4, 8).permute(0, 3, 1, 2)
    right = F.interpolate(image, size=(5, 7), mode="bicubic", align_corners=False)
    assert_bits(out[:, 1:], right.permute(0, 2, 3, 1).reshape(2, 35, 8).to(dtype))


def test_grid_of_constant_rows_and_of_the_same_size():
    table = uniform((8,)).expand(16, 8)
    out = posenc_ext.resize_position_grid(table, (3, 9), prefix=0)
    torch.testing.assert_close(out, table[:1].expand(27, 8), rtol=1e-6, atol=1e-6)
    table = uniform((17, 8))
    assert posenc_ext.resize_position_grid(table, (4, 4)) is table


def test_grid_gradcheck():
    table = uniform((2 + 6, 3), F64).requires_grad_()

    def call(table):
        return posenc_ext.resize_position_grid(table, (4, 2), grid=(2, 3), prefix=2)

    assert torch.autograd.gradcheck(call, (table,))


def test_grid_is_that_of_transformers():
    vit = pytest.importorskip(
        "transformers.models.vit.modeling_vit", reason="transformers is not installed"
    )
    config = vit.ViTConfig(hidden_size=8, image_size=32, patch_size=4)
    embeddings = vit.ViTEmbeddings(config)
    embeddings.position_embeddings.data = uniform((1, 65, 8))
    right = embeddings.interpolate_pos_encoding(torch.zeros(1, 1 + 60, 8), 24, 40)
    out = posenc_ext.resize_position_grid(embeddings.position_embeddings, (6, 10))
    assert_bits(out.detach(), right.detach())
