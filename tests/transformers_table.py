"""What `patch` does to every model of transformers that can be built tiny, with random weights.

    python tests/transformers_table.py             # minutes: writes the table into the docs
    python tests/transformers_table.py llama t5    # prints the outcome of these alone

A model type is run as it comes and patched, in float32, with attention in torch ops and by sdpa:
logits (or hidden states), the gradient of every parameter, and generated tokens must be equal.
"""

import contextlib
import io
import logging
import pathlib
import sys
import warnings

import torch
from hf_tiny import build, inputs_of, rotates

from posenc_ext.compat import hf_rotations, transformers
from posenc_ext.compat.transformers import patch, unpatch

PAGE = pathlib.Path(__file__).resolve().parent.parent / "docs" / "compat" / "transformers.md"
BEGIN, END = "<!-- table: python tests/transformers_table.py -->\n", "<!-- end of table -->\n"
ATTENTIONS = ("eager", "sdpa")


class Differs(AssertionError):
    """Results that are not the same bits."""


def tensors_of(out):
    values = out.values() if hasattr(out, "values") else out
    found = [v for v in values if isinstance(v, torch.Tensor) and v.is_floating_point()]
    return found[:1]


def forward_and_gradients(model, inputs):
    model.zero_grad()
    torch.manual_seed(0)
    out = tensors_of(model(**inputs))
    sum(t.square().mean() for t in out).backward()
    grads = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return {"logits": out[0].detach(), **grads}


def generated(model, inputs):
    if list(inputs)[:1] != ["input_ids"] or not model.can_generate():
        return {}
    with torch.no_grad():
        torch.manual_seed(0)
        text = model.generate(**inputs, max_new_tokens=4, do_sample=False)
    return {"text": text if isinstance(text, torch.Tensor) else text.sequences}


def results(model, inputs):
    """By attention; what cannot be run this way is left out."""
    found = {}
    for attention in ATTENTIONS:
        with contextlib.suppress(ValueError):
            model.set_attn_implementation(attention)
            found[attention] = forward_and_gradients(model, inputs) | generated(model, inputs)
    return found


def assert_equal(ours, theirs, what):
    for attention, right in theirs.items():
        differ = [name for name, value in right.items() if not same(ours[attention][name], value)]
        if differ:
            raise Differs(f"{what}, {attention}: {', '.join(differ[:3])} of {len(right)}")


def same(mine, right):
    return torch.equal(mine.nan_to_num(), right.nan_to_num())


class Counted:
    """How often the swapped functions were called, and how often they rotated here."""

    def __init__(self):
        self.calls, self.ours, self.kept = {}, 0, {}

    def __enter__(self):
        for key, patched in transformers._patched.items():
            module, name = sys.modules[key[0]], key[1]
            self.kept[module, name] = patched.ours
            setattr(module, name, self.counting(name, patched.ours))
        self.rotate = hf_rotations.rotate
        hf_rotations.rotate = self.rotating
        return self

    def __exit__(self, *_):
        hf_rotations.rotate = self.rotate
        for (module, name), function in self.kept.items():
            setattr(module, name, function)

    def rotating(self, *args):
        self.ours += 1
        return self.rotate(*args)

    def counting(self, name, function):
        def counted(*args, **kwargs):
            self.calls[name] = self.calls.get(name, 0) + 1
            return function(*args, **kwargs)

        return counted


def outcome(model_type):
    """(kind, families with it say) of one model type."""
    try:
        model = build(model_type)
    except Exception as exception:
        return "not built", f"{type(exception).__name__}"
    try:
        swaps = patch(model, rounding="transformers")
    except ValueError as refusal:
        text = str(refusal).removeprefix("posenc_ext.patch: model_or_module must ")
        if text.startswith("come from code"):
            return "no function", ""
        return "refused", text.split(", got ", 1)[1]
    finally:
        with contextlib.suppress(Exception):
            unpatch(model)
    forms = "; ".join(dict.fromkeys(swap.form for swap in swaps))
    inputs = inputs_of(model)
    try:
        theirs = results(model, inputs)
        assert_equal(results(model, inputs), theirs, "unpatched twice")
    except Exception as exception:
        return "not run", f"{type(exception).__name__}"
    try:
        patch(model, rounding="transformers")
        with Counted() as counted:
            ours = results(model, inputs)
        assert_equal(ours, theirs, "patched")
        patch(model)
        assert_equal(
            once(model, inputs), {a: {"logits": r["logits"]} for a, r in theirs.items()}, "once"
        )
    except Exception as exception:
        return "differs", f"{type(exception).__name__}: {exception}"[:200]
    finally:
        unpatch(model)
    rotations = sum(n for name, n in counted.calls.items() if "alibi" not in name)
    if not counted.calls:
        return "never called", forms
    if counted.ours < rotations:
        return "in part", f"{forms} ({counted.ours} of {rotations} calls)"
    generates = "text" in next(iter(ours.values()))
    return ("equal" if generates else "equal, no text"), forms


def once(model, inputs):
    found = {}
    for attention in ATTENTIONS:
        with contextlib.suppress(ValueError), torch.no_grad():
            model.set_attn_implementation(attention)
            torch.manual_seed(0)
            found[attention] = {"logits": tensors_of(model(**inputs))[0]}
    return found


def quiet(model_type):
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            return outcome(model_type)
        finally:
            logging.disable(logging.NOTSET)


if __name__ == "__main__":
    torch.set_num_threads(1)
    import time

    for model_type in sys.argv[1:] or rotates():
        t = time.time()
        print(model_type, *quiet(model_type), f"{time.time() - t:.1f}", flush=True)
