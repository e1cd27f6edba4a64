"""Keys and values of the tokens so far, in memory that is there from the start."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..arguments import LARGEST, at_least, check_dtype, error
from ..ops.rope_cache import apply_rope_cache
from ..ops.rope_options import check_tensors

_OP = "KVCache"


class KVCache:
    """A cache of keys and values ``[B, H, L, D]`` for one attention layer.

    >>> import torch, posenc_ext
    >>> attention = posenc_ext.RotaryAttention(64, 4, 2)
    >>> cache = posenc_ext.KVCache(1, 32, heads=2, dim=16)
    >>> x = torch.randn(1, 10, 64)
    >>> with torch.no_grad():
    ...     first = attention(x[:, :9], past=cache)
    ...     last = attention(x[:, 9:], past=cache)
    ...     y = attention(x)
    >>> torch.allclose(torch.cat([first, last], 1), y, atol=1e-5)
    True
    >>> len(cache), cache.keys.shape
    (10, torch.Size([1, 2, 10, 16]))

    An attention module that is given one as `past` appends to it. Nothing is copied when it grows,
    as it never does: it has room for `length` tokens, and more are a ValueError. It has no
    gradient: call what writes into it under ``torch.no_grad()``.

    Args:
        batch, length, heads, dim: B, L, H and D.
        value_dim: D of the values; default `dim`.
        dtype: float32, float64, bfloat16 or float16; default that of ``torch.empty``.
        device: where it lies.
    """

    def __init__(
        self,
        batch: int,
        length: int,
        heads: int,
        dim: int,
        *,
        value_dim: int | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        sizes = {"batch": batch, "length": length, "heads": heads, "dim": dim}
        batch, length, heads, dim = (at_least(_OP, n, v, 0, LARGEST) for n, v in sizes.items())
        value_dim = dim if value_dim is None else at_least(_OP, "value_dim", value_dim, 0, LARGEST)
        dtype = torch.get_default_dtype() if dtype is None else dtype
        check_dtype(_OP, dtype)
        where: dict[str, Any] = {"dtype": dtype, "device": device}
        self.k_cache = torch.zeros(batch, heads, length, dim, **where)
        self.v_cache = torch.zeros(batch, heads, length, value_dim, **where)
        self._length = 0

    def __len__(self) -> int:
        """The tokens in it."""
        return self._length

    @property
    def keys(self) -> Tensor:
        """``[B, H, len(self), D]``, a view."""
        return self.k_cache[:, :, : self._length]

    @property
    def values(self) -> Tensor:
        """``[B, H, len(self), D]``, a view."""
        return self.v_cache[:, :, : self._length]

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write ``[B, H, S, D]`` behind what is there; returns `keys` and `values`."""
        for name, t, cache in (("k", k, self.k_cache), ("v", v, self.v_cache)):
            check_tensors(_OP, **{name: t})
            wanted = [*cache.shape[:2], k.shape[2] if k.dim() == 4 else 0, cache.shape[3]]
            if list(t.shape) != wanted:
                text = f"{name} must have shape [B, H, S, D] like {wanted}, got {list(t.shape)}"
                raise error(ValueError, _OP, text)
            if t.dtype != cache.dtype:
                text = f"{name} must have the dtype of the cache ({cache.dtype}), got {t.dtype}"
                raise error(TypeError, _OP, text)
            if t.device != cache.device:
                text = f"{name} must be on the device of the cache ({cache.device}), got {t.device}"
                raise error(ValueError, _OP, text)
            if torch.is_grad_enabled() and t.requires_grad:
                text = f"{name} must not need a gradient, as a cache has none, got one that does: "
                raise error(ValueError, _OP, text + "call it under torch.no_grad()")
        end = self._room_for(k.shape[2])
        self.k_cache[:, :, self._length : end] = k
        self.v_cache[:, :, self._length : end] = v
        self._length = end
        return self.keys, self.values

    def apply_rope(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cos: Tensor,
        sin: Tensor | None = None,
        *,
        layout: str = "bshd",
        interleaved: bool = False,
        interleaved_out: bool | None = None,
        inverse: bool = False,
        inplace: bool = False,
    ) -> Tensor:
        """Rotate q and k for the positions behind what is there, append k and v, and return q.

        One call of :func:`posenc_ext.apply_rope_cache`, which see.
        """
        check_tensors(_OP, k=k)
        axis = layout.find("s") if isinstance(layout, str) else -1
        if axis < 0:
            text = f"layout must be a str with an 's', got {layout!r}"
            raise error(ValueError, _OP, text)
        end = self._room_for(k.shape[axis] if axis < k.dim() else 0)
        q = apply_rope_cache(
            q, k, v, self.k_cache, self.v_cache, cos, sin, cache_layout="bhld", layout=layout,
            offset=self._length, interleaved=interleaved, interleaved_out=interleaved_out,
            inverse=inverse, inplace=inplace,
        )  # fmt: skip
        self._length = end
        return q

    def crop(self, length: int) -> None:
        """Keep the first `length` tokens, or if negative, all but the last ``-length``."""
        kept = at_least(_OP, "length", length, -self._length, self._length)
        self._length = kept if kept >= 0 else self._length + kept

    def reset(self) -> None:
        """Forget all tokens."""
        self._length = 0

    def reorder(self, index: Tensor) -> None:
        """Let batch entry i be what entry ``index[i]`` was, as beam search does: int64 ``[B]``."""
        check_tensors(_OP, index=index)
        batch = self.k_cache.shape[0]
        if index.dtype not in (torch.int32, torch.int64):
            raise error(TypeError, _OP, f"index must be int32 or int64, got {index.dtype}")
        if list(index.shape) != [batch] or index.device != self.k_cache.device:
            text = f"index must have shape [B] = [{batch}] on {self.k_cache.device}, got "
            raise error(ValueError, _OP, text + f"{list(index.shape)} on {index.device}")
        if index.device.type == "cpu" and not bool(((index >= 0) & (index < batch)).all()):
            text = f"index must be batch entries, 0 <= index < {batch}, got {index.tolist()}"
            raise error(IndexError, _OP, text)
        with torch.no_grad():
            self.keys.copy_(self.keys.index_select(0, index))
            self.values.copy_(self.values.index_select(0, index))

    def _room_for(self, count: int) -> int:
        """The length after so many more tokens."""
        end, room = self._length + count, self.k_cache.shape[2]
        if end > room:
            text = f"length must have room for {count} more tokens than {self._length}, got {room}"
            raise error(ValueError, _OP, text)
        return end

    def __repr__(self) -> str:
        batch, heads, length, dim = self.k_cache.shape
        return f"KVCache({batch}, {length}, {heads}, {dim}: {self._length} tokens)"
