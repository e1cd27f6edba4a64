"""Learned relative positions of Shaw et al.: the table, and self-attention with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import Proxy

from ..arguments import LARGEST, at_least, error, integer, known, probability
from ..ops.relative import relative_gather, relative_scatter
from ..ops.relative_index import clipped_relative_index
from ..ops.rope_options import check_flags
from ..types import Cache, called_as
from .attention import (
    CachedMasks,
    attention_weights,
    check_call,
    check_floating,
    extend,
    head_sizes,
    merge_heads,
    outputs,
    split_heads,
    split_scale,
)
from .kv_cache import KVCache
from .tracing import record

if TYPE_CHECKING:
    from typing_extensions import Unpack


class RelativePositionalEmbedding(nn.Module):
    """One learned vector per clipped distance, and its products with queries or with weights.

    >>> import torch, posenc_ext
    >>> embedding = posenc_ext.RelativePositionalEmbedding(64, 16)
    >>> q = torch.randn(2, 4, 10, 64)
    >>> scores = q @ q.mT + embedding(q)  # content and position, [2, 4, 10, 10]
    >>> embedding.weight.shape
    torch.Size([33, 64])

    The vector of query i and key j is ``weight[clip(j - i, -left, right) + left]``. Neither product
    builds the ``[Q, K, D]`` of all pairs: memory is O(S * D) and O(H * Q * K).

    Args:
        dim: D, the width of a head.
        left: distances to the left beyond this count as this (k in the article).
        right: the same to the right; default: `left`. Conformers have fewer to the right.
        device, dtype: of `weight` ``[left + right + 1, D]``, the only parameter.

    Source: https://arxiv.org/abs/1803.02155, sections 3.2 and 3.3.
    """

    def __init__(
        self,
        dim: int,
        left: int,
        right: int | None = None,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        op = "RelativePositionalEmbedding"
        self.dim = at_least(op, "dim", dim, 1)
        self.left = at_least(op, "left", left, 0, LARGEST)
        self.right = self.left if right is None else at_least(op, "right", right, 0, LARGEST)
        rows = self.left + self.right + 1
        self.weight = nn.Parameter(torch.empty(rows, self.dim, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.xavier_uniform_(self.weight)

    def forward(self, q: Tensor, k_len: int | None = None) -> Tensor:
        """The position term of the scores, ``q[..., i, :] . weight[r(i, j)]``.

        Args:
            q: ``[..., Q, D]``. With `k_len` beyond Q they are the last Q of `k_len` positions.
            k_len: K; default: Q.

        Returns:
            ``[..., Q, K]``, not scaled: Shaw et al. divide it by ``sqrt(D)`` as they do ``q . k``.
        """
        if isinstance(q, Proxy):
            return record(locals())
        op = "RelativePositionalEmbedding"
        check_floating(op, "q", q, "[..., Q, D]", self.dim)
        self._check_dtype("q", q)
        q_len = q.shape[-2]
        k_len = q_len if k_len is None else integer(op, "k_len", k_len)
        if k_len < q_len:
            raise error(ValueError, op, f"k_len must be at least Q = {q_len}, got {k_len}")
        weight, index = self._used(q_len, k_len)
        return relative_gather(q @ weight.mT, index, k_len)

    if TYPE_CHECKING:

        @called_as(forward)
        def __call__(self) -> Any: ...

    def values(self, weights: Tensor) -> Tensor:
        """The position term of the output, ``sum_j weights[..., i, j] * weight[r(i, j)]``.

        Args:
            weights: the attention weights ``[..., Q, K]``, K at least Q.

        Returns:
            ``[..., Q, D]``.
        """
        op = "RelativePositionalEmbedding"
        check_floating(op, "weights", weights, "[..., Q, K]")
        self._check_dtype("weights", weights)
        if weights.shape[-1] < weights.shape[-2]:
            raise error(
                ValueError, op, f"weights must have at least Q keys, got {list(weights.shape)}"
            )
        weight, index = self._used(*weights.shape[-2:])
        return relative_scatter(weights, index, weight.shape[0]) @ weight

    def _check_dtype(self, name: str, x: Tensor) -> None:
        if x.dtype != self.weight.dtype and not torch.is_autocast_enabled(x.device.type):
            text = f"{name} must have the dtype of weight, {self.weight.dtype}, got {x.dtype}"
            raise error(TypeError, "RelativePositionalEmbedding", text)

    def _used(self, q_len: int, k_len: int) -> tuple[Tensor, Tensor]:
        """The rows that these lengths can reach, and the index into them, [Q + K - 1]."""
        ends = {"left": self.left, "right": self.right}
        index = clipped_relative_index(q_len, k_len, **ends, device=self.weight.device)
        if not known(q_len, k_len):
            return self.weight, index
        first = max(self.left - max(k_len - 1, 0), 0)
        last = self.left + min(self.right, max(q_len - 1, 0))
        return self.weight[first : last + 1], index - first

    def extra_repr(self) -> str:
        return f"{self.dim}, left={self.left}, right={self.right}"


class RelativeSelfAttention(nn.Module):
    """Multi-head self-attention with learned relative positions, ``[B, S, d_model]`` to the same.

    >>> import torch, posenc_ext
    >>> attention = posenc_ext.RelativeSelfAttention(64, 4, 16, causal=True)
    >>> x = torch.randn(2, 10, 64)
    >>> y = attention(x)
    >>> first, cache = attention(x[:, :9], use_cache=True)
    >>> last, cache = attention(x[:, 9:], past=cache, use_cache=True)
    >>> torch.allclose(torch.cat([first, last], 1), y, atol=1e-5)
    True

    ``e[i, j] = q_i . (k_j + a_r) / sqrt(D)`` and ``z_i = sum_j softmax(e)[i, j] (v_j + b_r)`` with
    ``r = clip(j - i, -left, right) + left``; a and b are shared by the heads. Memory is O(S * D)
    and O(H * Q * K).

    Args:
        d_model, num_heads: `d_model` is a multiple of `num_heads`.
        left, right: as for :class:`RelativePositionalEmbedding`.
        values: also have b, the term of the values. Without it, and with ``left=64, right=8``, this
            is the ``relative_key`` of wav2vec2-BERT, whose checkpoints load as they are.
        causal: a token sees itself and what came before.
        bias: of the four projections.
        dropout: of the attention weights, in training.
        device, dtype: of the parameters.

    Source: https://arxiv.org/abs/1803.02155, equations 3 and 4.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        left: int,
        right: int | None = None,
        *,
        values: bool = True,
        causal: bool = False,
        bias: bool = True,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        op = "RelativeSelfAttention"
        self.d_model, self.num_heads = head_sizes(op, d_model, num_heads)
        self.dropout = probability(op, dropout)
        check_flags(op, values=values, causal=causal, bias=bias)
        self.causal = bool(causal)
        where: dict[str, Any] = {"device": device, "dtype": dtype}
        self.linear_q = nn.Linear(d_model, d_model, bias=bias, **where)
        self.linear_k = nn.Linear(d_model, d_model, bias=bias, **where)
        self.linear_v = nn.Linear(d_model, d_model, bias=bias, **where)
        self.linear_out = nn.Linear(d_model, d_model, bias=bias, **where)
        dim = self.d_model // self.num_heads
        self.distance_embedding = RelativePositionalEmbedding(dim, left, right, **where)
        self.value_embedding = (
            RelativePositionalEmbedding(dim, left, right, **where) if values else None
        )

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
            key_padding_mask: bool ``[B, K]``, True for real tokens; K counts those in `past` too.
            attn_mask: bool (True = may be seen) or floating (added to the scaled scores), that
                broadcasts to ``[B, H, S, K]``. A query that sees no key gets the attention
                output 0.
            past: keys and values ``[B, H, K - S, D]`` that an earlier call returned; or a
                :class:`KVCache`, to which the call appends.
            use_cache: also return the cache, `past` for the next call.
            need_weights: also return the weights ``[B, H, S, K]``, as applied (after dropout).

        Returns:
            y ``[B, S, d_model]``, or ``(y, weights)``, ``(y, cache)``, ``(y, weights, cache)``.
        """
        if isinstance(x, Proxy):
            return record(locals())
        op, heads = "RelativeSelfAttention", self.num_heads
        keys = check_call(op, x, (self.d_model, heads), key_padding_mask, attn_mask, past)
        check_flags(op, use_cache=use_cache, need_weights=need_weights)
        q, k, v = (split_heads(f(x), heads) for f in (self.linear_q, self.linear_k, self.linear_v))
        k, v = extend(op, past, k, v)
        cache = past if isinstance(past, KVCache) else (k, v)
        power, scale = split_scale(q.shape[-1] ** -0.5)
        q = q * power
        scores = q @ k.mT + self.distance_embedding(q, keys)
        weights = attention_weights(scores, scale, self.causal, key_padding_mask, attn_mask)
        weights = F.dropout(weights, self.dropout, self.training)
        y = weights @ v
        if self.value_embedding is not None:
            y = y + self.value_embedding.values(weights)
        y = self.linear_out(merge_heads(y))
        return outputs(y, weights if need_weights else None, cache if use_cache else None)

    if TYPE_CHECKING:

        @called_as(forward)
        def __call__(self) -> Any: ...

    def extra_repr(self) -> str:
        return (
            f"{self.d_model}, {self.num_heads}, causal={self.causal}, dropout={self.dropout}, "
            f"values={self.value_embedding is not None}"
        )
