"""The relative position forms of BERT."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args, overload

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import Proxy

from ..arguments import at_least, error, probability
from ..ops.relative import relative_gather
from ..ops.relative_index import bert_relative_index
from ..ops.rope_options import check_flags
from ..types import BertForm, called_as
from .attention import (
    Masks,
    attention_weights,
    check_call,
    head_sizes,
    merge_heads,
    outputs,
    split_heads,
    split_scale,
)
from .tracing import record

FORMS = get_args(BertForm)

if TYPE_CHECKING:
    from typing_extensions import Unpack


class BertRelativeAttention(nn.Module):
    """Self-attention with BERT's ``relative_key`` or ``relative_key_query`` positions.

    >>> import torch, posenc_ext
    >>> attention = posenc_ext.BertRelativeAttention(64, 4, 512)
    >>> attention(torch.randn(2, 10, 64)).shape
    torch.Size([2, 10, 64])

    With the vectors ``r[i, j] = distance_embedding.weight[i - j + max_positions - 1]``, scores are
    ``(q_i . k_j + q_i . r[i, j]) / sqrt(D)``, and ``+ k_j . r[i, j]`` inside the brackets in the
    form "relative_key_query". Distances are query minus key, opposite to Shaw et al., and are not
    clipped: more than `max_positions` tokens are an error. Memory is O(S * D) and O(H * S * S).

    Args:
        d_model, num_heads: `d_model` is a multiple of `num_heads`.
        max_positions: ``max_position_embeddings`` of the config.
        form: "relative_key" or "relative_key_query", the ``position_embedding_type`` of the config.
        causal: a token sees itself and what came before.
        bias: of the projections.
        dropout: of the attention weights, in training.
        out_proj: without it the parameters are those of ``BertSelfAttention`` (query, key, value,
            distance_embedding), whose output projection is in the next module of the layer.
        device, dtype: of the parameters.

    Source: https://arxiv.org/abs/1803.02155 and https://arxiv.org/abs/2009.13658, method 4.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        max_positions: int,
        *,
        form: BertForm = "relative_key_query",
        causal: bool = False,
        bias: bool = True,
        dropout: float = 0.0,
        out_proj: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        op = "BertRelativeAttention"
        self.d_model, self.num_heads = head_sizes(op, d_model, num_heads)
        check_flags(op, causal=causal, bias=bias, out_proj=out_proj)
        self.max_positions = at_least(op, "max_positions", max_positions, 1)
        self.dropout = probability(op, dropout)
        if form not in FORMS:
            raise error(ValueError, op, f"form must be one of {list(FORMS)}, got {form!r}")
        self.form, self.causal = form, bool(causal)
        where: dict[str, Any] = {"device": device, "dtype": dtype}
        self.query = nn.Linear(d_model, d_model, bias=bias, **where)
        self.key = nn.Linear(d_model, d_model, bias=bias, **where)
        self.value = nn.Linear(d_model, d_model, bias=bias, **where)
        dim = self.d_model // self.num_heads
        self.distance_embedding = nn.Embedding(2 * self.max_positions - 1, dim, **where)
        self.out = nn.Linear(d_model, d_model, bias=bias, **where) if out_proj else None

    @overload
    def forward(
        self, x: Tensor, *, need_weights: Literal[False] = False, **options: Unpack[Masks]
    ) -> Tensor: ...
    @overload
    def forward(
        self, x: Tensor, *, need_weights: Literal[True], **options: Unpack[Masks]
    ) -> tuple[Tensor, Tensor]: ...
    @overload
    def forward(self, x: Tensor, *, need_weights: bool, **options: Unpack[Masks]) -> Any: ...
    def forward(
        self,
        x: Tensor,
        *,
        key_padding_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
        need_weights: bool = False,
    ) -> Any:
        """Attend from x ``[B, S, d_model]`` to itself.

        Args:
            key_padding_mask, attn_mask, need_weights: as for :class:`RelativeSelfAttention`.

        Returns:
            y ``[B, S, d_model]``, or ``(y, weights)``.
        """
        if isinstance(x, Proxy):
            return record(locals())
        op, heads = "BertRelativeAttention", self.num_heads
        length = check_call(op, x, (self.d_model, heads), key_padding_mask, attn_mask)
        check_flags(op, need_weights=need_weights)
        if length > self.max_positions:
            raise error(
                ValueError,
                op,
                f"x must have at most max_positions = {self.max_positions} tokens, got {length}",
            )
        q, k, v = (split_heads(f(x), heads) for f in (self.query, self.key, self.value))
        first = self.max_positions - length  # of the rows in reach
        rows = self.distance_embedding.weight[first : first + max(2 * length - 1, 0)].mT
        index = bert_relative_index(
            length, max_position_embeddings=self.max_positions, device=x.device
        )
        index = index - first
        power, scale = split_scale(q.shape[-1] ** -0.5)
        q = q * power
        scores = q @ k.mT + relative_gather(q @ rows, index, length)
        if self.form == "relative_key_query":
            # The same vectors seen from the keys: [.., j, i], so the index runs the other way.
            scores = scores + relative_gather(k * power @ rows, index.flip(0), length).mT
        weights = attention_weights(scores, scale, self.causal, key_padding_mask, attn_mask)
        weights = F.dropout(weights, self.dropout, self.training)
        y = merge_heads(weights @ v)
        y = y if self.out is None else self.out(y)
        return outputs(y, weights if need_weights else None, None)

    if TYPE_CHECKING:

        @called_as(forward)
        def __call__(self) -> Any: ...

    def extra_repr(self) -> str:
        return (
            f"{self.d_model}, {self.num_heads}, max_positions={self.max_positions}, "
            f"form={self.form!r}, causal={self.causal}, dropout={self.dropout}"
        )
