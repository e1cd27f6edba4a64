"""Memory that ends where reading or writing on is a fault, and memory that is never touched."""

import ctypes
import mmap

import torch

LIBC = ctypes.CDLL(None, use_errno=True)
KEPT = []  # a mapping must outlive the tensors in it


def guarded(x: torch.Tensor, at_end: bool = True) -> torch.Tensor:
    """A contiguous copy of x with a page without access right behind it, or right before it."""
    page = mmap.PAGESIZE
    pages = -(-x.nbytes // page)
    memory = mmap.mmap(-1, (pages + 1) * page)
    KEPT.append(memory)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    closed = start + pages * page if at_end else start
    if LIBC.mprotect(ctypes.c_void_p(closed), page, 0):
        raise OSError(ctypes.get_errno(), "mprotect")
    offset = pages * page - x.nbytes if at_end else page
    copy = torch.frombuffer(memory, dtype=x.dtype, count=x.numel(), offset=offset)
    return copy.view(x.shape).copy_(x)


def far_apart(x: torch.Tensor, axis: int, stride: int) -> torch.Tensor:
    """x with `stride` elements between its entries along `axis`: all but x itself is untouched."""
    strides = [0] * x.dim()
    step = 1
    for i in reversed(range(x.dim())):
        if i != axis:
            strides[i] = step
            step *= x.shape[i]
    strides[axis] = stride
    last = sum((n - 1) * s for n, s in zip(x.shape, strides, strict=True))
    return torch.empty(last + 1, dtype=x.dtype).as_strided(x.shape, strides).copy_(x)
