"""What each attention module has of its own: golden numbers, caches, memories, shared parts."""

import math

import oracle_attention as oracle
import pytest
import torch
from attention_cases import (
    BATCH,
    D_MODEL,
    DIM,
    HEADS,
    LENGTH,
    module_of,
    same,
    seen,
    values,
)
from rope_cases import uniform

import posenc_ext

F64 = torch.float64


def tensor(numbers):
    return torch.as_tensor(numbers, dtype=F64)


def inputs(length=LENGTH, seed=0):
    return uniform((BATCH, length, D_MODEL), F64, seed)


def embedding_of(rows, left, right=None):
    rows = tensor(rows)
    module = posenc_ext.RelativePositionalEmbedding(rows.shape[1], left, right, dtype=F64)
    module.load_state_dict({"weight": rows})
    return module


def identity(linear, matrix=None):
    eye = torch.eye(*linear.weight.shape, dtype=F64)
    linear.load_state_dict({"weight": eye if matrix is None else matrix})


def test_golden_shaw_index(golden):
    case = golden["shaw/index_L4_k2"]
    k = case["inputs"]["max_relative_position"]
    embedding = embedding_of([[float(r)] for r in range(2 * k + 1)], k)
    same(embedding(torch.ones(case["inputs"]["len"], 1, dtype=F64)), tensor(case["expected"]), 0)


def test_golden_shaw_example(golden):
    given, expected = (golden["shaw/example"][key] for key in ("inputs", "expected"))
    q, k, v, a, b = (tensor(given[name]) for name in ("q", "k", "v", "a_K", "a_V"))
    reach = given["max_relative_position"]
    scores = (q @ k.T + embedding_of(a, reach)(q)) / math.sqrt(2)
    same(scores, tensor(expected["scores"]), 1e-15)
    weights = torch.softmax(scores, -1)
    same(weights @ v + embedding_of(b, reach).values(weights), tensor(expected["output"]), 1e-15)
    arrays = (t.numpy()[None, None] for t in (q, k, v, a, b))
    q, k, v, a, b = arrays
    out, _, scores = oracle.shaw(q, k, v, a[0, 0], b[0, 0], reach, reach, seen(False, 1, 3))
    same(tensor(scores[0, 0]), tensor(expected["scores"]), 1e-15)
    same(tensor(out[0, 0]), tensor(expected["output"]), 1e-15)


@pytest.mark.parametrize("lengths", [(1, 1), (1, 7), (3, 3), (4, 9), (9, 9)], ids=str)
@pytest.mark.parametrize("ends", [(0, 0), (2, 2), (3, 1), (0, 4), (20, 30)], ids=str)
def test_embedding_of_pairs(ends, lengths):
    """The two products against the tensor [Q, K, D] that they do not build."""
    torch.manual_seed(1)
    embedding = posenc_ext.RelativePositionalEmbedding(DIM, *ends, dtype=F64)
    q_len, k_len = lengths
    pairs = torch.empty(q_len, k_len, DIM, dtype=F64)
    for i in range(q_len):
        for j in range(k_len):
            pairs[i, j] = embedding.weight[oracle.clipped(j - (i + k_len - q_len), *ends)].detach()
    q, weights = uniform((2, 3, q_len, DIM), F64), uniform((2, 3, q_len, k_len), F64, 1)
    same(embedding(q, k_len), torch.einsum("bhid,ijd->bhij", q, pairs))
    same(embedding.values(weights), torch.einsum("bhij,ijd->bhid", weights, pairs))


@pytest.mark.parametrize("name", ["shaw", "shaw keys, asymmetric", "rotary values", "no positions"])
def test_decoding_gives_the_rows_of_the_full_pass(name):
    module, x = module_of(name, causal=True), inputs()
    real = torch.arange(LENGTH).expand(BATCH, -1) >= torch.tensor([[0], [2]])
    full, weights = module(x, key_padding_mask=real, need_weights=True)
    for split in range(LENGTH + 1):
        first, cache = module(x[:, :split], key_padding_mask=real[:, :split], use_cache=True)
        heads = cache[0].shape[1]
        assert cache[0].shape == cache[1].shape == (BATCH, heads, split, DIM)
        masks = {"key_padding_mask": real, "past": cache}
        rest, part, more = module(x[:, split:], need_weights=True, use_cache=True, **masks)
        same(torch.cat([first, rest], 1), full)
        same(part, weights[:, :, split:])
        assert more[0].shape[2] == LENGTH
        for t in range(split, LENGTH):
            masks = {"key_padding_mask": real[:, : t + 1], "past": cache}
            step, cache = module(x[:, t : t + 1], use_cache=True, **masks)
            same(step, full[:, t : t + 1])


