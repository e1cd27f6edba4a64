"""The relative position bias of T5."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.fx import Proxy

from ..arguments import at_least
from ..ops.relative import relative_gather
from ..ops.relative_index import t5_relative_index
from ..types import called_as
from .tracing import record

_OP = "T5RelativePositionBias"


class T5RelativePositionBias(nn.Module):
    """A learned bias for each head and bucket of distances, ``[1, H, q_len, k_len]``.

    >>> import torch, posenc_ext
    >>> bias = posenc_ext.T5RelativePositionBias(8)
    >>> scores = torch.randn(2, 8, 5, 5)  # q @ k^T: T5 does not scale by 1 / sqrt(D)
    >>> (scores + bias(5)).shape
    torch.Size([2, 8, 5, 5])

    Queries are the last of the keys, so ``bias(1, k_len)`` is the row of a decoding step. See
    :func:`posenc_ext.t5_relative_position_bucket` for the buckets. One module serves all layers.
    Weights load from ``relative_attention_bias.weight`` of a Hugging Face model.

    Args:
        num_heads: H.
        num_buckets, max_distance, bidirectional: as in that function; `bidirectional` in an
            encoder, not in a decoder.
        device, dtype: of the weight ``[num_buckets, H]``, which starts from a normal distribution.

    Besides the result, memory is O(H * q_len * num_buckets) in backward. The gradient of the weight
    has the same bits for any threads and instruction set.

    Source: Raffel et al., https://arxiv.org/abs/1910.10683.
    """

    def __init__(
        self,
        num_heads: int,
        num_buckets: int = 32,
        max_distance: int = 128,
        bidirectional: bool = True,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.num_heads = at_least(_OP, "num_heads", num_heads, 1)
        self.num_buckets, self.max_distance = num_buckets, max_distance
        self.bidirectional = bidirectional
        self._index(0, 0, None)  # checks what it is made of
        self.relative_attention_bias = nn.Embedding(
            num_buckets, num_heads, device=device, dtype=dtype
        )

    def forward(self, q_len: int, k_len: int | None = None, *, offset: int | None = None) -> Tensor:
        """The bias for the last `q_len` of `k_len` keys (`q_len` keys by default), or with `offset`
        for those that stand at keys ``offset .. offset + q_len - 1``.

        Raises TypeError and ValueError for a length that is none.
        """
        if isinstance(q_len, Proxy):
            return record(locals())
        weight = self.relative_attention_bias.weight
        index = self._index(q_len, k_len, weight.device, offset)
        table = weight.t()[None, :, None].expand(1, -1, q_len, -1)  # [1, H, Q, buckets]
        return relative_gather(table, index, q_len if k_len is None else k_len)

    if TYPE_CHECKING:

        @called_as(forward)
        def __call__(self) -> Any: ...

    def _index(
        self,
        q_len: int,
        k_len: int | None,
        device: torch.device | None,
        offset: int | None = None,
    ) -> Tensor:
        return t5_relative_index(
            q_len,
            k_len,
            bidirectional=self.bidirectional,
            num_buckets=self.num_buckets,
            max_distance=self.max_distance,
            offset=offset,
            device=device,
        )

    def extra_repr(self) -> str:
        return (
            f"num_heads={self.num_heads}, num_buckets={self.num_buckets}, "
            f"max_distance={self.max_distance}, bidirectional={self.bidirectional}"
        )
