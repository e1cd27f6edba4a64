"""Every public call, on a CUDA device: (name, device) -> a function that makes it."""

import functools
import inspect

import torch
from fuzz_calls import CALLS, MODULES
from rope_cases import uniform

import posenc_ext

# These compute on the host, and say so.
ON_THE_HOST = {
    "alibi_score_mod": "returns a function",
    "alibi_slopes": "a copy",
    "axial_frequencies": "on the CPU",
    "compat.llama.precompute_freqs_cis": "on the CPU",
    "compat.transformers.patch": "no tensors",
    "compat.transformers.unpatch": "no tensors",
    "mrope_axes": "on the CPU",
    "mrope_position_ids": "a copy",
    "rope_frequencies": "on the CPU",
    "xpos_zeta": "on the CPU",
    "RotaryPositionalEmbedding.frequencies": "on the CPU",
    "RotaryPositionalEmbedding.from_config": "no tensors",
}


def moved(value, device):
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, (tuple, list)):
        return type(value)(moved(each, device) for each in value)
    return value


def on(device, function, arguments):
    arguments = {name: moved(value, device) for name, value in arguments.items()}
    if "device" in inspect.signature(function).parameters:
        arguments["device"] = device
    return functools.partial(function, **arguments)


def module(name, device, **options):
    return getattr(posenc_ext, name)(**(MODULES[name][0] | options)).to(device).eval()


def named(device):
    """Those of the table of all public callables."""
    made = {}
    for name, (function, arguments) in CALLS.items():
        of, _, method = name.partition(".")
        if name in ON_THE_HOST or name in MODULES or of == "scaling":
            continue
        if of in MODULES:
            function = getattr(module(of, device), method)
        made[name] = on(device, function, arguments)
    return made


def others(device):
    """More ways to call them."""
    q, k = uniform((2, 5, 3, 16)).to(device), uniform((2, 5, 1, 16)).to(device)
    thd = uniform((5, 3, 16)).to(device)
    grid = torch.arange(10, device=device).view(2, 5)
    bounds, starts = torch.tensor([0, 2, 5]).to(device), torch.tensor([3, 4]).to(device)
    axes = torch.stack([grid, grid, grid])
    rotary = module("RotaryPositionalEmbedding", device)
    packed = module("RotaryPositionalEmbedding", device, layout="thd")
    mrope = module("RotaryPositionalEmbedding", device, scaling=None, sections=[2, 3, 3])
    mixed = module("RotaryPositionalEmbedding", device, scaling=None, sections=torch.arange(8) % 3)
    lengths = {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 4}
    dynamic = module("RotaryPositionalEmbedding", device, scaling=lengths)
    inv_freq = posenc_ext.rope_frequencies(16).inv_freq.to(device)
    x = uniform((2, 5, 16)).to(device)
    cos, sin = posenc_ext.rope_table(16, inv_freq)
    return {
        "rotary q": lambda: rotary(q),
        "rotary in place": lambda: rotary(q, k, inplace=True),
        "rotary positions": lambda: rotary(q, k, positions=grid),
        "rotary positions below": lambda: rotary(q, k, positions=grid, seq_len=32),
        "rotary offset": lambda: rotary(q, k, offset=7),
        "rotary offsets": lambda: rotary(q, k, offset=starts, seq_len=32),
        "rotary packed": lambda: packed(thd, cu_seqlens=bounds, seq_len=32),
        "rotary packed, unknown": lambda: packed(thd, cu_seqlens=bounds, offset=starts),
        "rotary dynamic": lambda: dynamic(q, k, seq_len=9),
        "rotary mrope": lambda: mrope(q, k, positions=axes),
        "rotary mixed axes": lambda: mixed(q, k, positions=axes),
        "rope positions": lambda: posenc_ext.rope(q, cos, sin, positions=grid),
        "rope packed": lambda: posenc_ext.rope(thd, cos, sin, layout="thd", cu_seqlens=bounds),
        "rope_table mrope": lambda: posenc_ext.rope_table(axes, inv_freq, sections=[2, 3, 3]),
        "deberta buckets": lambda: posenc_ext.deberta_relative_index(
            9, max_relative_positions=64, position_buckets=8, device=device
        ),
        "xpos int": lambda: posenc_ext.xpos_table(5, inv_freq, device=device),
        "axial padded": lambda: posenc_ext.axial_rope_table(
            4, 4, 16, "dinov3", before=1, device=device
        ),
        "add_sinusoidal offsets": lambda: posenc_ext.add_sinusoidal(x, offset=starts),
        "add_sinusoidal wide": lambda: posenc_ext.add_sinusoidal(x.repeat(1, 1, 256)),
    }


def all_calls(device):
    return named(device) | others(device)
