"""What works where in PyTorch: every op and module against every way to call it.

    python tests/pytorch_table.py     # writes the table into docs/pytorch.md

A cell passes, or raises a NotImplementedError that REFUSED names; tests/test_pytorch_table.py
runs them all.
"""

import copy
import pathlib
import sys
import warnings

import dtensor_checks
import onnx_run
import torch
from table_cases import CASES
from torch._dynamo.testing import CompileCounterWithBackend
from torch.distributed.tensor import Shard, distribute_module, distribute_tensor
from torch.utils._python_dispatch import TorchDispatchMode

PAGE = pathlib.Path(__file__).resolve().parent.parent / "docs" / "pytorch.md"
BEGIN, END = "<!-- table: python tests/pytorch_table.py -->\n", "<!-- end of table -->\n"
REFUSED: dict[tuple[str, str], str] = {}


def inputs_of(case, length=3, grad=False):
    return [t.clone().requires_grad_(grad) for t in case.inputs(length)]


def several(result):
    return list(result) if isinstance(result, (tuple, list)) else [result]


def value_and_grads(function, tensors):
    outs = several(function(*tensors))
    weights = [torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view(y.shape) for y in outs]
    return [*(y.detach() for y in outs), *torch.autograd.grad(outs, tensors, weights)]


def assert_equal(actual, right):
    for a, b in zip(several(actual), several(right), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-13)
        assert a.stride() == b.stride()


def eager_grad(case):
    assert torch.autograd.gradcheck(case.function, inputs_of(case, 2, grad=True))


def double_backward(case):
    assert torch.autograd.gradgradcheck(case.function, inputs_of(case, 2, grad=True))


def compiles(case, lengths, most):
    """Without graph breaks, and at most so many times."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    function = case.function if case.module is None else copy.deepcopy(case.module)
    compiled = torch.compile(function, fullgraph=True, backend=counter)
    every = [inputs_of(case, length, grad=True) for length in lengths]
    results = [value_and_grads(compiled, tensors) for tensors in every]
    for tensors, result in zip(every, results, strict=True):
        assert_equal(result, value_and_grads(case.function, tensors))
    assert 1 <= counter.frame_count <= most
    torch._dynamo.reset()


def compiled(case):
    compiles(case, (3,), 1)


def compiled_dynamic(case):
    compiles(case, (3, 4, 6, 7, 9, 12), 2)


class Of(torch.nn.Module):
    """Functions as a module, which export wants."""

    def __init__(self, cases):
        super().__init__()
        self.functions = [case.function for case in cases]
        self.made = torch.nn.ModuleList(case.module for case in cases if case.module)

    def forward(self, *every):
        results = [f(*tensors) for f, tensors in zip(self.functions, every, strict=True)]
        return tuple(tuple(several(result)) for result in results)


def exported(case):
    tensors = inputs_of(case, 3)
    program = torch.export.export(Of([case]), (tensors,))
    assert_equal(program.module()(tensors)[0], tuple(several(case.function(*tensors))))
    tensors = inputs_of(case, 3, grad=True)  # the graph trains

    def trained(*tensors):
        return program.module()(list(tensors))[0]

    assert_equal(value_and_grads(trained, tensors), value_and_grads(case.function, tensors))


def packages():
    """AOTInductor compiles all ops as one module; (results, what they should be) by op."""
    every = tuple(inputs_of(case) for case in CASES.values())
    right = [case.function(*tensors) for case, tensors in zip(CASES.values(), every, strict=True)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch about itself
        program = torch.export.export(Of(CASES.values()), every)
        path = torch._inductor.aoti_compile_and_package(program)
        try:
            results = torch._inductor.aoti_load_package(path)(*every)
        finally:
            pathlib.Path(path).unlink()
    return dict(zip(CASES, zip(results, right, strict=True), strict=True))


def onnx_results(dtype):
    """torch.onnx.export writes all ops as one model; as of packages(), for lengths 3, 6 and 11."""
    functions = [
        case.function if case.module is None else copy.deepcopy(case.module).to(dtype).eval()
        for case in CASES.values()
    ]

    def given(length):
        each = []
        for name, case in CASES.items():
            own = torch.float32 if name == "rope_table" else dtype  # frequencies are never half
            each.append([t.to(own) for t in inputs_of(case, length)])
        return tuple(each)

    module = onnx_run.Calls(functions).eval()
    shapes = (onnx_run.length_dims(given(3), given(6)),)
    _, run = onnx_run.exported(module, given(3), shapes)
    found = []
    for length in (3, 6, 11):
        tensors = given(length)
        right, flat = module(*tensors), iter(run(*tensors))
        found.append(
            {
                name: ([next(flat) for _ in each], each)
                for name, each in zip(CASES, right, strict=True)
            }
        )
    return found


def vmapped(case):
    samples = [inputs_of(case) for _ in range(3)]
    samples[1:] = [
        [t * scale for t in tensors] for tensors, scale in zip(samples[1:], (2, -0.5), strict=True)
    ]
    batch = [torch.stack(each) for each in zip(*samples, strict=True)]
    right = [several(case.function(*tensors)) for tensors in samples]
    actual = several(torch.func.vmap(case.function)(*batch))
    for a, b in zip(actual, zip(*right, strict=True), strict=True):
        torch.testing.assert_close(a, torch.stack(b), rtol=1e-12, atol=1e-13)


def pushed(case):
    tensors = tuple(inputs_of(case))
    tangents = tuple(t.flip(0) + 1 for t in tensors)

    def first(*tensors):
        return several(case.function(*tensors))[0]

    actual = torch.func.jvp(first, tensors, tangents)
    right = torch.autograd.functional.jvp(first, tensors, tangents)
    torch.testing.assert_close(actual, right, rtol=1e-10, atol=1e-12)


def autocast(case):
    """Nothing of ours is cast: the dtype of x alone decides. Matrix products are torch's."""
    tensors = [t.float() for t in inputs_of(case)]
    function = case.function if case.module is None else copy.deepcopy(case.module).float()
    right = function(*tensors)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = function(*tensors)
    if any(isinstance(m, torch.nn.Linear) for m in (case.module.modules() if case.module else ())):
        assert actual.dtype == torch.bfloat16
        torch.testing.assert_close(actual.float(), right, rtol=0.05, atol=0.05)
    else:
        assert_equal(actual, right)


