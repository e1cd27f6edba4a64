"""The rotary functions of Meta's LLaMA code: complex tables, and interleaved pairs."""

from __future__ import annotations

import torch
from torch import Tensor

from ..arguments import error
from ..ops.rope import apply_rope
from ..ops.rope_frequencies import rope_frequencies
from ..ops.rope_options import check_flags, check_tensors
from ..ops.rope_table import rope_table
from ..types import Precision

SCALED = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def precompute_freqs_cis(
    dim: int,
    end: int,
    theta: float = 10000.0,
    use_scaled: bool = False,
    *,
    precision: Precision = "float32",
) -> Tensor:
    """``cos + i*sin`` of positions ``0 .. end-1``, complex64 ``[end, dim/2]``.

    >>> from posenc_ext.compat.llama import precompute_freqs_cis
    >>> precompute_freqs_cis(128, 4096, 500000.0).shape
    torch.Size([4096, 64])

    Args:
        dim: R, even.
        use_scaled: the frequencies of LLaMA 3.1.
        precision: "float32" takes the angle in float32, as LLaMA's code does; "exact" as in
            :func:`posenc_ext.rope_table`.

    Raises:
        TypeError, ValueError: as :func:`posenc_ext.rope_frequencies`.
    """
    check_flags("precompute_freqs_cis", use_scaled=use_scaled)
    scaling = SCALED if use_scaled else None
    inv_freq = rope_frequencies(dim, theta, scaling, precision=precision).inv_freq
    return torch.complex(*rope_table(end, inv_freq, precision=precision))


def apply_rotary_emb(xq: Tensor, xk: Tensor, freqs_cis: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate query and key ``[B, S, H, D]`` by ``freqs_cis``, complex ``[S, D/2]``.

    >>> import torch
    >>> from posenc_ext.compat.llama import apply_rotary_emb, precompute_freqs_cis
    >>> freqs_cis = precompute_freqs_cis(64, 100)
    >>> q, k = torch.randn(2, 10, 8, 64), torch.randn(2, 10, 2, 64)
    >>> q, k = apply_rotary_emb(q, k, freqs_cis[5:15])

    As there, the table must have one row for each token and cover all channels.

    Raises:
        TypeError, ValueError: as :func:`posenc_ext.apply_rope`, or a table of another shape.
    """
    op = "apply_rotary_emb"
    check_tensors(op, xq=xq, xk=xk, freqs_cis=freqs_cis)
    if not freqs_cis.is_complex():
        raise error(TypeError, op, f"freqs_cis must be complex, got {freqs_cis.dtype}")
    wanted = [xq.shape[1], xq.shape[-1] // 2] if xq.dim() == 4 else ["S", "D/2"]
    if list(freqs_cis.shape) != wanted:
        raise error(
            ValueError,
            op,
            f"freqs_cis must have shape [S, D/2] = {wanted}, got {list(freqs_cis.shape)}",
        )
    return apply_rope(xq, xk, freqs_cis)
