"""torch.onnx.export and onnxruntime, for the tests that have them."""

import warnings

import numpy as np
import torch
from torch.utils._pytree import tree_leaves


class Calls(torch.nn.Module):
    """Many functions as one module, since each export takes seconds: `given` is a list of tensors
    for each."""

    def __init__(self, functions):
        super().__init__()
        self.functions = functions
        self.made = torch.nn.ModuleList(f for f in functions if isinstance(f, torch.nn.Module))

    def forward(self, *given):
        every = zip(self.functions, given, strict=True)
        results = (tree_leaves(f(*tensors)) for f, tensors in every)  # some name a pair layout too
        return tuple(tuple(y for y in ys if isinstance(y, torch.Tensor)) for ys in results)


class Every(torch.nn.Module):
    """Many functions of the same tensor as one."""

    def __init__(self, functions):
        super().__init__()
        self.calls = Calls(functions)

    def forward(self, x):
        return self.calls(*[[x]] * len(self.calls.functions))


def exported(module, given, dynamic_shapes=None, opset=None):
    """(program, a function that runs it in onnxruntime)."""
    import onnxruntime

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "# The axis name")  # one name stands at many axes
        program = torch.onnx.export(
            module,
            given,
            dynamo=True,
            dynamic_shapes=dynamic_shapes,
            opset_version=opset,
            verbose=False,
        )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    model = program.model_proto.SerializeToString()
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]

    def run(*given):
        arrays = [t.detach().numpy() for t in tree_leaves(given)]
        results = session.run(None, dict(zip(names, arrays, strict=True)))
        return [torch.from_numpy(np.asarray(result)) for result in results]

    return program, run


def count(program, kind="RotaryEmbedding"):
    return sum(node.op_type == kind for node in program.model.graph)


def close(actual, right):
    """To 1e-6 in float32, to two roundings in float16; to 1e-7 in float64, as the exporter writes
    the numbers of Python in float32."""
    assert actual.dtype == right.dtype
    tolerance = {torch.float16: 2**-9, torch.float32: 1e-6}.get(right.dtype, 1e-7)
    torch.testing.assert_close(actual, right, rtol=tolerance, atol=tolerance)


def length_dims(short, longer, lengths=(3, 6)):
    """Dynamic shapes of arguments that depend on one length S: its dimension or S plus a number."""
    s = torch.export.Dim("length", min=2, max=1024)
    growth = lengths[1] - lengths[0]

    def dims(a, b):
        found = {}
        for axis, (m, n) in enumerate(zip(a.shape, b.shape, strict=True)):
            if m != n:
                assert n - m == growth
                found[axis] = s if m == lengths[0] else s + (m - lengths[0])
        return found

    every = zip(short, longer, strict=True)
    return tuple([dims(a, b) for a, b in zip(*pair, strict=True)] for pair in every)
