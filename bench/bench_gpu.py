"""python -m bench.bench_gpu [--json FILE] [--checks-only] [--rehearse]: every op on the GPU.

First the bits of CUDA against those of the CPU, then times by CUDA events, medians of many, of ours
and its limit in turns: a device copy of the same bytes, eager torch, torch.compile, and whichever
peers are installed. The device is kept busy while the host gets ahead of it, so that host time does
not count, but for the rows called decode. Buffers are larger than the L2 cache, but for those.
Differing bits and missed targets are printed at the end, and the exit status is 1. --rehearse:
small shapes, and nothing judged.
"""

import argparse
import dataclasses
import statistics
import sys
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

import posenc_ext

from .common import Row, Skipped, at_most, environment, faster, print_table, write_json
from .rope_case import RopeCase, rotate_eagerly

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
COPY_SHARE = 1 / 0.9  # 0.9 of a copy's bandwidth
AHEAD = 400_000  # clock cycles that the device sleeps while the host enqueues a turn


@dataclasses.dataclass
class Sizes:
    """B, S, H, D of the rows; for the contestants of one row, seconds."""

    largest: tuple[int, int, int, int] = (8, 4096, 32, 128)  # 256 MiB in bfloat16
    usual: tuple[int, int, int, int] = (4, 2048, 32, 128)
    tokens: int = 4096
    table: int = 2**19
    seconds: float = 0.4


SIZES = Sizes()
SMALL = Sizes((1, 64, 32, 128), (1, 64, 32, 128), 64, 256, 0.0)


def on_gpu(case: RopeCase) -> RopeCase:
    for name, value in vars(case).items():
        if isinstance(value, Tensor):
            setattr(case, name, value.cuda())
    return case


def time_on_gpu(
    contestants: dict[str, Callable[[], object]], calls: int = 1, ahead: int = AHEAD
) -> dict[str, float]:
    """Median seconds of one call of each, by events on the stream."""
    print(f"  timing {', '.join(contestants)}", file=sys.stderr, flush=True)
    turns: dict[str, list[float]] = {name: [] for name in contestants}
    spent, rounds = 0.0, 0
    while rounds < 12 or spent < SIZES.seconds:
        for name, call in contestants.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            if ahead:
                torch.cuda._sleep(ahead)
            begin.record()
            for _ in range(calls):
                call()
            end.record()
            end.synchronize()
            seconds = begin.elapsed_time(end) / 1e3
            spent += seconds
            turns[name].append(seconds / calls)
        rounds += 1
    return {name: statistics.median(seconds[2:]) for name, seconds in turns.items()}


def differing_bits(on_cuda: Tensor, on_cpu: Tensor) -> int:
    """How many values differ."""
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[on_cpu.element_size()]
    cuda, cpu = (t.detach().cpu().contiguous().view(integer) for t in (on_cuda, on_cpu))
    return int((cuda != cpu).sum())


