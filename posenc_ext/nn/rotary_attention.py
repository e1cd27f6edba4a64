"""Self-attention with rotary positions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import Proxy

from ..arguments import error, integer, probability
from ..ops.functions import forward_mode
from ..ops.norm_rope import qk_norm_rope
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
from .rotary import RotaryPositionalEmbedding
from .rotary_masks import one_mask, packed_mask
from .tracing import record

if TYPE_CHECKING:
    from typing_extensions import Unpack

_OP = "RotaryAttention"


class _Options(CachedMasks, total=False):
    offset: int | Tensor | None
    positions: Tensor | None
    cu_seqlens: Tensor | None


class RotaryAttention(nn.Module):
    """Multi-head self-attention with rotated queries and keys, ``[B, S, d_model]`` to the same.

    >>> import torch, posenc_ext
    >>> attention = posenc_ext.RotaryAttention(64, 4, 2)
    >>> x = torch.randn(2, 10, 64)
    >>> y = attention(x)
    >>> first, cache = attention(x[:, :9], use_cache=True)
    >>> last, cache = attention(x[:, 9:], past=cache, use_cache=True)
    >>> torch.allclose(torch.cat([first, last], 1), y, atol=1e-5)
    True

    ``softmax((R_i q_i) . (R_j k_j) / sqrt(D) + mask) v``: the mask is added to the scores, before
    the softmax. The parameters have the names of LLaMA in transformers: q_proj, k_proj, v_proj,
    o_proj.

    Args:
        d_model, num_heads: `d_model` is a multiple of `num_heads`.
        num_kv_heads: heads of keys and values (GQA), a divisor of `num_heads`; default: as many.
        rotary: True for a :class:`RotaryPositionalEmbedding` of the width of a head; one of your
            own, layout "bshd", for another base, scaling, pair layout or width, or to share between
            layers; False for no positions at all.
        rotate_values: rotate v too, as in RoFormer with `rotary_value`. The output then depends on
            absolute positions.
        qk_norm: "rms" to normalise each head of q and k before it is rotated, as Qwen3 does, by
            RMSNorm with the weights q_norm and k_norm ``[D]`` and eps 1e-6, in one pass with the
            rotation; None not to.
        causal: a token sees itself and what came before.
        bias: of the four projections; "qkv" for all but the output, as in Qwen2.
        dropout: of the attention weights, in training.
        device, dtype: of the parameters.

    Source: https://arxiv.org/abs/2104.09864, section 3.4.2.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        num_kv_heads: int | None = None,
        *,
        rotary: bool | RotaryPositionalEmbedding = True,
        rotate_values: bool = False,
        qk_norm: str | None = None,
        causal: bool = True,
        bias: bool | Literal["qkv"] = False,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.num_heads = head_sizes(_OP, d_model, num_heads)
        dim = self.d_model // self.num_heads
        self.num_kv_heads = kv_heads(_OP, self.num_heads, num_kv_heads)
        self.dropout = probability(_OP, dropout)
        check_flags(_OP, causal=causal, rotate_values=rotate_values)
        if bias != "qkv":
            check_flags(_OP, bias=bias)
        self.causal, self.rotate_values = bool(causal), bool(rotate_values)
        self.rotary = _rotary(rotary, dim)
        if self.rotate_values and self.rotary is None:
            raise error(ValueError, _OP, "rotate_values must be False without rotary, got True")
        if qk_norm not in (None, "rms"):
            raise error(ValueError, _OP, f"qk_norm must be 'rms' or None, got {qk_norm!r}")
        self.qk_norm = qk_norm
        where: dict[str, Any] = {"bias": bool(bias), "device": device, "dtype": dtype}
        self.q_proj = nn.Linear(d_model, d_model, **where)
        self.k_proj = nn.Linear(d_model, self.num_kv_heads * dim, **where)
        self.v_proj = nn.Linear(d_model, self.num_kv_heads * dim, **where)
        self.o_proj = nn.Linear(d_model, d_model, **{**where, "bias": bias and bias != "qkv"})
        if qk_norm is not None:
            self.q_norm = nn.RMSNorm(dim, eps=1e-6, device=device, dtype=dtype)
            self.k_norm = nn.RMSNorm(dim, eps=1e-6, device=device, dtype=dtype)

    @overload
    def forward(
        self, x: Tensor, *, need_weights: Literal[False] = False,
        use_cache: Literal[False] = False, **options: Unpack[_Options],
    ) -> Tensor: ...  # fmt: skip
    @overload
    def forward(
        self, x: Tensor, *, need_weights: Literal[True],
        use_cache: Literal[False] = False, **options: Unpack[_Options],
    ) -> tuple[Tensor, Tensor]: ...  # fmt: skip
    @overload
    def forward(
        self, x: Tensor, *, need_weights: Literal[False] = False,
        use_cache: Literal[True], **options: Unpack[_Options],
    ) -> tuple[Tensor, Cache]: ...  # fmt: skip
    @overload
    def forward(
        self, x: Tensor, *, need_weights: Literal[True],
        use_cache: Literal[True], **options: Unpack[_Options],
    ) -> tuple[Tensor, Tensor, Cache]: ...  # fmt: skip
    @overload
    def forward(
        self, x: Tensor, *, need_weights: bool = False, use_cache: bool = False,
        **options: Unpack[_Options],
    ) -> Any: ...  # fmt: skip
    def forward(
        self,
        x: Tensor,
        *,
        key_padding_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
        past: Cache | KVCache | None = None,
        use_cache: bool = False,
        offset: int | Tensor | None = None,
        positions: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        need_weights: bool = False,
    ) -> Any:
        """Attend from x ``[B, S, d_model]`` to itself and what is in `past`.

        Args:
            key_padding_mask, attn_mask: as for :class:`RelativeSelfAttention`.
            past: keys and values ``[B, num_kv_heads, K - S, D]`` that an earlier call returned,
                rotated as they are; or a :class:`KVCache`, to which the call appends.
            use_cache: also return the cache, `past` for the next call.
            offset: the position of the first token, an int or an int tensor ``[B]``, as for
                :func:`posenc_ext.apply_rope`; default: K - S.
            positions: those of the tokens, in the place of `offset`: as for `rotary`, such as
                ``[B, S]``.
            cu_seqlens: int32 or int64 ``[N + 1]`` for sequences packed into one, B = 1 and no
                `past`: each sees itself alone, and positions restart with it. The mask that hides
                the others is ``[S, S]``.
            need_weights: also return the weights ``[B, H, S, K]``, as applied (after dropout).

        Returns:
            y ``[B, S, d_model]``, or ``(y, weights)``, ``(y, cache)``, ``(y, weights, cache)``.

        Without weights to return, and outside forward mode, this is
        ``scaled_dot_product_attention``, whose gradient cannot be differentiated again on every
        device; with them, gradients are of any order.
        """
        if isinstance(x, Proxy):
            return record(locals())
        kv, dim = self.num_kv_heads, self.d_model // self.num_heads
        sizes = (self.d_model, self.num_heads)
        keys = check_call(_OP, x, sizes, key_padding_mask, attn_mask, past, kv)
        check_flags(_OP, use_cache=use_cache, need_weights=need_weights)
        q, k, v = (f(x).unflatten(-1, (-1, dim)) for f in (self.q_proj, self.k_proj, self.v_proj))
        if cu_seqlens is not None:
            attn_mask = packed_mask(_OP, cu_seqlens, x, past, offset, positions, attn_mask)
        if self.rotary is not None:
            where: dict[str, Any] = {"positions": positions}
            if positions is None:
                start = keys - x.shape[1] if offset is None else _offset(offset, x.shape[0])
                where = {"offset": start}
            elif offset is not None:
                raise error(ValueError, _OP, "offset must not be given with positions, got both")
            if cu_seqlens is not None:
                where = {"cu_seqlens": cu_seqlens, "layout": "thd"}
                q, k, v = (t.squeeze(0) for t in (q, k, v))
            q, k = self._rotated(self.rotary, q, k, where)
            v = self.rotary(v, **where) if self.rotate_values else v
            if cu_seqlens is not None:
                q, k, v = (t.unsqueeze(0) for t in (q, k, v))
        elif self.qk_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        k, v = extend(_OP, past, k, v)
        cache = past if isinstance(past, KVCache) else (k, v)
        dropout = self.dropout if self.training else 0.0
        # scaled_dot_product_attention has no forward mode on the CPU.
        if need_weights or (not torch.compiler.is_compiling() and forward_mode()):
            groups = (kv, self.num_heads // kv)  # every key and value serves as many heads
            power, scale = split_scale(dim**-0.5)
            scores = ((q * power).unflatten(1, groups) @ k.unsqueeze(2).mT).flatten(1, 2)
            weights = attention_weights(scores, scale, self.causal, key_padding_mask, attn_mask)
            weights = F.dropout(weights, dropout)
            y = (weights.unflatten(1, groups) @ v.unsqueeze(2)).flatten(1, 2)
        else:
            weights = None
            mask, causal = one_mask(self.causal, x, keys, key_padding_mask, attn_mask, q.dtype)
            y = F.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=causal,
                enable_gqa=self.num_kv_heads < self.num_heads,  # ONNX refuses it for equal heads
            )  # fmt: skip
        y = self.o_proj(merge_heads(y))
        return outputs(y, weights if need_weights else None, cache if use_cache else None)

    if TYPE_CHECKING:

        @called_as(forward)
        def __call__(self) -> Any: ...

    def _rotated(
        self, rotary: RotaryPositionalEmbedding, q: Tensor, k: Tensor, where: dict[str, Any]
    ) -> tuple[Tensor, Tensor]:
        if self.qk_norm is None:
            q, k = rotary(q, k, **where)
            return q, k
        layout = where.get("layout", rotary.layout)
        given = (where.get("positions"), where.get("offset", 0), where.get("cu_seqlens"))
        cos, sin, positions, offset, cu_seqlens = rotary._rows_for(q, k, layout, given, None)
        result: Any = qk_norm_rope(
            q, k, self.q_norm.weight, self.k_norm.weight, cos, sin, eps=self.q_norm.eps or 0.0,
            layout=layout, positions=positions, offset=offset, cu_seqlens=cu_seqlens,
            interleaved=rotary.interleaved,
        )  # fmt: skip
        return result

    def extra_repr(self) -> str:
        return (
            f"{self.d_model}, {self.num_heads}, num_kv_heads={self.num_kv_heads}, "
            f"causal={self.causal}, dropout={self.dropout}, rotate_values={self.rotate_values}, "
            f"qk_norm={self.qk_norm!r}"
        )


