"""RotaryPositionalEmbedding through casts, copies, checkpoints, forks and compilers."""

import copy
import os
import pickle

import pytest
import torch
from rope_cases import assert_bits, uniform
from test_rotary_module import INV_FREQ, NTK, kept, make
from torch._subclasses.fake_tensor import FakeTensorMode

from posenc_ext import rope_table


def test_table_stays_exact_whatever_the_module_is_cast_to():
    right = rope_table(4096, INV_FREQ)
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.bfloat16)
        module = torch.nn.ModuleList([make().bfloat16(), make().half()])
        tables = [m.table(4096) for m in module]
    finally:
        torch.set_default_dtype(before)
    for table in tables:
        for mine, wanted in zip(table, right, strict=True):
            assert_bits(mine, wanted)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_bits(make().table(4096)[0], right[0])


def test_meta_init():
    with torch.device("meta"):
        module = torch.nn.Sequential(make(), torch.nn.Linear(32, 32))
    module.to_empty(device="cpu")
    x = uniform((1, 4, 2, 32))
    assert_bits(module[0](x), make()(x))
    assert make()(x.to("meta")).shape == x.shape


def test_inference_then_training():
    module = make(scaling=NTK)
    for mode in (torch.inference_mode, torch.no_grad):
        for length in (4, 40):
            with mode():
                module(torch.zeros(1, length, 1, 32))
                module(torch.zeros(1, length, 1, 32), positions=torch.arange(length))
            for options in ({}, {"positions": torch.arange(length)}):
                x = torch.randn(1, length, 1, 32, requires_grad=True)
                (module(x, **options) ** 2).sum().backward()
                torch.testing.assert_close(x.grad, 2 * x)
    with torch.inference_mode():
        module = make()
    p = torch.randn(4, requires_grad=True)
    module(torch.randn(1, 4, 1, 32), positions=p).sum().backward()
    assert p.grad.isfinite().all()


def test_state_dict_is_empty_and_old_checkpoints_load():
    module = torch.nn.ModuleDict({"rotary": make(), "proj": torch.nn.Linear(2, 2)})
    state = module.state_dict()
    assert set(state) == {"proj.weight", "proj.bias"}
    assert not list(make().parameters()) + list(make().buffers())
    old = state | {"rotary.inv_freq": torch.full((16,), 7.0)}
    module.load_state_dict(old, strict=True)
    assert "rotary.inv_freq" in old
    make().load_state_dict({"inv_freq": torch.zeros(16)}, strict=True)
    assert_bits(module["rotary"].frequencies().inv_freq, INV_FREQ)
    with pytest.raises(RuntimeError, match=r"Unexpected key.*rotary.other"):
        module.load_state_dict(state | {"rotary.other": torch.zeros(1)})


def test_copies_compute_the_same_without_carrying_tables():
    module = make(scaling=NTK, interleaved=True)
    x = uniform((1, 12, 2, 32))
    right = module(x)
    size = len(pickle.dumps(module))
    for other in (copy.deepcopy(module), copy.copy(module), pickle.loads(pickle.dumps(module))):
        assert_bits(other(x), right)
    assert kept(copy.deepcopy(module)) == []
    assert size < 4000


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_fork():
    module = make()
    x = torch.ones(1, 2, 1, 32)
    right = module(x).tolist()
    child = os.fork()
    if not child:
        torch.set_num_threads(1)
        os._exit(0 if module(x).tolist() == right and module(x, offset=50).shape == x.shape else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_compiled_and_exported_leave_nothing_behind():
    x = uniform((1, 6, 2, 32))
    for ready in (False, True):
        module = make()
        right = make()(x)
        if ready:
            module.reserve(64)
        compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
        assert_bits(compiled(x), right)
        assert_bits(compiled(x, positions=torch.arange(6)), right)
        assert_bits(compiled(x, offset=torch.tensor([3])), make()(x, offset=3))
        exported = torch.export.export(module, (x,))
        assert_bits(exported.module()(x), right)
        assert kept(module) == ([64] if ready else [])
        assert_bits(module(x), right)


@pytest.mark.parametrize("longer", [False, True])
def test_compiled_with_a_dict_of_a_rule_that_depends_on_the_length(longer):
    keys = {"rope_type": "dynamic", "factor": 2.0, "max_position_embeddings": 16}
    module, x = make(scaling=keys), uniform((1, 6, 2, 32))
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    offset = 30 if longer else 3
    assert_bits(compiled(x, offset=offset), make(scaling=keys)(x, offset=offset))


def test_fake_tensors_meet_no_kept_table():
    module, x = make(), uniform((1, 6, 2, 32))
    right = module(x)
    with FakeTensorMode():
        assert module(torch.empty(1, 6, 2, 32)).shape == x.shape
    assert kept(module) == [6]
    assert_bits(module(x), right)
