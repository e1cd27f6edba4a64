"""Every public call on either of two devices: its launches on the current stream of the tensors'
device, and no waiting, no copy between host and device, no memory but what torch keeps at hand."""

import functools

import pytest
import torch
from device_calls import ON_THE_HOST, all_calls
from fuzz_calls import CALLS
from stand_in import calls

import posenc_ext

DEVICES = ("cuda:0", "cuda:1")
MADE = {device: all_calls(device) for device in DEVICES}
# Kernels of ours in a call, and at most so many in all, torch's included; (1, 1) if not named.
LAUNCHES = {
    "KVCache": (0, 2),
    "apply_rope_cache": (2, 2),
    "ALiBiAttention.forward": (1, 12),
    "BertRelativeAttention.forward": (2, 24),
    "DebertaDisentangledAttention.forward": (3, 45),
    "LearnedPositionalEncoding.forward": (0, 1),
    "RelativePositionalEmbedding.forward": (1, 6),
    "RelativePositionalEmbedding.values": (1, 6),
    "RelativeSelfAttention.forward": (3, 32),
    "RobertaEmbeddings.forward": (0, 11),
    "RotaryAttention.forward": (1, 19),
    "RotaryPositionalEmbedding.reserve": (0, 0),
    "RotaryPositionalEmbedding.table": (0, 0),
    "T5RelativePositionBias.forward": (1, 7),
    "TransformerXLAttention.forward": (3, 35),
    "add_sinusoidal wide": (1, 2),
    "attention_mask_positions": (0, 6),
    "axial padded": (2, 21),
    "axial_positions": (0, 4),
    "axial_rope_table": (2, 7),
    "bert_relative_index": (0, 2),
    "clipped_relative_index": (0, 3),
    "context_parallel_positions": (0, 3),
    "deberta buckets": (0, 11),
    "deberta_relative_index": (0, 11),
    "deberta_relative_position_bucket": (0, 8),
    "half_to_interleaved": (0, 4),
    "interleaved_to_half": (0, 4),
    "padding_aware_positions": (0, 6),
    "rel_shift": (1, 7),
    "resize_position_grid": (0, 2),
    "rope_table mrope": (3, 5),
    "rotary mixed axes": (4, 9),
    "rotary mrope": (4, 6),
    "rotary packed, unknown": (2, 9),
    "rotary positions": (2, 2),
    "sequential_positions": (0, 1),
    "sinusoidal_table": (1, 2),
    "sinusoidal_table_2d": (2, 5),
    "t5_relative_index": (0, 6),
    "t5_relative_position_bucket": (0, 6),
    "xpos int": (1, 20),
    "xpos_table": (1, 18),
}
# The module remembers the rows of the last tensors, but not for a graph.
REMEMBERED = ("rotary positions", "rotary packed, unknown", "rotary mrope", "rotary mixed axes")


def steady(call, device):
    """What a call asks for the third time, on a stream of its own, and the stream."""
    stream = torch.cuda.Stream(device)
    with torch.cuda.stream(stream):
        torch.cuda.set_device(0)  # the stream stays that of `device`
        for _ in range(2):
            call()
        return calls(call), (stream.device.index, stream.cuda_stream)


def check(asked, where):
    """No more than launches, and those there; how many are ours, and how many there are."""
    assert [c for c in asked if c.kind in ("sync", "malloc", "free", "error", "wait")] == []
    assert [c for c in asked if c.kind == "copy" and c.words[0] != "across"] == []
    launches = [c for c in asked if c.kind == "launch"]
    for launch in launches:
        product = launch.words[1] == "-"  # of matrices: its stream is not seen
        assert (int(launch.words[0]) == where[0]) if product else (launch.where == where), launch
    return sum(c.ours for c in launches), len(launches)


def test_no_public_call_is_left_out():
    known = set(MADE["cuda:0"]) | set(ON_THE_HOST)
    left = {name for name in CALLS if not name.startswith("scaling.") and name[0].islower()}
    assert left - known == set()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", MADE["cuda:0"])
def test_a_call_launches_and_does_nothing_else(name, device):
    ours, all_ = check(*steady(MADE[device][name], device))
    expected, most = LAUNCHES.get(name, (1, 1))
    assert ours == (1 if name in REMEMBERED else expected)
    assert all_ <= most


@pytest.mark.parametrize("name", MADE["cuda:0"])
def test_a_graph_can_capture_it(name):
    call = MADE["cuda:0"][name]
    call()

    def capture():
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        return graph

    asked = calls(capture)
    assert [c for c in asked if c.kind == "error"] == []
    ours = sum(c.ours for c in asked)
    assert ours == LAUNCHES.get(name, (1, 1))[0]


def differentiable(device):
    """Calls whose result has a gradient, with the gradients: of a function in its tensors, of a
    module in its parameters too."""
    for name, call in all_calls(device).items():
        without = name.startswith("compat.") or name == "apply_rope_cache"
        if not isinstance(call, functools.partial) or without:
            continue
        keywords = {
            key: v.detach().requires_grad_()
            if isinstance(v, torch.Tensor) and v.is_floating_point()
            else v
            for key, v in call.keywords.items()
        }
        of = getattr(call.func, "__self__", None)
        inputs = [v for v in keywords.values() if isinstance(v, torch.Tensor) and v.requires_grad]
        inputs += list(of.parameters()) if isinstance(of, torch.nn.Module) else []
        yield name, functools.partial(with_gradients, call.func, keywords, inputs)


def with_gradients(function, keywords, inputs):
    found = function(**keywords)
    results = [found] if isinstance(found, torch.Tensor) else list(found or ())
    results = [t for t in results if isinstance(t, torch.Tensor) and t.requires_grad]
    if not results:
        return found
    ones = [torch.ones_like(t) for t in results]
    return torch.autograd.grad(results, inputs, ones, allow_unused=True)


GRADIENTS = {device: dict(differentiable(device)) for device in DEVICES}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", GRADIENTS["cuda:0"])
def test_its_gradients_launch_and_do_nothing_else(name, device):
    check(*steady(GRADIENTS[device][name], device))


def test_what_is_made_on_the_host_is_seen():
    """The stand-in notices what the other tests deny."""
    asked = calls(lambda: posenc_ext.alibi_slopes(4, device="cuda"))
    assert [c.kind for c in asked if c.kind in ("copy", "sync")] == ["copy", "sync"]
    with pytest.raises(RuntimeError, match="capture"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        posenc_ext.alibi_slopes(4, device="cuda")