def _rotary(given: Any, dim: int) -> RotaryPositionalEmbedding | None:
    if isinstance(given, RotaryPositionalEmbedding):
        if given.layout != "bshd":
            text = f"rotary must have layout 'bshd', got {given.layout!r}"
            raise error(ValueError, _OP, text)
        if given.dim > dim:
            text = f"rotary must rotate at most D = {dim} channels, got {given.dim}"
            raise error(ValueError, _OP, text)
        return given
    if not isinstance(given, bool):
        text = f"rotary must be a bool or a RotaryPositionalEmbedding, got {type(given).__name__}"
        raise error(TypeError, _OP, text)
    if given and dim % 2:
        text = f"d_model / num_heads must be even to be rotated, got {dim}"
        raise error(ValueError, _OP, text)
    return RotaryPositionalEmbedding(dim) if given else None


def _offset(given: Any, batch: int) -> int | Tensor:
    if not isinstance(given, Tensor):
        return integer(_OP, "offset", given, "an int or a tensor")
    if given.dtype not in (torch.int32, torch.int64):
        raise error(TypeError, _OP, f"offset must be int32 or int64, got {given.dtype}")
    if given.dim() and list(given.shape) != [batch]:
        text = f"offset must be an int or have shape [B] = [{batch}], got {list(given.shape)}"
        raise error(ValueError, _OP, text)
    return given
