"""`patch(fuse_norm=True)`: models of transformers with and without, in one pass and in two."""

import copy
import io

import hf_models
import pytest
import torch
from hf_models import SIZES, generated, logits_and_gradients, modeling, tokens

from posenc_ext.compat import hf_pending
from posenc_ext.compat.transformers import patch, unpatch

pytestmark = [
    pytest.mark.skipif(bool(hf_models.REASON), reason=hf_models.REASON or "ready"),
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning"),
]

GLM = {"head_dim": 16, "use_qk_norm": True, "n_routed_experts": 4, "num_experts_per_tok": 2,
       "moe_intermediate_size": 32, "n_group": 1, "topk_group": 1}  # fmt: skip
NORMED = ("qwen3", "gemma3_text", "olmo2", "glm4_moe")


def model_of(family, **options):
    """Tiny, with random weights in its norms."""
    if family == "glm4_moe":
        sizes = SIZES | GLM
    else:
        sizes = SIZES | {**hf_models.FAMILIES, **hf_models.MORE}.get(family, {})
    config = hf_models.transformers.AutoConfig.for_model(family, **sizes)
    config._attn_implementation = options.get("attention", "sdpa")
    torch.manual_seed(0)
    model = hf_models.transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "norm" in name:
                p.add_(torch.rand_like(p))
    return model


@pytest.fixture(autouse=True)
def unpatched():
    yield
    for family in (*NORMED, "llama", "nanochat", "cohere"):
        unpatch(modeling(family))


@pytest.fixture
def passes(monkeypatch):
    """A list that grows with each pass over both."""
    made, both = [], hf_pending.qk_norm_rope
    monkeypatch.setattr(
        hf_pending, "qk_norm_rope", lambda *args, **kw: (made.append(kw), both(*args, **kw))[1]
    )
    return made


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("family", NORMED)
def test_the_same_logits_gradients_and_tokens(family, attention, passes):
    model = model_of(family, attention=attention)
    theirs, text = logits_and_gradients(model), generated(model)
    kinds = [type(part) for part in model.modules()]
    (swap,) = patch(model, fuse_norm=True)
    assert swap.norms == 4
    assert str(swap).endswith(", rounding once, 4 norms in the same pass")
    passes.clear()
    ours = logits_and_gradients(model)
    assert len(passes) == 2
    for name, right in theirs.items():
        torch.testing.assert_close(
            ours[name], right, rtol=0, atol=4e-6 * right.abs().max().item(), msg=name
        )
    assert torch.equal(generated(model), text)
    assert len(passes) == 14
    (swap,) = patch(model)
    assert swap.norms == 0
    patch(model, fuse_norm=True)
    unpatch(model)
    assert [type(part) for part in model.modules()] == kinds
    again = logits_and_gradients(model)
    assert all(torch.equal(again[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize("family", ["qwen3", "gemma3_text"])
def test_training(family, passes):
    losses = []
    for fuse_norm in (False, True):
        model = model_of(family).train()
        patch(model, fuse_norm=fuse_norm)
        passes.clear()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        losses.append([])
        for step in range(20):
            ids = (tokens() + step % 3) % SIZES["vocab_size"]
            loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses[-1].append(loss.item())
        assert len(passes) == 40 * fuse_norm
    assert losses[0][-1] < 0.7 * losses[0][0]
    assert losses[1] == pytest.approx(losses[0], rel=1e-6, abs=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", ["qwen3", "gemma3_text"])
def test_half_precision_rounds_where_the_model_does(family, dtype, passes):
    """But where the order of a sum decides how a value is rounded."""
    model = model_of(family).to(dtype)
    patch(model)
    right = model(tokens()).logits
    patch(model, fuse_norm=True)
    passes.clear()
    ours = model(tokens()).logits
    assert {call["rounding"] for call in passes} == {
        {"qwen3": "transformers", "gemma3_text": "norm"}[family]
    }
    assert (ours == right).double().mean() > 0.9


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("nanochat", "no norm of NanoChatAttention came to the rotation"),  # it comes after
        ("llama", "no module that rotates holds a norm"),
        ("cohere", r"CohereAttention\.k_norm has other parameters than one weight"),
    ],
)
def test_refused_with_the_reason(family, text):
    sizes = SIZES | ({"use_qk_norm": True} if family == "cohere" else {})
    config = hf_models.transformers.AutoConfig.for_model(family, **sizes)
    model = hf_models.transformers.AutoModelForCausalLM.from_config(config)
    before = modeling(family).apply_rotary_pos_emb
    with pytest.raises(ValueError, match=rf"^posenc_ext\.patch: fuse_norm must be .*: {text}"):
        patch(model, fuse_norm=True)
    assert modeling(family).apply_rotary_pos_emb is before
    assert unpatch(model) == []


def test_copies_and_saved_models_are_as_they_came(passes):
    model = model_of("qwen3")
    patch(model, fuse_norm=True)
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    norm = modeling("qwen3").Qwen3RMSNorm
    for other in (copy.deepcopy(model), torch.load(buffer, weights_only=False)):
        attention = other.model.layers[1].self_attn
        assert type(attention.q_norm) is norm
        with torch.no_grad():  # weights of its own
            attention.q_norm.weight.zero_()
        passes.clear()
        assert torch.isfinite(other(tokens()).logits).all()
        assert not passes
    model(tokens())
    assert len(passes) == 2


def test_under_torch_s_own_eyes_norms_do_not_wait(passes):
    model = model_of("qwen3")
    right = model(tokens(), use_cache=False).logits
    patch(model, fuse_norm=True)
    passes.clear()
    with torch.inference_mode():
        assert torch.equal(model(tokens(), use_cache=False).logits, right)
    compiled = torch.compile(model, backend="aot_eager")
    assert torch.equal(compiled(tokens(), use_cache=False).logits, right)
    assert not passes
