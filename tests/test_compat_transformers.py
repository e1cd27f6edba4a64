"""`patch`: models of transformers with random weights, as they come and with our kernels."""

import sys

import hf_models
import pytest
import torch
from hf_models import (
    FAMILIES,
    MORE,
    assert_same,
    generated,
    logits_and_gradients,
    model_of,
    modeling,
    tokens,
)

from posenc_ext.compat import hf_rotations
from posenc_ext.compat.transformers import patch, unpatch

pytestmark = [
    pytest.mark.skipif(bool(hf_models.REASON), reason=hf_models.REASON or "ready"),
    # What transformers does to itself.
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning"),
]

KNOWN = [*FAMILIES, *MORE]
SLOW = pytest.mark.slow
BIASES = ("bloom", "mpt")
INTERLEAVED = ("gptj", "codegen", "glm", "glm4", "cohere", "cohere2", "helium", "deepseek_v3")


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """The models are too small for two."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def unpatched():
    yield
    for family in KNOWN:
        if f"transformers.models.{family}.modeling_{family}" in sys.modules:
            unpatch(modeling(family))


@pytest.mark.parametrize("family", KNOWN)
def test_logits_gradients_and_generated_tokens_are_equal(family):
    model = model_of(family)
    theirs, text = logits_and_gradients(model), generated(model)
    for rounding in ("transformers", "once"):
        patch(model, rounding=rounding)
        ours = logits_and_gradients(model)
        if rounding == "once":
            for name in [n for n in theirs if n.endswith(("q_norm.weight", "k_norm.weight"))]:
                # The gradient of q has the same bits at other places in memory, and so is summed
                # in another order.
                torch.testing.assert_close(ours[name], theirs[name], rtol=1e-4, atol=1e-6)
                ours[name] = theirs[name]
        assert_same(ours, theirs)
    assert torch.equal(generated(model), text)
    assert text.shape == (2, 13)


@pytest.mark.parametrize("family", KNOWN)
def test_report(family):
    swaps = patch(model_of(family))
    module = modeling(family).__name__
    assert {swap.module for swap in swaps} == {module}
    form = swaps[-1].form
    if family in BIASES or family == "falcon":
        assert form == "ALiBi bias by key"
    else:
        assert form.startswith("interleaved" if family in INTERLEAVED else "half")
    assert patch(model_of(family)) == swaps
    assert unpatch(model_of(family)) == [f"{module}.{swap.function}" for swap in swaps]
    assert unpatch(model_of(family)) == []


@pytest.mark.parametrize("family", ["llama", "gptj", "glm", "gemma3_text", "bloom", "mpt"])
def test_the_model_runs_what_patch_put_there(family, monkeypatch):
    model = model_of(family)
    (swap,) = patch(model)
    module = modeling(family)
    theirs = getattr(module, swap.function).__wrapped__
    right = logits_and_gradients(model)["logits"]
    called = []

    ours = getattr(module, swap.function)

    def watched(*args, **kwargs):
        called.append(swap.function)
        return ours(*args, **kwargs)

    monkeypatch.setattr(module, swap.function, watched)
    assert torch.equal(logits_and_gradients(model)["logits"], right)
    assert called
    monkeypatch.undo()
    unpatch(model)
    assert getattr(module, swap.function) is theirs


@pytest.mark.parametrize(
    "family", ["llama", "qwen3", "gptj", "gpt_neox", "olmo", "cohere", "bloom"]
)
def test_bfloat16(family):
    """rounding="transformers" keeps the bits; "once" does where the model rounds once itself."""
    model = model_of(family).to(torch.bfloat16)
    try:
        theirs = logits_and_gradients(model)
        patch(model, rounding="transformers")
        assert_same(logits_and_gradients(model), theirs)
        patch(model, rounding="once")
        ours = logits_and_gradients(model)
        once = family in ("cohere", "olmo", *BIASES)
        assert torch.equal(ours["logits"], theirs["logits"]) == once
        torch.testing.assert_close(ours["logits"], theirs["logits"], rtol=0.1, atol=0.05)
    finally:
        model_of.cache_clear()


def test_once_is_nearer_to_float32():
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, 4, 33, 16, generator=generator).bfloat16()
    angle = torch.rand(1, 33, 8, generator=generator).repeat(1, 1, 2)
    cos, sin = angle.cos().bfloat16(), angle.sin().bfloat16()
    module = modeling("llama")
    exact, _ = module.apply_rotary_pos_emb(q.float(), q.float(), cos.float(), sin.float())
    theirs, _ = module.apply_rotary_pos_emb(q, q, cos, sin)
    patch(module)
    ours, _ = module.apply_rotary_pos_emb(q, q, cos, sin)
    assert torch.equal(ours, exact.bfloat16())
    assert not torch.equal(theirs, exact.bfloat16())


@pytest.mark.parametrize("family", ["llama", "gptj", "cohere", "bloom"])
def test_gradient_checkpointing(family):
    model = model_of(family)
    theirs = logits_and_gradients(model)
    patch(model)
    model.train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    try:
        assert model.is_gradient_checkpointing
        ours = logits_and_gradients(model)
    finally:
        model.gradient_checkpointing_disable()
        model.eval()
    assert_same(ours, theirs)


@pytest.mark.parametrize(
    "family",
    [
        family if family in ("llama", "gptj", "bloom") else pytest.param(family, marks=SLOW)
        for family in KNOWN
    ],
)
def test_the_graph_is_whole_under_compile(family):
    """Traced by dynamo and autograd, run without a compiler."""
    model = model_of(family)
    theirs = logits_and_gradients(model)
    patch(model, rounding="transformers")
    torch.compiler.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    assert_same(logits_and_gradients(model, compiled), theirs)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "gptj"])
def test_compiled(family):
    """Both compiled: their rotation is then code of the compiler."""
    model = model_of(family)
    results = []
    for swap in (unpatch, patch):
        swap(model)
        torch.compiler.reset()
        results.append(logits_and_gradients(model, torch.compile(model)))
    for name, right in results[0].items():
        torch.testing.assert_close(results[1][name], right, rtol=1e-5, atol=1e-6, msg=name)
    assert torch.equal(results[1]["logits"], results[0]["logits"])


def test_a_compiled_model_notices():
    model = model_of("llama")
    torch.compiler.reset()
    compiled = torch.compile(model, backend="aot_eager")
    with torch.no_grad():
        right = compiled(input_ids=tokens()).logits
        patch(model)
        hf_rotations.rotate, kept = _refuse, hf_rotations.rotate
        try:
            with pytest.raises(Exception, match="reached"):
                compiled(input_ids=tokens())
        finally:
            hf_rotations.rotate = kept
        torch.compiler.reset()
        assert torch.equal(compiled(input_ids=tokens()).logits, right)


def _refuse(*args):
    raise RuntimeError("reached")


def test_every_model_of_the_family_changes():
    first, second = model_of("llama"), modeling("llama").LlamaForCausalLM(model_of("llama").config)
    patch(first)
    ours = modeling("llama").apply_rotary_pos_emb
    patch(second)
    assert modeling("llama").apply_rotary_pos_emb is ours
    unpatch(second)
    assert modeling("llama").apply_rotary_pos_emb is ours.__wrapped__
    assert unpatch(first) == []
    assert modeling("mistral").apply_rotary_pos_emb is not ours


@pytest.mark.parametrize("family", ["clvp", "sam2_video", "gpt2"])
def test_unknown_code_is_refused(family):
    module = modeling(family)
    before = dict(vars(module))
    with pytest.raises(ValueError, match=rf"^posenc_ext\.patch: model_or_module must .*{family}"):
        patch(module)
    assert dict(vars(module)) == before
