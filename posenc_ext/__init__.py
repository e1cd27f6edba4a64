"""Position encodings for transformer models: native kernels for CPU and CUDA, with autograd."""

from types import FunctionType

import torch

from . import _native
from ._version import __version__
from .axial import AxialTable, axial_frequencies, axial_positions, axial_rope_table
from .distributed import context_parallel_positions
from .formulas.table import decompositions
from .frequencies import RopeFrequencies
from .nn.alibi import ALiBiAttention
from .nn.bert import BertRelativeAttention
from .nn.deberta import DebertaDisentangledAttention
from .nn.kv_cache import KVCache
from .nn.learned import LearnedPositionalEncoding
from .nn.relative import RelativePositionalEmbedding, RelativeSelfAttention
from .nn.roberta import RobertaEmbeddings
from .nn.rotary import RotaryPositionalEmbedding
from .nn.rotary_attention import RotaryAttention
from .nn.sinusoidal import SinusoidalPositionalEncoding
from .nn.t5 import T5RelativePositionBias
from .nn.transformer_xl import TransformerXLAttention
from .ops.alibi import (
    add_alibi,
    alibi_bias,
    alibi_row_bias,
    alibi_score_mod,
    alibi_slopes,
    alibi_softmax,
)
from .ops.mrope import mrope_axes, mrope_position_ids
from .ops.norm_rope import norm_rope, qk_norm_rope
from .ops.permute import half_to_interleaved, interleaved_to_half
from .ops.position_grid import resize_position_grid
from .ops.position_ids import (
    attention_mask_positions,
    padding_aware_positions,
    sequential_positions,
)
from .ops.relative import rel_shift, relative_gather, relative_scatter
from .ops.relative_buckets import (
    deberta_relative_position_bucket,
    t5_relative_position_bucket,
)
from .ops.relative_index import (
    bert_relative_index,
    clipped_relative_index,
    deberta_relative_index,
    t5_relative_index,
)
from .ops.rope import apply_rope, rope
from .ops.rope_cache import apply_rope_cache
from .ops.rope_frequencies import rope_frequencies
from .ops.rope_table import rope_table
from .ops.sinusoidal import add_sinusoidal, sinusoidal_table
from .ops.sinusoidal_forms import sinusoidal_table_2d, timestep_embedding
from .xpos import XPosTable, xpos_table, xpos_zeta

__all__ = [
    "ALiBiAttention",
    "AxialTable",
    "BertRelativeAttention",
    "DebertaDisentangledAttention",
    "KVCache",
    "LearnedPositionalEncoding",
    "RelativePositionalEmbedding",
    "RelativeSelfAttention",
    "RobertaEmbeddings",
    "RopeFrequencies",
    "RotaryAttention",
    "RotaryPositionalEmbedding",
    "SinusoidalPositionalEncoding",
    "T5RelativePositionBias",
    "TransformerXLAttention",
    "XPosTable",
    "__version__",
    "add_alibi",
    "add_sinusoidal",
    "alibi_bias",
    "alibi_row_bias",
    "alibi_score_mod",
    "alibi_slopes",
    "alibi_softmax",
    "apply_rope",
    "apply_rope_cache",
    "attention_mask_positions",
    "axial_frequencies",
    "axial_positions",
    "axial_rope_table",
    "bert_relative_index",
    "clipped_relative_index",
    "context_parallel_positions",
    "deberta_relative_index",
    "deberta_relative_position_bucket",
    "decompositions",
    "half_to_interleaved",
    "interleaved_to_half",
    "mrope_axes",
    "mrope_position_ids",
    "norm_rope",
    "padding_aware_positions",
    "qk_norm_rope",
    "rel_shift",
    "relative_gather",
    "relative_scatter",
    "resize_position_grid",
    "rope",
    "rope_frequencies",
    "rope_table",
    "sequential_positions",
    "sinusoidal_table",
    "sinusoidal_table_2d",
    "t5_relative_index",
    "t5_relative_position_bucket",
    "timestep_embedding",
    "xpos_table",
    "xpos_zeta",
]

for _name in __all__:
    # torch.fx.symbolic_trace keeps a call of a function as one node. (For one that was imported by
    # name, `torch.fx.wrap` in the importing module says so.)
    if isinstance(globals()[_name], FunctionType):
        torch.fx.wrap(_name)

# What help() shows first.
_lines = {name: (globals()[name].__doc__ or "").partition("\n\n")[0] for name in __all__}
__doc__ = f"{__doc__}\n\n" + "\n".join(
    f"{name:<33}{' '.join(line.split())}"
    for name, line in _lines.items()
    if not isinstance(globals()[name], str)
)

del _lines, _name, _native
