"""Tensors that outlive a call. They hold no trace of where they were made (inference mode, a trace,
a thread, a CUDA graph), and on CUDA none is read before it is written, or freed too early."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

MOST_CONSTANTS = 1024  # far more than models have; what comes after is made for each call
_constants: dict[Hashable, Tensor] = {}


def constant(make: Callable[..., Tensor], device: torch.device, *arguments: Hashable) -> Tensor:
    """``make(device, *arguments)``, small and the same whenever it is called: made once for each
    device, and kept for good. A copy from the host would wait for the device at every call, and
    cannot be captured in a CUDA graph."""
    if torch.compiler.is_compiling() or faking():
        return make(device, *arguments)
    key = (make, device, arguments)
    known = _constants.get(key)
    if known is not None:
        return known
    with torch.inference_mode(False), torch.no_grad():
        made = make(device, *arguments)
    if is_plain(made) and len(_constants) < MOST_CONSTANTS:
        if made.is_cuda:  # once: from now on, any stream may read it
            torch.cuda.current_stream(device).synchronize()
        _constants[key] = made
    return made


def of_integers(device: torch.device, *values: int) -> Tensor:
    """int64 ``[len(values)]``."""
    return torch.tensor(values, dtype=torch.int64, device=device)


class Written:
    """When tensors of one device were written, and who may read them since.

    On CUDA work is in order within a stream only. Another stream waits once for the event that
    follows the writing, and the allocator is told of it: once nobody refers to the tensors, their
    memory is not used again before that stream has read them.
    """

    def __init__(self, *tensors: Tensor) -> None:
        self.tensors = tensors
        self.on_cuda = tensors[0].is_cuda
        if self.on_cuda:
            self.device = tensors[0].device
            stream = torch.cuda.current_stream(self.device)
            self.event = torch.cuda.Event()
            self.event.record(stream)
            self.readers = {stream.cuda_stream}

    def before_reading(self, captured: list[Written]) -> None:
        """Call this before the current stream of the device reads the tensors.

        A graph that is being captured reads them whenever it is replayed, so they are put into
        `captured`, which keeps them. It cannot wait for an event of before, and need not, since
        torch.cuda.graph waits for the device first.
        """
        if not self.on_cuda:
            return
        if is_capturing(self.device):
            if self not in captured:
                captured.append(self)
            return
        if torch._C._cuda_getCurrentRawStream(self.device.index) in self.readers:
            return
        stream = torch.cuda.current_stream(self.device)
        stream.wait_event(self.event)
        for tensor in self.tensors:
            tensor.record_stream(stream)
        self.readers.add(stream.cuda_stream)


def placed(device: torch.device | str) -> torch.device:
    """The device that tensors on `device` have: "cuda" names the current one of several."""
    device = torch.device(device)
    return device if device.type == "cpu" else torch.empty(0, device=device).device


def is_plain(tensor: Tensor) -> bool:
    """Is this a tensor that outlives the call? One of a trace, of a transform such as
    torch.func.grad, or in the memory pool of a CUDA graph does not."""
    return (
        type(tensor) is Tensor
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        and not (tensor.is_cuda and is_capturing(tensor.device))
    )


def is_capturing(device: torch.device) -> bool:
    """Is the current stream of this CUDA device capturing a graph?"""
    if device.index == torch._C._cuda_getDevice():
        return torch._C._cuda_isCurrentStreamCapturing()
    with torch.cuda.device(device):
        return torch._C._cuda_isCurrentStreamCapturing()


def faking() -> bool:
    """Under FakeTensorMode, which takes no tensor of before, and not in a compiler?"""
    if torch.compiler.is_compiling():
        return False
    mode: Any = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
    return mode is not None
