"""What the formulas share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._prims_common import compute_elementwise_output_logical_to_physical_perm


def exact(dtype: torch.dtype) -> torch.dtype:
    """What arithmetic is done in, for results of this dtype."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def like(y: Tensor, x: Tensor) -> Tensor:
    """y with the dtype and the order of strides of x, which has its shape: views that come after
    were planned for the strides that the op gives."""
    order: Any = compute_elementwise_output_logical_to_physical_perm(x)[0]
    back = [order.index(axis) for axis in range(x.dim())]
    return y.to(x.dtype).permute(order).contiguous().permute(back)


def write(x: Tensor, y: Tensor) -> None:
    x.copy_(y)