class Calls(TorchDispatchMode):
    """The native ops called, and their arguments."""

    def __init__(self):
        super().__init__()
        self.made = {}

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        if op.namespace == "posenc_ext":
            self.made[op] = args
        return op(*args, **(kwargs or {}))


def opchecked(case):
    with Calls() as calls:
        value_and_grads(case.function, inputs_of(case, grad=True))
    for op, args in calls.made.items():
        args = [a.detach().clone() if isinstance(a, torch.Tensor) else a for a in args]
        torch.library.opcheck(op, tuple(args))


def sharded(case):
    """Native ops called, on a mesh of this process; tests/test_distributed.py has more ranks."""
    with Calls() as calls:
        value_and_grads(case.function, inputs_of(case, grad=True))
    with dtensor_checks.mesh_of_one() as mesh:
        for op in calls.made:
            assert dtensor_checks.check(op.name().removeprefix("posenc_ext::"), mesh)
        if not calls.made:  # torch's own ops
            function = case.module and distribute_module(copy.deepcopy(case.module), mesh)
            tensors = [distribute_tensor(t, mesh, [Shard(0)]) for t in inputs_of(case)]
            actual = (function or case.function)(*tensors).full_tensor()
            assert torch.equal(actual, case.function(*inputs_of(case)))


COLUMNS = {
    "gradient": eager_grad,
    "double backward": double_backward,
    "compile": compiled,
    "compile, dynamic": compiled_dynamic,
    "export": exported,
    "AOTInductor": None,  # by packages()
    "ONNX": None,  # by onnx_results()
    "vmap": vmapped,
    "jvp": pushed,
    "autocast": autocast,
    "opcheck": opchecked,
    "DTensor": sharded,
}


def render():
    lines = ["| | " + " | ".join(COLUMNS) + " |", "|---" * (len(COLUMNS) + 1) + "|"]
    reasons = list(dict.fromkeys(REFUSED.values()))
    for name in CASES:
        cells = [
            f"no ({reasons.index(REFUSED[name, column]) + 1})"
            if (name, column) in REFUSED
            else "yes"
            for column in COLUMNS
        ]
        lines.append(
            f"| `{name.partition(',')[0]}`{name.partition(',')[1]}{name.partition(',')[2]} | "
            + " | ".join(cells)
            + " |"
        )
    lines += ["", *(f"{i + 1}. {reason}" for i, reason in enumerate(reasons))] if reasons else []
    return "\n".join(lines) + "\n"


def page(text):
    """The text of the docs with the table as it is now."""
    head, rest = text.split(BEGIN)
    return head + BEGIN + render() + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
    sys.stdout.write(render())