def transformer_xl_of_example(given):
    """A module whose projections make the q and k of the golden example from its k."""
    module = posenc_ext.TransformerXLAttention(2, 1, dtype=F64)
    for linear in (module.linear_k, module.linear_v, module.linear_out, module.linear_pos):
        identity(linear)
    x = tensor(given["k"])[None]
    identity(module.linear_q, torch.linalg.solve(x[0, given["mem_len"] :], tensor(given["q"])).T)
    with torch.no_grad():
        module.pos_bias_u.copy_(tensor(given["u"]))
        module.pos_bias_v.copy_(tensor(given["v"]))
    return module, x


def test_golden_transformer_xl_example(golden):
    given, expected = (golden["transformer_xl/example"][key] for key in ("inputs", "expected"))
    module, x = transformer_xl_of_example(given)
    split = given["mem_len"]
    _, weights = module(x[:, split:], memory=x[:, :split], need_weights=True)
    scores = tensor([[-math.inf if s is None else s for s in row] for row in expected])
    same(weights[0, 0], torch.softmax(scores, -1), 1e-14)


def test_golden_transformer_xl_sinusoids(golden):
    """With W the identity and q + v a unit vector, scores of one query are a column of R."""
    given, expected = (golden["transformer_xl/R_d4"][key] for key in ("inputs", "expected"))
    dim, count = given["dim"], len(given["distances"])
    module = posenc_ext.TransformerXLAttention(dim, 1, dtype=F64)
    identity(module.linear_pos)
    torch.nn.init.zeros_(module.linear_k.weight)
    torch.nn.init.zeros_(module.linear_q.weight)
    x = torch.ones(1, count, dim, dtype=F64)
    for column in range(dim):
        with torch.no_grad():
            module.pos_bias_v.zero_()[0, column] = 2.0  # sqrt(dim) undoes the scale
        _, weights = module(x[:, -1:], memory=x[:, :-1], need_weights=True)
        same(weights[0, 0, 0], torch.softmax(tensor(expected)[:, column], -1), 1e-15)


@pytest.mark.parametrize(
    ("case", "start"),
    [
        ("transformer_xl/rel_shift_3x4", None),
        ("xlnet/rel_shift_q2_p4_k2", 2),
        ("conformer/rel_shift_T3", None),
    ],
)
def test_golden_shifts(golden, case, start):
    """Of the three models, by one function; the cells that a causal mask hides are 0 here."""
    x, expected = tensor(golden[case]["inputs"]["x"]), tensor(golden[case]["expected"])
    q_len, k_len = expected.shape
    shifted = posenc_ext.rel_shift(x, k_len, start=start)
    if case.startswith("transformer_xl"):
        expected = expected.tril(k_len - q_len)
    same(shifted, expected, 0)


@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize("clamp_len", [None, 3])
@pytest.mark.parametrize("split", [0, 1, 5, LENGTH - 1])
def test_memories(split, clamp_len, causal):
    """The rows of the full pass, if causal, and the formula in any case."""
    torch.manual_seed(2)
    options = {"causal": causal, "clamp_len": clamp_len, "dtype": F64}
    module, x = posenc_ext.TransformerXLAttention(D_MODEL, HEADS, **options), inputs()
    memory = x[:, :split]
    real = torch.arange(LENGTH).expand(BATCH, -1) >= torch.tensor([[0], [2]])
    keep = seen(causal, length=LENGTH - split, keys=LENGTH, real=real)
    y = module(x[:, split:], memory=memory, key_padding_mask=real)
    sizes = HEADS, "concatenated", clamp_len, keep
    parts = x[:, split:].numpy(), memory.numpy(), values(module)
    same(y, oracle.transformer_xl_attention(*parts, *sizes))
    if causal:
        same(y, module(x, key_padding_mask=real)[:, split:])


