"""What the translations of this folder share."""

from __future__ import annotations

import torch
from torch import Tensor


def readable(table: Tensor, x: Tensor) -> Tensor:
    """A table in a dtype that rope takes beside x. Widening is exact, as in kernels that convert
    what they load."""
    fits = table.dtype in (x.dtype, torch.float32) or not table.is_floating_point()
    return table if fits else table.float()
