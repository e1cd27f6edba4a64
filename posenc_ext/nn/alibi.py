"""Self-attention with linear biases."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, overload

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import Proxy
from torch.utils.checkpoint import checkpoint

from ..arguments import at_least, known, probability
from ..ops.alibi import alibi_bias, alibi_slopes
from ..ops.rope_options import check_flags
from ..types import Cache, called_as
from .attention import (
    CachedMasks,
    attention_weights,
    check_call,
    extend,
    head_sizes,
    kv_heads,
    merge_heads,
    outputs,
    split_scale,
)
from .kv_cache import KVCache
from .tracing import record

if TYPE_CHECKING:
    from typing_extensions import Unpack

_OP = "ALiBiAttention"


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
        num_kv_heads: heads of keys and values (GQA), a divisor of `num_heads`; default: as many.
            The rows of `qkv` are those of the queries, then keys, then values, head by head.
        causal: a token sees itself and what came before.
        bias: of the two projections.
        dropout: of the attention weights, in training.
        max_bias: as in :func:`posenc_ext.alibi_slopes`.
        learn_slopes: make the slopes a parameter. Otherwise they stay float32 (float64 in a float64
            module) whatever the module is cast to: rounded slopes would be other slopes.
        query_block: None computes scores ``[B, H, S, K]`` and one fused softmax. A number, for long
            inputs, takes that many queries at a time through ``scaled_dot_product_attention``, so
            that memory is O(K) a block, in training too: backward computes each block again, except
            under torch.func. A graph that torch.compile or torch.export made for any length has no
            such loop and computes as with None.
        device, dtype: of the projections.

    Source: https://arxiv.org/abs/2108.12409.
    """

    slopes: Tensor

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        num_kv_heads: int | None = None,
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
        self.d_model, self.num_heads = head_sizes(_OP, d_model, num_heads)
        self.num_kv_heads = kv_heads(_OP, self.num_heads, num_kv_heads)
        check_flags(_OP, causal=causal, bias=bias, learn_slopes=learn_slopes)
        self.query_block = (
            None if query_block is None else at_least(_OP, "query_block", query_block, 1)
        )
        self.dropout = probability(_OP, dropout)
        self.causal, self.max_bias, self.learn_slopes = bool(causal), max_bias, bool(learn_slopes)
        kv_width = self.num_kv_heads * (self.d_model // self.num_heads)
        self.qkv = nn.Linear(d_model, d_model + 2 * kv_width, bias=bias, device=device, dtype=dtype)
        self.out = nn.Linear(d_model, d_model, bias=bias, device=device, dtype=dtype)
        if learn_slopes:
            slopes = alibi_slopes(num_heads, max_bias=max_bias, device=device)
            self.slopes = nn.Parameter(slopes.to(self.out.weight.dtype))
        else:
            # No buffer, which casts of all buffers (FSDP's buffer_dtype, a loop) would round.
            self.slopes = self._fixed_slopes(self.out.weight.device)
            self.register_load_state_dict_post_hook(_renew_slopes)

    @overload
    def forward(
        self, x: Tensor, *, need_weights: Literal[False] = False,
        use_cache: Literal[False] = False, **options: Unpack[CachedMasks],
    ) -> Tensor: ...  # fmt: skip
    @overload
    def forward(
        self, x: Tensor, *, need_weights: Literal[True],
        use_cache: Literal[False] = False, **options: Unpack[CachedMasks],
    ) -> tuple[Tensor, Tensor]: ...  # fmt: skip
    @overload
    def forward(
        self, x: Tensor, *, need_weights: Literal[False] = False,
        use_cache: Literal[True], **options: Unpack[CachedMasks],
    ) -> tuple[Tensor, Cache]: ...  # fmt: skip
    @overload
    def forward(
        self, x: Tensor, *, need_weights: Literal[True],
        use_cache: Literal[True], **options: Unpack[CachedMasks],
    ) -> tuple[Tensor, Tensor, Cache]: ...  # fmt: skip
    @overload
    def forward(
        self, x: Tensor, *, need_weights: bool = False, use_cache: bool = False,
        **options: Unpack[CachedMasks],
    ) -> Any: ...  # fmt: skip
    def forward(
        self,
        x: Tensor,
        *,
        key_padding_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
        past: Cache | KVCache | None = None,
        use_cache: bool = False,
        need_weights: bool = False,
    ) -> Any:
        """Attend from x ``[B, S, d_model]`` to itself and what is in `past`.

        Args:
            key_padding_mask, attn_mask: as for :class:`RelativeSelfAttention`.
            past: keys and values ``[B, num_kv_heads, K - S, D]`` that an earlier call returned;
                or a :class:`KVCache`, to which the call appends.
            use_cache: also return the cache, `past` for the next call.
            need_weights: also return the weights ``[B, H, S, K]``, as applied (after dropout). They
                are made whole then, whatever `query_block` says.

        Returns:
            y ``[B, S, d_model]``, or ``(y, weights)``, ``(y, cache)``, ``(y, weights, cache)``.
        """
        if isinstance(x, Proxy):
            return record(locals())
        kv, dim = self.num_kv_heads, self.d_model // self.num_heads
        sizes = (self.d_model, self.num_heads)
        check_call(_OP, x, sizes, key_padding_mask, attn_mask, past, kv)
        check_flags(_OP, use_cache=use_cache, need_weights=need_weights)
        heads = self.qkv(x).unflatten(-1, (-1, dim)).transpose(1, 2)
        q, k, v = heads.split((self.num_heads, kv, kv), 1)
        k, v = extend(_OP, past, k, v)
        cache = past if isinstance(past, KVCache) else (k, v)
        if kv != self.num_heads:  # every key and value serves as many heads
            k, v = (t.repeat_interleave(self.num_heads // kv, 1) for t in (k, v))
        weights: Tensor | None = None
        if need_weights or self.query_block is None or not known(q.shape[2], k.shape[2]):
            weights = self._weights(q, k, key_padding_mask, attn_mask)
            y = weights @ v
        else:
            y = self._in_blocks(q, k, v, key_padding_mask, attn_mask)
        y = self.out(merge_heads(y))
        return outputs(y, weights if need_weights else None, cache if use_cache else None)

    if TYPE_CHECKING:

        @called_as(forward)
        def __call__(self) -> Any: ...

    def _weights(self, q: Tensor, k: Tensor, keep: Tensor | None, mask: Tensor | None) -> Tensor:
        power, scale = split_scale(q.shape[-1] ** -0.5)
        scores = q * power @ k.mT
        weights = attention_weights(scores, scale, self.causal, keep, mask, self._slopes_beside(q))
        return F.dropout(weights, self.dropout, self.training)

    def _in_blocks(
        self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, mask: Tensor | None
    ) -> Tensor:
        block, (s, keys) = self.query_block, (q.shape[2], k.shape[2])
        assert block is not None
        slopes = self._slopes_beside(q)
        tensors = (q, k, v, slopes)
        recompute = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
        if torch._C._are_functorch_transforms_active():  # torch.func refuses checkpoints
            recompute = False
        parts = []
        for start in range(0, max(s, 1), block):
            part = q[:, :, start : start + block]
            first = start + keys - s  # the key at which the first query of the block stands
            rows = mask  # those of the queries of the block, where they differ
            if mask is not None and mask.dim() > 1 and mask.shape[-2] != 1:
                rows = mask[..., start : start + block, :]
            args = (part, k, v, slopes, keep, rows, first)
            if recompute:
                parts.append(checkpoint(self._block, *args, use_reentrant=False))
            else:
                parts.append(self._block(*args))
        return torch.cat(parts, 2)

    def _block(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        slopes: Tensor,
        keep: Tensor | None,
        mask: Tensor | None,
        first: int,
    ) -> Tensor:
        rows = q.shape[2]
        if self.causal:  # later keys are hidden anyway
            k, v = k[:, :, : first + rows], v[:, :, : first + rows]
            bias = alibi_bias(slopes, rows, first + rows, causal=True, dtype=q.dtype)
        else:
            bias = _inner_bias(slopes, first, rows, k.shape[2], q.dtype)
        if keep is not None:
            bias = bias.masked_fill(~keep[:, None, None, : k.shape[2]], -float("inf"))
        if mask is not None:
            seen = mask if mask.shape[-1] == 1 else mask[..., : k.shape[2]]
            if mask.dtype == torch.bool:
                bias = bias.masked_fill(~seen, -float("inf"))
            else:
                bias = bias + seen.to(bias.dtype)
        blind: Tensor | None = None  # queries without a key: softmax would give NaN
        if keep is not None or mask is not None:
            blind = (bias == -float("inf")).all(-1, keepdim=True)
            bias = bias.masked_fill(blind, 0.0)
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout)
        return y if blind is None else y.masked_fill(blind, 0.0)

    def _slopes_beside(self, x: Tensor) -> Tensor:
        if not self.learn_slopes and self.slopes.device != x.device:  # moved, but not by `to`
            self.slopes = self._fixed_slopes(x.device)
        return self.slopes

    def _fixed_slopes(self, device: torch.device) -> Tensor:
        double = self.out.weight.dtype == torch.float64
        dtype = torch.float64 if double else torch.float32
        with torch.inference_mode(False):  # a module may train after it
            return alibi_slopes(self.num_heads, max_bias=self.max_bias, dtype=dtype, device=device)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> ALiBiAttention:
        """Made anew rather than cast or copied: also right after `to_empty` and `half`."""
        super()._apply(fn, recurse)
        if not self.learn_slopes:
            self.slopes = self._fixed_slopes(self.out.weight.device)
        return self

    def extra_repr(self) -> str:
        return (
            f"{self.d_model}, {self.num_heads}, num_kv_heads={self.num_kv_heads}, "
            f"causal={self.causal}, dropout={self.dropout}, "
            f"learn_slopes={self.learn_slopes}, query_block={self.query_block}"
        )


def _renew_slopes(module: ALiBiAttention, _: Any) -> None:
    """After weights were assigned to a module made on meta."""
    module.slopes = module._fixed_slopes(module.out.weight.device)


def _inner_bias(slopes: Tensor, first: int, rows: int, keys: int, dtype: torch.dtype) -> Tensor:
    """The bias of queries that stand at keys first, first + 1, ... with keys on both sides."""
    behind = alibi_bias(slopes, rows, first + rows, dtype=dtype)[..., :first]
    # Seen in a mirror, those ahead are those behind.
    ahead = alibi_bias(slopes, rows, keys - first, dtype=dtype).flip(-2, -1)
    return torch.cat([behind, ahead], -1)
