"""What an op says to a CUDA tensor: it has a kernel, or the build has no CUDA."""

import pytest
import torch

import posenc_ext


def ops():
    names = torch._C._dispatch_get_all_op_names()
    return sorted(name for name in names if name.startswith("posenc_ext::"))


def test_every_op_has_something_to_say_to_a_cuda_tensor():
    assert "posenc_ext::rope" in ops()
    for op in ops():
        assert torch._C._dispatch_has_kernel_for_dispatch_key(op, "CUDA"), op


@pytest.mark.skipif(bool(posenc_ext._C.build_info()["cuda"]), reason="built with CUDA")
@pytest.mark.parametrize("op", ["rope", "rope_", "apply_rope"])
def test_a_cuda_tensor_is_refused_by_a_build_without_cuda(op):
    cuda = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
    x, c = torch.ones(1, 4, 2, 8), torch.ones(4, 4)
    tensors = (x, x, c, c) if op == "apply_rope" else (x, c, c)
    call = getattr(torch.ops.posenc_ext, op).default
    with pytest.raises(NotImplementedError) as caught:
        call.redispatch(cuda, *tensors, None, None, None, 0, "bshd", False, False, False)
    first = "q" if op == "apply_rope" else "x"
    start = f"posenc_ext.{op.rstrip('_')}: {first} must be on the CPU, since this posenc_ext was "
    assert str(caught.value).startswith(start + "built without CUDA")
