"""onnxruntime's RotaryEmbedding, in a process of its own.

Its threads spin for a while after each call, and would take the cores from the next contestant. So
it runs as it comes, in a child that is stopped except in its turn.
"""

import importlib.util
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from types import TracebackType

import numpy
import torch
from torch import Tensor

from .common import Settings, Skipped, WrongResult
from .rope_case import EVERY_STEP, RopeCase


class Process:
    """The child. It has checked its result before the first turn."""

    def __init__(self, settings: Settings) -> None:
        for module in ("onnxruntime", "onnx"):
            if importlib.util.find_spec(module) is None:
                raise Skipped(f"no module {module}: pip install onnxruntime onnx")
        if not hasattr(signal, "SIGSTOP"):
            raise Skipped("this system cannot stop a process")
        command = [sys.executable, "-m", __name__, str(torch.get_num_threads())]
        command += ["--quick"] * settings.quick
        self._child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> "Process":
        self._answer()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._child.kill()
        self._child.communicate()

    def seconds(self, calls: int) -> float:
        """Seconds of one call, of `calls` in a row after one to warm up."""
        self._child.send_signal(signal.SIGCONT)
        self._child.stdin.write(f"{calls}\n")
        self._child.stdin.flush()
        return self._answer()

    def _answer(self) -> float:
        line = self._child.stdout.readline()
        if not line:
            raise WrongResult(f"onnxruntime ended with status {self._child.wait()}")
        self._child.send_signal(signal.SIGSTOP)
        return float(line)


def onnxruntime_rotation(case: RopeCase) -> tuple[Callable[[], object], Tensor]:
    """Return (run, output [B, S, H, D]) of a session whose inputs and output are bound once."""
    import onnxruntime as ort
    from onnx import TensorProto, helper

    batch, length, heads, head_dim = case.q.shape
    out = torch.zeros_like(case.q)
    tensors = {
        "x": case.q.view(batch, length, heads * head_dim),
        "position_ids": torch.arange(length).repeat(batch, 1),
        "cos": case.cos,
        "sin": case.sin,
        "y": out.view(batch, length, heads * head_dim),
    }
    kinds = {torch.float32: TensorProto.FLOAT, torch.int64: TensorProto.INT64}
    values = {
        name: helper.make_tensor_value_info(name, kinds[t.dtype], t.shape)
        for name, t in tensors.items()
    }
    inputs = ["x", "position_ids", "cos", "sin"]
    node = helper.make_node(
        "RotaryEmbedding",
        inputs,
        ["y"],
        domain="com.microsoft",
        interleaved=0,
        num_heads=heads,
        rotary_embedding_dim=head_dim,
    )
    graph = helper.make_graph([node], "rope", [values[name] for name in inputs], [values["y"]])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)

    options = ort.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    binding = session.io_binding()
    for name, tensor in tensors.items():
        bind = binding.bind_output if name == "y" else binding.bind_input
        kind = numpy.int64 if tensor.dtype == torch.int64 else numpy.float32
        bind(name, "cpu", 0, kind, tensor.shape, tensor.data_ptr())

    def run(kept: object = tensors) -> None:  # onnxruntime holds bare pointers: keep the tensors
        session.run_with_iobinding(binding)

    return run, out


def main() -> None:
    torch.set_num_threads(int(sys.argv[1]))
    case = RopeCase(Settings(quick="--quick" in sys.argv).shape, torch.float32)
    run, out = onnxruntime_rotation(case)
    run()
    case.check("onnxruntime", case.q, out, EVERY_STEP)
    print(0.0, flush=True)
    for line in sys.stdin:
        run()
        start = time.perf_counter()
        for _ in range(int(line)):
            run()
        print((time.perf_counter() - start) / int(line), flush=True)


if __name__ == "__main__":
    main()
