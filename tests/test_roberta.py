"""RobertaEmbeddings: the formula, and transformers' module of the same name."""

import pytest
import torch
import torch.nn.functional as F
from rope_cases import assert_bits, uniform

import posenc_ext

F64 = torch.float64
IDS = torch.tensor([[5, 6, 7, 1, 1], [1, 1, 5, 6, 7], [5, 1, 6, 7, 8]])
TYPES = torch.tensor([[0, 0, 1, 1, 1]] * 3)


def embeddings(**options):
    torch.manual_seed(0)
    options = {"padding_idx": 1, "token_types": 2, "dropout": 0.0, **options}
    return posenc_ext.RobertaEmbeddings(10, 8, 20, **options)


def test_formula():
    module = embeddings(dtype=F64)
    positions = torch.tensor([[2, 3, 4, 1, 1], [1, 1, 2, 3, 4], [2, 1, 3, 4, 5]])

    def right(words, positions, types):
        x = words + module.token_type_embeddings.weight[types]
        x = x + module.position_embeddings.weight[positions]
        mean, variance = x.mean(-1, keepdim=True), x.var(-1, correction=0, keepdim=True)
        return (x - mean) / (variance + 1e-5).sqrt() * module.LayerNorm.weight

    words = module.word_embeddings.weight[IDS]
    past = (positions + 4) * (IDS != 1) + (IDS == 1)
    calls = [
        ((IDS,), {}, right(words, positions, 0 * TYPES)),
        ((IDS,), {"token_type_ids": TYPES}, right(words, positions, TYPES)),
        ((IDS,), {"past": 4}, right(words, past, 0 * TYPES)),
        ((IDS,), {"past": torch.tensor([4, 4, 4])}, right(words, past, 0 * TYPES)),
        ((IDS,), {"positions": positions + 3}, right(words, positions + 3, 0 * TYPES)),
        ((), {"inputs_embeds": words}, right(words, torch.arange(2, 7), 0 * TYPES)),
        ((), {"inputs_embeds": words, "past": 3}, right(words, torch.arange(5, 10), 0 * TYPES)),
    ]
    for args, options, expected in calls:
        torch.testing.assert_close(module(*args, **options), expected, rtol=1e-12, atol=1e-12)


def test_padding_gets_no_gradient():
    module = embeddings()
    module(IDS).square().sum().backward()
    assert not module.word_embeddings.weight.grad[1].any()
    assert not module.position_embeddings.weight.grad[1].any()
    assert module.position_embeddings.weight.grad[2].any()


def test_dropout():
    module = embeddings(dropout=0.5)
    assert (module(IDS) == 0).any()
    assert not (module.eval()(IDS) == 0).any()


def test_positions_past_the_table_are_refused_by_both_numbers():
    with pytest.raises(IndexError, match=r"max_len - 1 = 19, got 20"):
        embeddings()(torch.full((1, 19), 5))
    with pytest.raises(IndexError, match=r"max_len = 20 rows, got 21"):
        embeddings()(inputs_embeds=torch.zeros(1, 19, 8))
    assert embeddings()(torch.full((1, 18), 5)).shape == (1, 18, 8)


def test_refusals():
    module, x = embeddings(), torch.zeros(3, 5, 8)
    calls = [
        (ValueError, "input_ids", lambda: module()),
        (ValueError, "input_ids", lambda: module(IDS, inputs_embeds=x)),
        (TypeError, "input_ids", lambda: module(IDS.float())),
        (TypeError, "token_type_ids", lambda: module(IDS, token_type_ids=TYPES.float())),
        (IndexError, "input_ids", lambda: module(IDS + 10**6)),
        (IndexError, "input_ids", lambda: module(-IDS)),
        (TypeError, "token_type_ids", lambda: module(IDS, token_type_ids=[0])),
        (IndexError, "token_type_ids", lambda: module(IDS, token_type_ids=TYPES + 9)),
        (ValueError, "token_type_ids", lambda: module(IDS, token_type_ids=TYPES[None])),
        (ValueError, "token_type_ids", lambda: module(IDS, token_type_ids=TYPES[:, :4])),
        (
            ValueError,
            "token_type_ids",
            lambda: module(inputs_embeds=x[0], token_type_ids=TYPES[0, :1]),
        ),
        (ValueError, "positions", lambda: module(IDS, positions=torch.arange(4))),
        (ValueError, "past", lambda: module(IDS, past=-1)),
        (ValueError, "inputs_embeds", lambda: module(inputs_embeds=x[..., :4])),
        (ValueError, "inputs_embeds", lambda: module(inputs_embeds=[0.5])),
        (ValueError, "inputs_embeds", lambda: module(inputs_embeds=x.to("meta"))),
        (ValueError, "x", lambda: module(inputs_embeds=x[0, 0])),
    ]
    for exception, argument, call in calls:
        with pytest.raises(exception, match=rf"posenc_ext\.\w+: {argument} must .+, got"):
            call()


def test_compile_with_any_length():
    torch._dynamo.reset()
    module = embeddings()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager", dynamic=True)
    for length in (5, 4, 3):
        assert_bits(compiled(IDS[:, :length]).detach(), module(IDS[:, :length]).detach())


def test_transformers():
    modeling = pytest.importorskip(
        "transformers.models.roberta.modeling_roberta", reason="transformers is not installed"
    )
    config = modeling.RobertaConfig(
        vocab_size=10, hidden_size=8, max_position_embeddings=20, pad_token_id=1, type_vocab_size=2,
        num_attention_heads=2, layer_norm_eps=1e-5,
    )  # fmt: skip
    theirs, ours = modeling.RobertaEmbeddings(config).eval(), embeddings().eval()
    ours.load_state_dict(theirs.state_dict())
    words = uniform((3, 5, 8))
    for options in ({"input_ids": IDS}, {"input_ids": IDS, "token_type_ids": TYPES},
                    {"inputs_embeds": words}):  # fmt: skip
        assert_bits(ours(**options).detach(), theirs(**options).detach())
    right = theirs(IDS, position_ids=torch.arange(5)[None])
    assert_bits(ours(IDS, positions=torch.arange(5)).detach(), right.detach())
    assert F.cosine_similarity(ours(IDS, past=4), ours(IDS), dim=-1).min() < 1
