"""The embeddings of RoBERTa: words, token types and positions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.fx import Proxy

from ..arguments import at_least, error, number, probability
from ..ops.position_ids import check_ids, check_rows, sizes_of_ids
from ..types import called_as
from .learned import LearnedPositionalEncoding
from .tracing import record

_OP = "RobertaEmbeddings"


class RobertaEmbeddings(nn.Module):
    """The input of BERT and RoBERTa: the sum of what a token, its type and its position embed to.

    >>> import torch, posenc_ext
    >>> embeddings = posenc_ext.RobertaEmbeddings(1000, 8, padding_idx=1)
    >>> embeddings(torch.tensor([[5, 6, 7, 1, 1]])).shape
    torch.Size([1, 5, 8])

    ``dropout(LayerNorm(word + type + position))``, with the positions of
    :func:`posenc_ext.padding_aware_positions`. Weights load from the ``embeddings`` of a Hugging
    Face RoBERTa. Note that of its `max_len` rows ``padding_idx + 1`` are no positions: 514 rows
    allow 512 tokens.

    Args:
        vocab_size, d_model: of the embeddings ``[vocab_size, D]``.
        max_len: rows of the position table.
        padding_idx: the id of padding, and its row.
        token_types: number of token types; 2 in BERT.
        dropout, eps: of the dropout and the LayerNorm.
        device, dtype: of the weights.

    Source: Liu et al., https://arxiv.org/abs/1907.11692.
    """

    def __init__(
        self,
        vocab_size: int,
        d_model: int,
        max_len: int = 514,
        *,
        padding_idx: int = 1,
        token_types: int = 1,
        dropout: float = 0.1,
        eps: float = 1e-5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        at: dict[str, Any] = {"device": device, "dtype": dtype}
        padding_idx = at_least(_OP, "padding_idx", padding_idx, 0)
        at_least(_OP, "vocab_size", vocab_size, padding_idx + 1)
        at_least(_OP, "token_types", token_types, 1)
        self.d_model = at_least(_OP, "d_model", d_model, 1)
        self.word_embeddings = nn.Embedding(vocab_size, d_model, padding_idx, **at)
        self.token_type_embeddings = nn.Embedding(token_types, d_model, **at)
        self.position_embeddings = LearnedPositionalEncoding(
            d_model, max_len, padding_idx=padding_idx, **at
        )
        self.LayerNorm = nn.LayerNorm(d_model, eps=number(_OP, "eps", eps), **at)
        self.dropout = nn.Dropout(probability(_OP, dropout))
        with torch.no_grad():
            for table in (self.word_embeddings, self.token_type_embeddings):
                table.weight.normal_(0.0, 0.02)
            self.word_embeddings.weight[padding_idx].zero_()

    def forward(
        self,
        input_ids: Tensor | None = None,
        *,
        inputs_embeds: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        positions: Tensor | None = None,
        past: int | Tensor = 0,
    ) -> Tensor:
        """Embed `input_ids` ``[B, S]``, or go on from `inputs_embeds` ``[B, S, D]``.

        Args:
            token_type_ids: int32 or int64 ``[S]`` or ``[B, S]``; zeros by default.
            positions: rows of the position table, ``[S]`` or ``[B, S]``. By default real tokens
                are counted; all of them when there are only embeddings to see.
            past: tokens before these, an int or an integer tensor ``[B]``.

        Raises TypeError, ValueError and IndexError as :class:`LearnedPositionalEncoding` does.
        """
        if isinstance(input_ids, Proxy):
            return record(locals())
        if (input_ids is None) == (inputs_embeds is None):
            text = "input_ids must be given, or inputs_embeds, got "
            raise error(ValueError, _OP, text + ("neither" if input_ids is None else "both"))
        if input_ids is not None:
            check_ids(_OP, "input_ids", input_ids)
            rows = self.word_embeddings.num_embeddings
            check_rows(_OP, "input_ids", input_ids, rows, "vocab_size")
            inputs_embeds = self.word_embeddings(input_ids)
        elif not isinstance(inputs_embeds, Tensor) or inputs_embeds.shape[-1:] != (self.d_model,):
            got = list(inputs_embeds.shape) if isinstance(inputs_embeds, Tensor) else "no tensor"
            text = f"inputs_embeds must have shape [B, S, {self.d_model}], got {got}"
            raise error(ValueError, _OP, text)
        there = self.token_type_embeddings.weight.device
        if inputs_embeds.device != there:
            text = f"inputs_embeds must be on the device of the tables ({there}), got "
            raise error(ValueError, _OP, text + str(inputs_embeds.device))
        if not isinstance(past, Tensor):
            at_least(_OP, "past", past, 0)
        if token_type_ids is None:
            x = inputs_embeds + self.token_type_embeddings.weight[0]
        else:
            self._check_types(token_type_ids, list(inputs_embeds.shape[:-1]))
            x = inputs_embeds + self.token_type_embeddings(token_type_ids)
        tokens = input_ids if positions is None else None
        x = self.position_embeddings(x, offset=past, positions=positions, tokens=tokens)
        result: Tensor = self.dropout(self.LayerNorm(x))
        return result

    if TYPE_CHECKING:

        @called_as(forward)
        def __call__(self) -> Any: ...

    def _check_types(self, types: Any, size: list[int]) -> None:
        check_ids(_OP, "token_type_ids", types)
        if list(types.shape) not in sizes_of_ids(size):
            text = f"token_type_ids must have shape {size} or {size[-1:]}, got {list(types.shape)}"
            raise error(ValueError, _OP, text)
        rows = self.token_type_embeddings.num_embeddings
        check_rows(_OP, "token_type_ids", types, rows, "token_types")
