"""Self-attention with linear biases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..arguments import error, integer, number
from ..ops.alibi import alibi_bias, alibi_slopes, alibi_softmax

Cache = tuple[Tensor, Tensor]  # keys and values so far, [B, H, K, D] each


class ALiBiAttention(nn.Module):
    """Multi-head self-attention whose scores carry the ALiBi bias, ``[B, S, d_model]`` to the same.

    >>> import torch, posenc_ext
    >>> attention = posenc_ext.ALiBiAttention(64, 4)
    >>> x = torch.randn(2, 10, 64)
    >>> y = attention(x)
    >>> first, cache = attention(x[:, :9], use_cache=True)
    >>> last, cache = attention(x[:, 9:], past=cache, use_cache=True)
    >>> torch.allclose(torch.cat([first, last], 1), y, atol=1e-5)
    True

    Args:
        d_model, num_heads: `d_model` is a multiple of `num_heads`.
        causal: a token sees itself and what came before.
        bias: of the two projections.
        dropout: of the attention weights, in training.
        max_bias: as in :func:`posenc_ext.alibi_slopes`.
        learn_slopes: make the slopes a parameter. Otherwise they stay float32 (float64 in a float64
            module) whatever the module is cast to: rounded slopes would be other slopes.
        query_block: None computes scores ``[B, H, S, K]`` and one fused softmax. A number, for long
            inputs, takes that many queries at a time through ``scaled_dot_product_attention``, so
            that memory is O(K) a block, in training too: backward computes each block again.
        device, dtype: of the projections.

    Source: https://arxiv.org/abs/2108.12409.
    """

    slopes: Tensor

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        causal: bool = True,
        bias: bool = True,
        dropout: float = 0.0,
        max_bias: float = 8.0,
        learn_slopes: bool = False,
        query_block: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model = _positive("d_model", d_model)
        self.num_heads = _positive("num_heads", num_heads)
        self.query_block = None if query_block is None else _positive("query_block", query_block)
        self.dropout = number("ALiBiAttention", "dropout", dropout)
        if d_model % num_heads:
            raise _value_error(
                f"d_model must be a multiple of num_heads = {num_heads}, got {d_model}"
            )
        if not 0 <= self.dropout <= 1:
            raise _value_error(f"dropout must be between 0 and 1, got {dropout}")
        self.causal, self.max_bias, self.learn_slopes = bool(causal), max_bias, bool(learn_slopes)
        self.qkv = nn.Linear(d_model, 3 * d_model, bias=bias, device=device, dtype=dtype)
        self.out = nn.Linear(d_model, d_model, bias=bias, device=device, dtype=dtype)
        if learn_slopes:
            slopes = alibi_slopes(num_heads, max_bias=max_bias, device=device)
            self.slopes = nn.Parameter(slopes.to(self.out.weight.dtype))
        else:
            self.register_buffer("slopes", self._fixed_slopes(), persistent=False)

    def forward(
        self,
        x: Tensor,
        *,
        key_padding_mask: Tensor | None = None,
        past: Cache | None = None,
        use_cache: bool = False,
    ) -> Tensor | tuple[Tensor, Cache]:
        """Attend from x ``[B, S, d_model]`` to itself and what is in `past`.

        Args:
            key_padding_mask: bool ``[B, K]``, True for real tokens; K counts those in `past` too. A
                query that sees no real key gets the attention output 0.
            past: keys and values ``[B, H, K - S, D]`` that an earlier call returned.
            use_cache: return ``(y, cache)``, the cache being `past` for the next call.
        """
        self._check(x, key_padding_mask, past)
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        if past is not None:
            if {t.dtype for t in past} != {k.dtype}:
                text = f"past must have the dtype of the keys ({k.dtype}), got {past[0].dtype}"
                raise error(TypeError, "ALiBiAttention", text)
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        attend = self._fused if self.query_block is None else self._in_blocks
        y = self.out(attend(q, k, v, key_padding_mask).transpose(1, 2).flatten(2))
        return (y, (k, v)) if use_cache else y

    def _fused(self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None) -> Tensor:
        weights = alibi_softmax(
            q @ k.transpose(2, 3),
            self.slopes,
            scale=q.shape[-1] ** -0.5,
            causal=self.causal,
            key_padding_mask=keep,
        )
        return F.dropout(weights, self.dropout, self.training) @ v

    def _in_blocks(self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None) -> Tensor:
        block, (s, keys) = self.query_block, (q.shape[2], k.shape[2])
        assert block is not None
        tensors = (q, k, v, self.slopes)
        recompute = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
        outputs = []
        for start in range(0, max(s, 1), block):
            part = q[:, :, start : start + block]
            first = start + keys - s  # the key at which the first query of the block stands
            args = (part, k, v, self.slopes, keep, first)
            if recompute:
                outputs.append(checkpoint(self._block, *args, use_reentrant=False))
            else:
                outputs.append(self._block(*args))
        return torch.cat(outputs, 2)

    def _block(
        self, q: Tensor, k: Tensor, v: Tensor, slopes: Tensor, keep: Tensor | None, first: int
    ) -> Tensor:
        rows = q.shape[2]
        if self.causal:  # later keys are hidden anyway
            k, v = k[:, :, : first + rows], v[:, :, : first + rows]
            bias = alibi_bias(slopes, rows, first + rows, causal=True, dtype=q.dtype)
        else:
            bias = _inner_bias(slopes, first, rows, k.shape[2], q.dtype)
        blind: Tensor | None = None
        if keep is not None:
            keep = keep[:, : k.shape[2]]
            seen = keep.cumsum(1)[:, first:] if self.causal else keep.sum(1, keepdim=True)
            blind = (seen == 0)[:, None, :, None]  # queries without a key: softmax would give NaN
            bias = bias.masked_fill(~keep[:, None, None, :], -float("inf")).masked_fill(blind, 0.0)
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout)
        return y if blind is None else y.masked_fill(blind, 0.0)

    def _fixed_slopes(self) -> Tensor:
        weight = self.out.weight
        dtype = torch.float64 if weight.dtype == torch.float64 else torch.float32
        with torch.inference_mode(False):  # a module may train after it
            return alibi_slopes(
                self.num_heads, max_bias=self.max_bias, dtype=dtype, device=weight.device
            )

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> ALiBiAttention:
        """Made anew rather than cast or copied: also right after `to_empty` and `half`."""
        super()._apply(fn, recurse)
        if not self.learn_slopes:
            self.slopes = self._fixed_slopes()
        return self

    def _check(self, x: Any, keep: Any, past: Any) -> None:
        for name, value in (("x", x), ("key_padding_mask", keep)):
            if not isinstance(value, Tensor) and (name == "x" or value is not None):
                raise error(
                    TypeError,
                    "ALiBiAttention",
                    f"{name} must be a tensor, got {type(value).__name__}",
                )
        if not x.is_floating_point():
            raise error(TypeError, "ALiBiAttention", f"x must be floating, got {x.dtype}")
        if x.dim() != 3 or x.shape[2] != self.d_model:
            raise _value_error(
                f"x must have shape [B, S, d_model] with d_model = {self.d_model}, got "
                f"{list(x.shape)}"
            )
        keys = x.shape[1]
        if past is not None:
            if not isinstance(past, (tuple, list)) or not all(isinstance(t, Tensor) for t in past):
                text = f"past must be a pair of tensors, got {type(past).__name__}"
                raise error(TypeError, "ALiBiAttention", text)
            earlier = past[0].shape[2] if past and past[0].dim() == 4 else 0
            size = [x.shape[0], self.num_heads, earlier, self.d_model // self.num_heads]
            shapes = [list(t.shape) for t in past]
            if shapes != [size, size]:
                raise _value_error(
                    f"past must be keys and values [B, H, K - S, D] like {size}, got {shapes}"
                )
            keys += earlier
        if keep is not None:
            if keep.dtype != torch.bool:
                raise error(
                    TypeError,
                    "ALiBiAttention",
                    f"key_padding_mask must be bool (True = keep), got {keep.dtype}",
                )
            if list(keep.shape) != [x.shape[0], keys]:
                raise _value_error(
                    f"key_padding_mask must have shape [B, K] = [{x.shape[0]}, {keys}], got "
                    f"{list(keep.shape)}"
                )

    def extra_repr(self) -> str:
        return (
            f"{self.d_model}, {self.num_heads}, causal={self.causal}, dropout={self.dropout}, "
            f"learn_slopes={self.learn_slopes}, query_block={self.query_block}"
        )


def _inner_bias(slopes: Tensor, first: int, rows: int, keys: int, dtype: torch.dtype) -> Tensor:
    """The bias of queries that stand at keys first, first + 1, ... with keys on both sides."""
    behind = alibi_bias(slopes, rows, first + rows, dtype=dtype)[..., :first]
    # Seen in a mirror, those ahead are those behind.
    ahead = alibi_bias(slopes, rows, keys - first, dtype=dtype).flip(-2, -1)
    return torch.cat([behind, ahead], -1)


def _value_error(text: str) -> Exception:
    return error(ValueError, "ALiBiAttention", text)


def _positive(name: str, value: Any) -> int:
    value = integer("ALiBiAttention", name, value)
    if value < 1:
        raise _value_error(f"{name} must be at least 1, got {value}")
    return int(value)