def test_shared_biases():
    first = posenc_ext.TransformerXLAttention(D_MODEL, HEADS)
    shared = {"pos_bias_u": first.pos_bias_u, "pos_bias_v": first.pos_bias_v}
    second = posenc_ext.TransformerXLAttention(D_MODEL, HEADS, **shared)
    both = torch.nn.ModuleList([first, second])
    assert second.pos_bias_u is first.pos_bias_u
    assert len(list(both.parameters())) == 5 + 5 + 2
    second(uniform((1, 4, D_MODEL))).sum().backward()
    assert first.pos_bias_v.grad.any()


def test_deberta_with_the_table_of_the_model():
    own = module_of("deberta buckets")
    given = posenc_ext.DebertaDisentangledAttention(
        D_MODEL, HEADS, 6, position_buckets=4, shared_table=True, dtype=F64
    )
    state = own.state_dict()
    table = state.pop("rel_embeddings.weight")
    given.load_state_dict(state)
    same(given(inputs(), rel_embeddings=table), own(inputs()))


def test_deberta_buckets_ahead_of_distances():
    """Few distances with many buckets: r leaves the rows that as many plain distances reach."""
    module = posenc_ext.DebertaDisentangledAttention(
        D_MODEL, HEADS, 6, position_buckets=8, dtype=F64
    )
    p, table = values(module), module.rel_embeddings.weight.detach().numpy()
    for length in range(1, 12):
        x = inputs(length)
        keep = seen(False, length=length)
        sizes = HEADS, 6, 8, ("c2p", "p2c"), False
        same(module(x), oracle.deberta_attention(x.numpy(), p, *sizes, table, keep))


def test_deberta_norm():
    options = {"position_buckets": 4, "dtype": F64}
    normed = posenc_ext.DebertaDisentangledAttention(
        D_MODEL, HEADS, 6, norm_rel_ebd=True, **options
    )
    plain = posenc_ext.DebertaDisentangledAttention(D_MODEL, HEADS, 6, shared_table=True, **options)
    state = {k: v for k, v in normed.state_dict().items() if not k.startswith(("rel", "Layer"))}
    plain.load_state_dict(state)
    with torch.no_grad():
        normed.LayerNorm.weight.uniform_()
        normed.LayerNorm.bias.uniform_()
    table = normed.rel_embeddings.weight
    table = (table - table.mean(1, keepdim=True)) / (
        table.var(1, keepdim=True, correction=0) + 1e-7
    ).sqrt()
    table = table * normed.LayerNorm.weight + normed.LayerNorm.bias
    same(plain(inputs(), rel_embeddings=table), normed(inputs()))


def test_deberta_dropout_of_positions_only_in_training():
    module = module_of("deberta buckets", position_dropout=0.5)
    assert not torch.equal(module(inputs()), module(inputs()))
    module.eval()
    assert torch.equal(module(inputs()), module(inputs()))


@pytest.mark.parametrize("case", ["deberta/log_bucket_256_512", "deberta/log_bucket_8_32"])
def test_golden_deberta_buckets(golden, case):
    """Through the module: one head of width 1, whose c2p score is the number of the row."""
    given, expected = golden[case]["inputs"], golden[case]["expected"]
    buckets, longest = given["bucket_size"], given["max_position"]
    length = max(abs(r) for r in given["rel"]) + 1
    module = posenc_ext.DebertaDisentangledAttention(
        1, 1, longest, position_buckets=buckets, terms=("c2p",), dtype=F64
    )
    with torch.no_grad():
        for linear in (module.query_proj, module.pos_key_proj, module.key_proj):
            linear.weight.fill_(0.0)
            linear.bias.fill_(0.0)
        module.query_proj.bias.fill_(1.0)
        module.pos_key_proj.weight.fill_(math.sqrt(2) / 64)
        module.rel_embeddings.weight.copy_(torch.arange(2.0 * buckets)[:, None])
    _, weights = module(torch.zeros(1, length, 1, dtype=F64), need_weights=True)
    logs = weights[0, 0].detach().log()
    steps = (logs - logs.diagonal()[:, None]) * 64  # from the row of distance 0
    for distance, bucket in zip(given["rel"], expected, strict=True):
        assert oracle.log_bucket(distance, buckets, longest) == bucket
        i, j = (distance, 0) if distance > 0 else (0, -distance)
        assert round(float(steps[i, j])) == min(max(bucket, -buckets), buckets - 1)
