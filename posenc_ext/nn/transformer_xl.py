"""Attention of Transformer-XL, XLNet and the Conformer: sinusoids of distances, projected."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import Proxy

from ..arguments import at_least, error, probability
from ..ops.relative import rel_shift
from ..ops.rope_options import check_flags
from ..ops.sinusoidal import sinusoidal_table
from ..ops.sinusoidal_options import convention_of
from ..types import SinusoidConvention, called_as
from .attention import (
    Masks,
    attention_weights,
    check_device,
    check_floating,
    check_masks,
    head_sizes,
    merge_heads,
    outputs,
    split_heads,
    split_scale,
)
from .tracing import record

if TYPE_CHECKING:
    from typing_extensions import Unpack

_OP = "TransformerXLAttention"


class _Options(Masks, total=False):
    memory: Tensor | None


class TransformerXLAttention(nn.Module):
    """Self-attention with relative sinusoids and memories, ``[B, S, d_model]`` to the same.

    >>> import torch, posenc_ext
    >>> attention = posenc_ext.TransformerXLAttention(64, 4)
    >>> x = torch.randn(2, 10, 64)
    >>> y = attention(x)
    >>> torch.allclose(attention(x[:, 4:], memory=x[:, :4]), y[:, 4:], atol=1e-5)
    True
    >>> conformer = posenc_ext.TransformerXLAttention(
    ...     64, 4, causal=False, bias=True, convention="interleaved"
    ... )

    The score of query i and key j is ``((q_i + u) . k_j + (q_i + v) . W R[i - j]) / sqrt(D)``. R[d]
    is the sinusoid of distance d (positive: the key is to the left) and W is `linear_pos`; u and v
    are `pos_bias_u` and `pos_bias_v`, ``[H, D]``. Memory is O(S * D) and O(H * Q * K).

    Args:
        d_model, num_heads: `d_model` is a multiple of `num_heads`.
        causal: a token sees itself and what came before, as in Transformer-XL. False is XLNet's and
            the Conformer's way: R is also made for keys to the right.
        bias: of the projections of q, k, v and the output; `linear_pos` has none.
        dropout: of the attention weights, in training.
        clamp_len: distances beyond it, to either side, count as it.
        convention: of R, as for :func:`posenc_ext.sinusoidal_table`. "concatenated" for
            Transformer-XL and XLNet; "interleaved" for the Conformer (wav2vec2-Conformer, whose
            checkpoints load as they are).
        pos_bias_u, pos_bias_v: parameters ``[H, D]`` of another layer to share; default: own ones.
        device, dtype: of the parameters.

    Source: https://arxiv.org/abs/1901.02860, section 3.3.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        causal: bool = True,
        bias: bool = False,
        dropout: float = 0.0,
        clamp_len: int | None = None,
        convention: SinusoidConvention = "concatenated",
        pos_bias_u: nn.Parameter | None = None,
        pos_bias_v: nn.Parameter | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.num_heads = head_sizes(_OP, d_model, num_heads)
        check_flags(_OP, causal=causal, bias=bias)
        self.dropout = probability(_OP, dropout)
        self.clamp_len = None if clamp_len is None else at_least(_OP, "clamp_len", clamp_len, 1)
        convention_of(_OP, convention)
        self.causal, self.convention = bool(causal), convention
        where: dict[str, Any] = {"device": device, "dtype": dtype}
        self.linear_q = nn.Linear(d_model, d_model, bias=bias, **where)
        self.linear_k = nn.Linear(d_model, d_model, bias=bias, **where)
        self.linear_v = nn.Linear(d_model, d_model, bias=bias, **where)
        self.linear_out = nn.Linear(d_model, d_model, bias=bias, **where)
        self.linear_pos = nn.Linear(d_model, d_model, bias=False, **where)
        self.pos_bias_u = self._bias("pos_bias_u", pos_bias_u, where)
        self.pos_bias_v = self._bias("pos_bias_v", pos_bias_v, where)

    def _bias(self, name: str, given: Any, where: dict[str, Any]) -> nn.Parameter:
        size = [self.num_heads, self.d_model // self.num_heads]
        if given is None:
            return nn.Parameter(torch.zeros(size, **where))
        if not isinstance(given, nn.Parameter):
            raise error(TypeError, _OP, f"{name} must be a parameter, got {type(given).__name__}")
        if list(given.shape) != size:
            raise error(
                ValueError, _OP, f"{name} must have shape [H, D] = {size}, got {list(given.shape)}"
            )
        return given

    @overload
    def forward(
        self, x: Tensor, *, need_weights: Literal[False] = False, **options: Unpack[_Options]
    ) -> Tensor: ...
    @overload
    def forward(
        self, x: Tensor, *, need_weights: Literal[True], **options: Unpack[_Options]
    ) -> tuple[Tensor, Tensor]: ...
    @overload
    def forward(self, x: Tensor, *, need_weights: bool, **options: Unpack[_Options]) -> Any: ...
    def forward(
        self,
        x: Tensor,
        *,
        memory: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
        need_weights: bool = False,
    ) -> Any:
        """Attend from x ``[B, S, d_model]`` to `memory` and itself.

        Args:
            memory: inputs of this layer at the M positions before x, ``[B, M, d_model]``, such as
                an earlier x. Transformer-XL detaches them.
            key_padding_mask: bool ``[B, M + S]``, True for real tokens.
            attn_mask, need_weights: as for :class:`RelativeSelfAttention`, with K = M + S.

        Returns:
            y ``[B, S, d_model]``, or ``(y, weights)``.
        """
        if isinstance(x, Proxy):
            return record(locals())
        self._check(x, memory, key_padding_mask, attn_mask)
        check_flags(_OP, need_weights=need_weights)
        heads, every = self.num_heads, x if memory is None else torch.cat([memory, x], 1)
        q = split_heads(self.linear_q(x), heads)
        k, v = split_heads(self.linear_k(every), heads), split_heads(self.linear_v(every), heads)
        power, scale = split_scale(q.shape[-1] ** -0.5)
        content = (q + self.pos_bias_u[:, None]) * power @ k.mT
        r = split_heads(self.linear_pos(self._sinusoids(x, every.shape[1])), heads)
        position = rel_shift((q + self.pos_bias_v[:, None]) * power @ r.mT, every.shape[1])
        weights = attention_weights(
            content + position, scale, self.causal, key_padding_mask, attn_mask
        )
        weights = F.dropout(weights, self.dropout, self.training)
        y = self.linear_out(merge_heads(weights @ v))
        return outputs(y, weights if need_weights else None, None)

    if TYPE_CHECKING:

        @called_as(forward)
        def __call__(self) -> Any: ...

    def _sinusoids(self, x: Tensor, keys: int) -> Tensor:
        """R of the distances K - 1 down to 0, or down to -(Q - 1) if keys may be to the right,
        [1, T, d_model]."""
        last = 0 if self.causal else 1 - x.shape[1]
        distances = keys - 1 - torch.arange(max(keys - last, 0), device=x.device)
        if self.clamp_len is not None:
            distances = distances.clamp(-self.clamp_len, self.clamp_len)
        dtype = self.linear_pos.weight.dtype
        return sinusoidal_table(
            distances[None], self.d_model, convention=self.convention, dtype=dtype
        )

    def _check(self, x: Any, memory: Any, keep: Any, mask: Any) -> None:
        check_floating(_OP, "x", x, "[B, S, d_model]", self.d_model)
        batch, length, _ = x.shape
        keys = length
        if memory is not None:
            check_floating(_OP, "memory", memory, "[B, M, d_model]", self.d_model)
            if memory.shape[0] != batch or memory.dtype != x.dtype:
                raise error(
                    ValueError,
                    _OP,
                    f"memory must have the batch and dtype of x, B = {batch} and {x.dtype}, got "
                    f"{list(memory.shape)} and {memory.dtype}",
                )
            check_device(_OP, "memory", memory, x)
            keys += memory.shape[1]
        check_masks(_OP, keep, mask, (batch, self.num_heads, length, keys), x)

    def extra_repr(self) -> str:
        return (
            f"{self.d_model}, {self.num_heads}, causal={self.causal}, dropout={self.dropout}, "
            f"clamp_len={self.clamp_len}, convention={self.convention!r}"
        )
