"""RoPE against what people use today: eager torch, torch.compile and onnxruntime."""

import os
import shutil
from collections.abc import Callable, Iterator

import numpy
import torch
from torch import Tensor

import posenc_ext

from .common import Row, Settings, Skipped, faster, time_in_turns
from .rope_case import DTYPES, EVERY_STEP, ONCE, RopeCase, rotate_eagerly


def against(
    case: RopeCase,
    settings: Settings,
    name: str,
    peer: Callable[[], tuple[Tensor, Tensor]],
    out_of_place: float,
    in_place: float,
) -> Iterator[Row]:
    """Rows of `apply_rope`, out of place and in place, against a peer that rotates q and k."""
    q, k = case.q.clone(), case.k.clone()
    case.check_pair(name, peer, EVERY_STEP)
    case.check_pair("apply_rope", lambda: case.ours(case.q, case.k))
    case.check_pair("apply_rope inplace", lambda: case.ours(q, k, inplace=True))
    times = time_in_turns(
        {
            "ours": lambda: case.ours(case.q, case.k),
            name: peer,
            "ours in place": lambda: case.ours(q, k, inplace=True),
        },
        settings,
    )
    moved = 2 * (q.nbytes + k.nbytes)
    yield faster(
        f"apply_rope out of place, {case.label}",
        times["ours"],
        times[name],
        name,
        out_of_place,
        bytes=moved,
    )
    yield faster(
        f"apply_rope in place, {case.label}",
        times["ours in place"],
        times[name],
        name,
        in_place,
        bytes=moved,
    )


def eager(settings: Settings) -> Iterator[Row]:
    """Hugging Face's expression in eager torch, in both common layouts."""
    for layout in ("bshd", "bhsd"):
        for dtype in DTYPES:
            case = RopeCase(settings.shape, dtype, layout)
            yield from against(case, settings, "eager", case.eager, 4, 4)


def compiled(settings: Settings) -> Iterator[Row]:
    """torch.compile of the same expression."""
    compilers = (os.environ.get("CXX"), "g++", "clang++")
    if not any(name and shutil.which(name) for name in compilers):
        raise Skipped("torch.compile needs a C++ compiler on PATH")
    rotate = torch.compile(rotate_eagerly, fullgraph=True)
    for dtype in DTYPES:
        case = RopeCase(settings.shape, dtype)
        with torch.no_grad():
            yield from against(
                case,
                settings,
                "torch.compile",
                lambda case=case: rotate(case.q, case.k, case.wide_cos, case.wide_sin),
                1.5,
                4,
            )


def onnxruntime(settings: Settings) -> Iterator[Row]:
    """onnxruntime's RotaryEmbedding on q, float32, into a prepared output; ours does not allocate
    either, in place or with `out=`."""
    case = RopeCase(settings.shape, torch.float32)
    run, theirs = onnxruntime_rotation(case)
    out, q = torch.zeros_like(case.q), case.q.clone()
    run()
    case.check("onnxruntime", case.q, theirs, EVERY_STEP)
    case.check("rope out=", case.q, posenc_ext.rope(case.q, case.cos, case.sin, out=out))
    times = time_in_turns(
        {
            "in place": lambda: posenc_ext.rope(q, case.cos, case.sin, inplace=True),
            "out=": lambda: posenc_ext.rope(case.q, case.cos, case.sin, out=out),
            "onnxruntime": run,
        },
        settings,
        calls=3,
    )
    for form in ("in place", "out="):
        yield faster(
            f"rope {form}, {case.label}",
            times[form],
            times["onnxruntime"],
            "onnxruntime",
            1.2,
            bytes=2 * out.nbytes,
        )


def onnxruntime_rotation(case: RopeCase) -> tuple[Callable[[], object], Tensor]:
    """Return (run, output [B, S, H, D]) of a session whose inputs and output are bound once."""
    try:
        import onnxruntime as ort
        from onnx import TensorProto, helper
    except ImportError as error:
        raise Skipped(f"no module {error.name}: pip install onnxruntime onnx") from error

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
    # Its threads would spin on after its turn, and take the cores from the next contestant.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
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


def backward(settings: Settings) -> Iterator[Row]:
    """Forward and backward of q and k against eager autograd."""
    for dtype in DTYPES:
        yield against_autograd(RopeCase(settings.shape, dtype), settings)


def against_autograd(case: RopeCase, settings: Settings) -> Row:
    q, k = case.q.requires_grad_(), case.k.requires_grad_()
    grads = (torch.randn_like(q), torch.randn_like(k))
    contestants: dict[str, Callable[[], tuple[Tensor, ...]]] = {
        "ours": lambda: torch.autograd.grad(case.ours(q, k), (q, k), grads),
        "eager autograd": lambda: torch.autograd.grad(case.eager(), (q, k), grads),
    }
    for name, contestant in contestants.items():
        # The gradient is the incoming one, turned the other way.
        tolerances = ONCE if name == "ours" else EVERY_STEP
        for grad, back in zip(grads, contestant(), strict=True):
            case.check(f"gradient, {name}", grad, back, tolerances, inverse=True)
    times = time_in_turns(contestants, settings)
    name, moved = f"apply_rope forward and backward, {case.label}", 4 * (q.nbytes + k.nbytes)
    theirs = times["eager autograd"]
    return faster(name, times["ours"], theirs, "eager autograd", 4, bytes=moved)
