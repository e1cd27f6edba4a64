"""Disentangled attention of DeBERTa."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args, overload

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import Proxy

from ..arguments import at_least, error, known, probability
from ..ops.relative import relative_gather
from ..ops.relative_buckets import MOST_BUCKETS, deberta_buckets_stay_near
from ..ops.relative_index import deberta_relative_index
from ..ops.rope_options import check_flags
from ..types import DebertaTerm, called_as
from .attention import (
    Masks,
    attention_weights,
    check_call,
    check_floating,
    head_sizes,
    merge_heads,
    outputs,
    split_heads,
    split_scale,
)
from .tracing import record

if TYPE_CHECKING:
    from typing_extensions import Unpack

_OP = "DebertaDisentangledAttention"
TERMS = get_args(DebertaTerm)


class _Options(Masks, total=False):
    rel_embeddings: Tensor | None


class DebertaDisentangledAttention(nn.Module):
    """Self-attention between contents and relative positions, ``[B, S, d_model]`` to the same.

    >>> import torch, posenc_ext
    >>> attention = posenc_ext.DebertaDisentangledAttention(64, 4, 512, position_buckets=256)
    >>> attention(torch.randn(2, 10, 64)).shape
    torch.Size([2, 10, 64])

    The score of query i and key j is ``(q_i . k_j + q_i . kr[r] + k_j . qr[r]) / sqrt(D * f)``,
    with ``r = clip(bucket(i - j) + span, 0, 2 * span - 1)`` and f = 1 + the number of terms. kr and
    qr are projections of the rows of `rel_embeddings`, ``[2 * span, d_model]``; span is
    `position_buckets`, or `max_relative_positions` without buckets. Both terms use the same r, as
    the released code does; the article writes the p2c term with the distance of the opposite sign.
    Memory is O(S * D) and O(H * S * S).

    A distance of `max_relative_positions` or more: as in transformers, only r is clipped. The
    original code of DeBERTa-v2 clips the distance first, to ``max_relative_positions - 1`` either
    way: then such distances to the right give r = 1, not 0.

    Args:
        d_model, num_heads: `d_model` is a multiple of `num_heads`.
        max_relative_positions: distances at and beyond which one bucket holds all.
        position_buckets: log buckets, as in v2 and v3 (256 with 512 positions). None as in v1.
        terms: of "c2p" (q with positions) and "p2c" (k with positions), the `pos_att_type`.
        share_att_key: project positions with the projections of q and k, not with own ones (v3).
        shared_table: the module owns no `rel_embeddings`; each call is given those of the model, as
            in the released models, whose layers share them.
        norm_rel_ebd: own embeddings pass a LayerNorm first (v2 and v3); not with `shared_table`.
        causal: a token sees itself and what came before.
        dropout: of the attention weights, in training.
        position_dropout: of the embeddings, in training.
        out_proj: without it, and with `shared_table`, the parameters are those of transformers'
            ``DisentangledSelfAttention``: of v2 as they are, of v1 by translation as they load.
        device, dtype: of the parameters.

    Source: https://arxiv.org/abs/2006.03654, equation 4.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        max_relative_positions: int,
        *,
        position_buckets: int | None = None,
        terms: Sequence[DebertaTerm] = TERMS,
        share_att_key: bool = False,
        shared_table: bool = False,
        norm_rel_ebd: bool = False,
        causal: bool = False,
        dropout: float = 0.0,
        position_dropout: float = 0.0,
        out_proj: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.num_heads = head_sizes(_OP, d_model, num_heads)
        check_flags(_OP, share_att_key=share_att_key, shared_table=shared_table, causal=causal)
        check_flags(_OP, norm_rel_ebd=norm_rel_ebd, out_proj=out_proj)
        if norm_rel_ebd and shared_table:
            text = "norm_rel_ebd must be False with shared_table, whose owner norms it, got True"
            raise error(ValueError, _OP, text)
        self.max_relative_positions = at_least(
            _OP, "max_relative_positions", max_relative_positions, 1
        )
        self.position_buckets = _buckets(position_buckets, self.max_relative_positions)
        self.terms = _terms(terms)
        self.dropout = probability(_OP, dropout)
        self.position_dropout = probability(_OP, position_dropout, "position_dropout")
        self.share_att_key, self.causal = bool(share_att_key), bool(causal)
        self.span = self.position_buckets or self.max_relative_positions
        where: dict[str, Any] = {"device": device, "dtype": dtype}

        def linear() -> nn.Linear:
            return nn.Linear(d_model, d_model, **where)

        self.query_proj, self.key_proj, self.value_proj = linear(), linear(), linear()
        self.pos_key_proj = linear() if "c2p" in self.terms and not share_att_key else None
        self.pos_query_proj = linear() if "p2c" in self.terms and not share_att_key else None
        self.out = linear() if out_proj else None
        own = not shared_table
        self.rel_embeddings = nn.Embedding(2 * self.span, d_model, **where) if own else None
        norm = own and norm_rel_ebd
        self.LayerNorm = nn.LayerNorm(d_model, eps=1e-7, **where) if norm else None

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
        rel_embeddings: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
        need_weights: bool = False,
    ) -> Any:
        """Attend from x ``[B, S, d_model]`` to itself.

        Args:
            rel_embeddings: ``[2 * span, d_model]``, with `shared_table` and only then.
            key_padding_mask, attn_mask, need_weights: as for :class:`RelativeSelfAttention`.

        Returns:
            y ``[B, S, d_model]``, or ``(y, weights)``.
        """
        if isinstance(x, Proxy):
            return record(locals())
        heads = self.num_heads
        length = check_call(_OP, x, (self.d_model, heads), key_padding_mask, attn_mask)
        check_flags(_OP, need_weights=need_weights)
        table = self._table(rel_embeddings)
        q, k, v = (
            split_heads(f(x), heads) for f in (self.query_proj, self.key_proj, self.value_proj)
        )
        first, end = self._reach(length)
        rows = table[first:end]
        rows = F.dropout(rows, self.position_dropout, self.training)
        index = deberta_relative_index(
            length,
            max_relative_positions=self.max_relative_positions,
            position_buckets=self.position_buckets,
            device=x.device,
        )
        index = index - first
        power, scale = split_scale((q.shape[-1] * (1 + len(self.terms))) ** -0.5)
        q = q * power
        scores = q @ k.mT
        if "c2p" in self.terms:
            kr = split_heads((self.pos_key_proj or self.key_proj)(rows)[None], heads)
            scores = scores + relative_gather(q @ kr.mT, index, length)
        if "p2c" in self.terms:
            qr = split_heads((self.pos_query_proj or self.query_proj)(rows)[None], heads)
            # The same cells seen from the keys: [.., j, i], so the index runs the other way.
            scores = scores + relative_gather(k * power @ qr.mT, index.flip(0), length).mT
        weights = attention_weights(scores, scale, self.causal, key_padding_mask, attn_mask)
        weights = F.dropout(weights, self.dropout, self.training)
        y = merge_heads(weights @ v)
        y = y if self.out is None else self.out(y)
        return outputs(y, weights if need_weights else None, None)

    if TYPE_CHECKING:

        @called_as(forward)
        def __call__(self) -> Any: ...

    def _reach(self, length: int) -> tuple[int, int]:
        """The rows that these distances can use, from the first up to the end."""
        buckets = self.position_buckets
        near = buckets is None or deberta_buckets_stay_near(buckets, self.max_relative_positions)
        if not near or not known(length):
            return 0, 2 * self.span
        return max(self.span - max(length - 1, 0), 0), min(self.span + length, 2 * self.span)

    def _table(self, given: Any) -> Tensor:
        """The embeddings of the distances, ``[2 * span, d_model]``."""
        if self.rel_embeddings is None:
            check_floating(_OP, "rel_embeddings", given, "[2 * span, d_model]", self.d_model)
            if given.shape[0] != 2 * self.span:
                raise error(
                    ValueError,
                    _OP,
                    f"rel_embeddings must have 2 * span = {2 * self.span} rows, got "
                    f"{given.shape[0]}",
                )
            return given
        if given is not None:
            text = f"rel_embeddings must be None without shared_table, got {type(given).__name__}"
            raise error(ValueError, _OP, text)
        own = self.rel_embeddings.weight
        return own if self.LayerNorm is None else self.LayerNorm(own)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        if prefix + "in_proj.weight" in state_dict:
            _from_v1(state_dict, prefix, self.num_heads)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def extra_repr(self) -> str:
        return (
            f"{self.d_model}, {self.num_heads}, {self.max_relative_positions}, "
            f"position_buckets={self.position_buckets}, terms={self.terms}, "
            f"share_att_key={self.share_att_key}, causal={self.causal}, dropout={self.dropout}"
        )


