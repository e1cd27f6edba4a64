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
from posenc_ext.compat.hf_short import Short
from posenc_ext.compat.transformers import patch, unpatch

PAGE = pathlib.Path(__file__).resolve().parent.parent / "docs" / "compat" / "transformers.md"
BEGIN, END = "<!-- table: python tests/transformers_table.py -->\n", "<!-- end of table -->\n"
ATTENTIONS = ("eager", "sdpa")


def logits_of(model, inputs):
    torch.manual_seed(0)
    out = model(**inputs)
    found = [v for v in out.values() if isinstance(v, torch.Tensor) and v.is_floating_point()]
    return found[0]


def used(model, inputs):
    """Logits, and generated tokens where the inputs are text."""
    with torch.no_grad():
        found = {"logits": logits_of(model, inputs)}
        if next(iter(inputs)) == "input_ids" and model.can_generate():
            torch.manual_seed(0)
            text = model.generate(**inputs, max_new_tokens=4, do_sample=False)
            found["text"] = text if isinstance(text, torch.Tensor) else text.sequences
    return found


def trained(model, inputs):
    """The gradient of every parameter."""
    model.zero_grad()
    logits_of(model, inputs).square().mean().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def by_attention(function, model, inputs):
    """An implementation of attention that the model does not have is left out."""
    found = {}
    for attention in ATTENTIONS:
        with contextlib.suppress(ValueError):
            model.set_attn_implementation(attention)
            found[attention] = function(model, inputs)
    return found


def difference(ours, theirs, atol=0.0):
    """Empty if all is the same bits, or as near as that."""
    for attention, right in theirs.items():
        differ = [
            name for name, value in right.items() if not same(ours[attention][name], value, atol)
        ]
        if differ:
            return f"{attention}: {', '.join(differ[:2])}"
    return ""


def same(mine, right, atol):
    return torch.allclose(mine.nan_to_num(), right.nan_to_num(), rtol=0, atol=atol)


class Counted:
    """How often the swapped functions were called, and how often they rotated here."""

    def __init__(self):
        self.calls, self.ours, self.kept = {}, 0, {}

    def __enter__(self):
        for key, patched in transformers._patched.items():
            module, name = sys.modules[key[0]], key[1]
            self.kept[module, name] = patched.ours
            setattr(module, name, self.counting(name, patched.ours))
        self.rotate, self.short = hf_rotations.rotate, Short.run
        hf_rotations.rotate = self.rotating
        Short.run = lambda *args, **kwargs: self.rotating(*args, run=self.short, **kwargs)
        return self

    def __exit__(self, *_):
        hf_rotations.rotate, Short.run = self.rotate, self.short
        for (module, name), function in self.kept.items():
            setattr(module, name, function)

    def rotating(self, *args, run=None, **kwargs):
        self.ours += 1
        return (run or self.rotate)(*args, **kwargs)

    def counting(self, name, function):
        def counted(*args, **kwargs):
            self.calls[name] = self.calls.get(name, 0) + 1
            return function(*args, **kwargs)

        return counted


def outcome(model_type):
    """What came out for a model type, and what to say of it."""
    try:
        model = build(model_type)
    except Exception as exception:
        return "not built", type(exception).__name__
    try:
        swaps = patch(model)
    except ValueError as refusal:
        text = str(refusal).partition(", got ")[2].split(", where no")[0]
        return ("refused" if ", which " in text else "no function"), text.rpartition("modeling_")[2]
    unpatch(model)
    forms = "; ".join(dict.fromkeys(swap.form for swap in swaps))
    inputs = inputs_of(model)
    try:
        theirs, grads = by_attention(used, model, inputs), by_attention(trained, model, inputs)
        if difference(by_attention(used, model, inputs), theirs):
            return "not run", "random results"
    except Exception as exception:
        return "not run", type(exception).__name__
    try:
        patch(model)
        with Counted() as counted:
            ours = by_attention(used, model, inputs)
        changed, unlike = difference(ours, theirs), difference(ours, theirs, 1e-5)
        patch(model, rounding="transformers")
        changed = changed or difference(by_attention(trained, model, inputs), grads)
    finally:
        unpatch(model)
    rotations = sum(n for name, n in counted.calls.items() if "alibi" not in name)
    if "complex" in forms and not unlike:
        return "last bit", forms  # where it differs depends on the instructions that torch has
    if changed:
        return "differs", f"{forms} ({changed})"
    if not counted.calls:
        return "never called", forms
    if counted.ours < rotations:
        return "in part", f"{forms} ({counted.ours} of {rotations} calls)"
    return ("equal" if "text" in next(iter(theirs.values())) else "equal, no text"), forms


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


HEADS = {
    "equal": "swapped; logits, gradients and generated tokens are equal",
    "equal, no text": "swapped; outputs and gradients are equal (no text to generate)",
    "last bit": "swapped; equal, but that the last bit of complex products may differ",
    "in part": "swapped; the original runs for some calls",
    "differs": "swapped, and different",
    "never called": "swapped; not called with the inputs tried",
    "refused": "refused",
    "no function": "ValueError: no function that this model calls",
    "not run": "swapped, not run: the tiny model or its inputs do not fit",
    "not built": "not built tiny",
}


def render(outcomes):
    """Families by outcome and form."""
    lines = ["| what `patch` does | how | models |", "|---|---|---|"]
    for kind, head in HEADS.items():
        group: dict[str, list[str]] = {}
        for model_type, (found, text) in outcomes.items():
            if found == kind and text != "KeyError":  # a part of other models
                text = text if kind not in ("no function", "not run") else ""
                group.setdefault(text, []).append(f"`{model_type}`")
        for text, names in group.items():
            lines.append(f"| {head} | {text} | {len(names)}: {', '.join(names)} |")
    return "\n".join(lines) + "\n"


def page(text, table):
    """The text of the docs with this table."""
    head, rest = text.split(BEGIN)
    return head + BEGIN + table + END + rest.split(END)[1]


def walk(model_types):
    outcomes = {}
    for model_type in model_types:
        outcomes[model_type] = quiet(model_type)
        print(model_type, *outcomes[model_type], flush=True)
    return outcomes


if __name__ == "__main__":
    torch.set_num_threads(1)
    outcomes = walk(sys.argv[1:] or rotates())
    if not sys.argv[1:]:
        PAGE.write_text(page(PAGE.read_text(), render(outcomes)))
