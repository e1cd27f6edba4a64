"""What a module keeps on CUDA, beside graphs that have captured it and streams that share it."""

import pytest
import torch
from stand_in import calls

from posenc_ext import RotaryPositionalEmbedding, kept

NTK = {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 16}


def inputs(device="cuda:0", length=4):
    return torch.zeros(1, length, 2, 128, device=device)


def kept_table(module):
    (entry,) = module._tables._kept.values()
    return entry


def is_held(pointer):
    """Does the allocator count this memory as somebody's?"""
    blocks = [b for segment in torch.cuda.memory_snapshot() for b in segment["blocks"]]
    (block,) = [b for b in blocks if b["address"] <= pointer < b["address"] + b["size"]]
    return block["state"] == "active_allocated"


@pytest.mark.parametrize("device", ["cuda:0", "cuda:1"])
@pytest.mark.parametrize("then", ["grown", "moved"])
def test_a_captured_table_stays(then, device):
    module, x = RotaryPositionalEmbedding(128), inputs(device)
    offset = torch.zeros(1, dtype=torch.long, device=device)
    module.reserve(128, device=device)
    entry = kept_table(module)
    pointers = [entry.cos.data_ptr(), entry.sin.data_ptr()]
    del entry
    with torch.cuda.device(device):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
            module(x, offset=offset, seq_len=128)
            module(x, offset=offset, seq_len=128)
    module(x, offset=1000) if then == "grown" else module.to(device)
    assert all(map(is_held, pointers))
    assert len(module._tables._captured) == 1
    del module
    assert not any(map(is_held, pointers))


def test_captured_frequencies_stay():
    module, positions = RotaryPositionalEmbedding(128, scaling=NTK), torch.arange(40).cuda()
    x = inputs(length=40)
    module(x, positions=positions, seq_len=50)
    ((_, result, _),) = [v for k, v in module._tables._memo.items() if k[1].type == "cuda"]
    pointer = result.inv_freq.data_ptr()
    del result
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        module(x, positions=positions.double(), seq_len=50)
    module(x, positions=positions.double(), seq_len=60)
    assert is_held(pointer)


def test_another_stream_waits_once_for_the_table():
    module, x = RotaryPositionalEmbedding(128), inputs()
    first, second = torch.cuda.Stream(), torch.cuda.Stream()

    def call(stream):
        with torch.cuda.stream(stream):
            return calls(lambda: module(x))

    asked = call(first)
    relevant = [c for c in asked if c.kind == "record" or c.ours]
    assert [c.kind for c in relevant[-3:]] == ["launch", "record", "launch"]
    assert "table_kernel" in relevant[-3].words[-1]
    recorded = relevant[-2].words
    assert recorded[0] == str(first.cuda_stream)
    asked = call(second)
    kinds = [c.kind for c in asked if c.kind in ("wait", "launch")]
    assert kinds == ["wait", "launch"]
    (wait,) = [c for c in asked if c.kind == "wait"]
    assert wait.words == [str(second.cuda_stream), recorded[1]]
    for stream in (first, second):
        assert [c.kind for c in call(stream)] == ["launch"]


def test_memory_that_another_stream_reads_is_not_freed_under_it():
    module, x = RotaryPositionalEmbedding(128), inputs()
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    for stream in (first, second):
        with torch.cuda.stream(stream):
            module(x)
    with torch.cuda.stream(first):
        asked = calls(lambda: module(x, offset=100))
    # What was freed waits for the second stream, which the allocator asks with events.
    assert [str(second.cuda_stream)] * 2 == [
        c.words[0] for c in asked if c.kind == "record" and c.words[0] != str(first.cuda_stream)
    ]


def test_a_capture_reads_a_table_of_another_stream():
    module, x = RotaryPositionalEmbedding(128), inputs()
    module.reserve(64, device="cuda")
    graph = torch.cuda.CUDAGraph()

    def capture():
        with torch.cuda.graph(graph):
            module(x)

    asked = calls(capture)
    assert ["rope_kernel" in c.words[-1] for c in asked if c.kind == "launch"] == [True]
    assert [c for c in asked if c.kind in ("error", "wait")] == []


def test_no_table_of_a_capture_is_kept():
    module, x = RotaryPositionalEmbedding(128), inputs()
    module._tables.frequencies(None, x.device)
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        module(x)
    assert module._tables._kept == {}


@pytest.mark.parametrize("index", [0, 1])
def test_a_device_without_an_index_is_the_current_one(index):
    with torch.cuda.device(index):
        module, x = RotaryPositionalEmbedding(128), inputs(f"cuda:{index}")
        module.reserve(64, device="cuda")
        asked = calls(lambda: module(x))
        module.table(64, device="cuda")
    assert [c.kind for c in asked] == ["launch"]
    assert len(module._tables._kept) == 1


def test_a_constant_is_read_by_any_stream():
    store = dict(kept._constants)
    kept._constants.clear()
    device = torch.device("cuda:0")
    try:
        asked = calls(lambda: kept.constant(kept.of_integers, device, 1, 2, 3))
        assert asked[-1].kind == "sync"
        assert calls(lambda: kept.constant(kept.of_integers, device, 1, 2, 3)) == []
    finally:
        kept._constants.update(store)