def check_rope() -> tuple[int, list[str]]:
    """Bits of rope and its gradients: dtypes, layouts, pairings, widths, offsets. How many results
    were compared, and a line for each that differs."""
    count, differ = 0, []
    for dtype in (*DTYPES, torch.float64):
        for layout in ("bshd", "bhsd", "sbhd"):
            for width, rotary in ((128, 128), (80, 32), (35, 30)):
                case = RopeCase((2, 65, 4, width + width % 2), dtype, layout)
                cos, sin = (t[:, : rotary // 2].contiguous() for t in (case.cos, case.sin))
                for interleaved in (False, True):
                    results = []
                    for device in ("cpu", "cuda"):
                        q, k, c, s = (
                            t.detach().to(device).requires_grad_()
                            for t in (case.q[..., :width], case.k[..., :width], cos, sin)
                        )
                        out = posenc_ext.apply_rope(
                            q, k, c, s, layout=layout, interleaved=interleaved
                        )
                        grads = torch.autograd.grad(sum(t.double().sum() for t in out), (q, c, s))
                        results.append((*out, *grads))
                    names = ("q", "k", "grad of q", "grad of cos", "grad of sin")
                    for which, here, there in zip(names, *results, strict=True):
                        wrong = differing_bits(there, here)
                        label = f"rope {dtype} {layout} {width} interleaved={interleaved}: {which}"
                        if wrong:
                            differ.append(f"{label}: {wrong} of {here.numel()} differ in bits")
                        count += 1
    return count, differ


def large(dtype: torch.dtype) -> Iterator[Row]:
    """Out of place and in place, beside a copy of the same bytes."""
    case = on_gpu(RopeCase(SIZES.largest, dtype))
    out = (torch.empty_like(case.q), torch.empty_like(case.k))
    rows = {
        "out of place": lambda: case.ours(case.q, case.k),
        "in place": lambda: case.ours(case.q, case.k, inplace=True),
    }
    moved = 2 * (case.q.nbytes + case.k.nbytes)

    def copy() -> None:
        out[0].copy_(case.q)
        out[1].copy_(case.k)

    times = time_on_gpu({**rows, "copy": copy})
    for name in rows:
        yield at_most(
            f"rope {case.label} {name}",
            times[name],
            times["copy"],
            "copy_",
            COPY_SHARE,
            bytes=moved,
        )


def against_peers(dtype: torch.dtype) -> Iterator[Row]:
    case = on_gpu(RopeCase(SIZES.usual, dtype, "bhsd"))
    arguments = (case.q, case.k, case.wide_cos, case.wide_sin)
    peers: dict[str, tuple[Callable[[], object], float]] = {
        "eager": (lambda: rotate_eagerly(*arguments), 3.0)
    }
    compiled = torch.compile(rotate_eagerly, dynamic=False)
    try:
        compiled(*arguments)
        peers["torch.compile"] = (lambda: compiled(*arguments), 1.0)
    except Exception as error:  # no Triton or no compiler here: say so and go on
        print(f"  torch.compile does not run here: {error}".splitlines()[0], file=sys.stderr)
    peers |= installed_peers(case)
    times = time_on_gpu(
        {"ours": lambda: case.ours(case.q, case.k)} | {name: p[0] for name, p in peers.items()}
    )
    for name, (_, bound) in peers.items():
        yield faster(f"rope {case.label}", times["ours"], times[name], name, bound)


def installed_peers(case: RopeCase) -> dict[str, tuple[Callable[[], object], float]]:
    """transformers' function, and the Triton kernels of Liger and flash-attn, where installed."""
    found: dict[str, tuple[Callable[[], object], float]] = {}
    cos, sin = (t.view(1, -1, t.shape[-1]) for t in (case.wide_cos, case.wide_sin))
    try:
        from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

        found["transformers"] = (lambda: apply_rotary_pos_emb(case.q, case.k, cos, sin), 3.0)
    except ImportError:
        print("  transformers is not installed", file=sys.stderr)
    try:
        from liger_kernel.transformers.rope import liger_rotary_pos_emb

        found["Liger (Triton)"] = (lambda: liger_rotary_pos_emb(case.q, case.k, cos, sin), 1.0)
    except ImportError:
        print("  liger_kernel is not installed", file=sys.stderr)
    try:
        from flash_attn.ops.triton.rotary import apply_rotary

        half = case.cos.to(case.dtype), case.sin.to(case.dtype)
        q, k = case.q.transpose(1, 2), case.k.transpose(1, 2)
        found["flash-attn (Triton)"] = (lambda: [apply_rotary(t, *half) for t in (q, k)], 1.0)
    except ImportError:
        print("  flash_attn is not installed", file=sys.stderr)
    return found


def backward() -> Iterator[Row]:
    case = on_gpu(RopeCase(SIZES.usual, torch.bfloat16, "bhsd"))
    q, k = (t.requires_grad_() for t in (case.q, case.k))
    grads = torch.randn_like(q), torch.randn_like(k)
    arguments = (case.wide_cos, case.wide_sin)
    times = time_on_gpu(
        {
            "ours": lambda: torch.autograd.grad(case.ours(q, k), (q, k), grads),
            "eager": lambda: torch.autograd.grad(rotate_eagerly(q, k, *arguments), (q, k), grads),
        }
    )
    yield faster("rope forward and backward", times["ours"], times["eager"], "eager", 4.0)


def decode() -> Iterator[Row]:
    case = on_gpu(RopeCase((1, 1, 32, 128), torch.bfloat16))
    arguments = (case.q, case.k, case.wide_cos, case.wide_sin)
    calls = {
        "ours": lambda: case.ours(case.q, case.k),
        "eager": lambda: rotate_eagerly(*arguments),
    }
    times = time_on_gpu(calls, calls=100, ahead=0)
    yield faster("rope decode", times["ours"], times["eager"], "eager", 3.0)


def other_ops() -> Iterator[Row]:
    """Tables, sinusoidal and ALiBi beside a fill, a copy or softmax of the same bytes."""
    frequencies = posenc_ext.rope_frequencies(128).inv_freq.cuda()
    n = SIZES.tokens
    positions = torch.arange(SIZES.table, device="cuda")
    x = torch.randn(8, n, n, device="cuda", dtype=torch.bfloat16)
    scores = torch.randn(1, 32, n, n, device="cuda", dtype=torch.bfloat16)
    slopes = posenc_ext.alibi_slopes(32).cuda()
    table, y = torch.empty(2, len(positions), 64, device="cuda"), torch.empty_like(x)
    bias = torch.empty(32, n, n, device="cuda")
    pairs: dict[str, tuple[Callable[[], object], str, Callable[[], object], float, int]] = {
        "rope_table": (
            lambda: posenc_ext.rope_table(positions, frequencies),
            "fill_", lambda: table.fill_(1), 1.3, table.nbytes,
        ),
        "add_sinusoidal": (
            lambda: posenc_ext.add_sinusoidal(x), "copy_", lambda: y.copy_(x), COPY_SHARE,
            2 * x.nbytes,
        ),
        "alibi_bias": (
            lambda: posenc_ext.alibi_bias(slopes, n), "fill_", lambda: bias.fill_(1), COPY_SHARE,
            bias.nbytes,
        ),
        "add_alibi in place": (
            lambda: posenc_ext.add_alibi(scores, slopes, inplace=True),
            "mul_", lambda: scores.mul_(1), COPY_SHARE, 2 * scores.nbytes,
        ),
        "alibi_softmax": (
            lambda: posenc_ext.alibi_softmax(scores, slopes),
            "softmax", lambda: scores.softmax(-1), 1.25, 2 * scores.nbytes,
        ),
    }  # fmt: skip
    for name, (ours, limit_name, limit, bound, moved) in pairs.items():
        times = time_on_gpu({"ours": ours, "limit": limit})
        yield at_most(name, times["ours"], times["limit"], limit_name, bound, bytes=moved)


def rows() -> Iterator[Row]:
    for dtype in DTYPES[:2]:
        yield from large(dtype)
        yield from against_peers(dtype)
    yield from backward()
    yield from decode()
    yield from other_ops()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.bench_gpu")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--checks-only", action="store_true")
    parser.add_argument("--rehearse", action="store_true")
    options = parser.parse_args()
    if not torch.cuda.is_available() or not posenc_ext._C.build_info()["cuda"]:
        raise Skipped("needs a GPU and a build with CUDA: nothing was run")
    if options.rehearse:
        vars(SIZES).update(vars(SMALL))
    count, differ = check_rope()
    print("\n".join(differ[:50]))
    print(f"{count - len(differ)} of {count} results of CUDA have the bits of the CPU's")
    if options.checks_only:
        return 1 if differ and not options.rehearse else 0
    facts = environment() | {
        "gpu": torch.cuda.get_device_name(),
        "capability": ".".join(map(str, torch.cuda.get_device_capability())),
        "cuda": torch.version.cuda,
        "driver": torch.cuda.driver_version() if hasattr(torch.cuda, "driver_version") else None,
    }
    print("{gpu} sm_{capability}, CUDA {cuda}, torch {torch}, commit {commit}\n".format(**facts))
    done = []
    for row in rows():
        done.append(row)
        if options.json:  # after each row, so that a later fault does not lose it
            write_json(options.json, (facts | dataclasses.asdict(row) for row in done))
    print_table(done, judged=not options.rehearse)
    missed = [row.case for row in done if not row.met and row.judged]
    if options.rehearse:
        return 0
    if differ:
        print(f"{len(differ)} of {count} results differ in bits from the CPU's: see above")
    if missed:
        print(f"{len(missed)} of {len(done)} targets missed: {', '.join(missed)}")
    return 1 if differ or missed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Skipped as problem:
        sys.exit(str(problem))