def _from_v1(state: Any, prefix: str, heads: int) -> None:
    """Rename the parameters of v1 in place: q, k, v in one matrix, head by head; no bias of k."""
    fused = state.pop(prefix + "in_proj.weight").unflatten(0, (heads, 3, -1))
    for i, name in enumerate(("query", "key", "value")):
        weight = fused[:, i].flatten(0, 1)
        bias = state.pop(f"{prefix}{name[0]}_bias", None)
        state[f"{prefix}{name}_proj.weight"] = weight
        state[f"{prefix}{name}_proj.bias"] = weight.new_zeros(len(weight)) if bias is None else bias
    for old, new in (("pos_proj", "pos_key_proj"), ("pos_q_proj", "pos_query_proj")):
        weight = state.pop(f"{prefix}{old}.weight", None)
        if weight is not None:
            bias = state.pop(f"{prefix}{old}.bias", None)
            state[f"{prefix}{new}.weight"] = weight
            state[f"{prefix}{new}.bias"] = weight.new_zeros(len(weight)) if bias is None else bias


def _buckets(given: Any, longest: int) -> int | None:
    if given is None:
        return None
    count = at_least(_OP, "position_buckets", given, 1, MOST_BUCKETS)
    if count < 4 or count // 2 >= longest - 1:
        raise error(
            ValueError,
            _OP,
            f"position_buckets must be at least 4, and half of it below max_relative_positions - 1 "
            f"= {longest - 1}, got {count}",
        )
    return count


def _terms(given: Any) -> tuple[str, ...]:
    names = tuple(given) if isinstance(given, (list, tuple, set)) else ()
    if (given != () and not names) or any(name not in TERMS for name in names):
        raise error(ValueError, _OP, f"terms must be some of {list(TERMS)}, got {given!r}")
    return tuple(term for term in TERMS if term in names)
