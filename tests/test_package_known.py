"""Faults of builds, threads and launches reported elsewhere: see docs/known_failures.md."""

import importlib.util
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CSRC = ROOT / "csrc"
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, and forks")


def run_python(code):
    """What the code prints, in a process of its own which a hang must not outlive."""
    done = subprocess.run(
        [sys.executable, "-c", "import posenc_ext, torch\n" + code],
        env=os.environ | {"OMP_NUM_THREADS": "2", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


# Threads.

LARGE = {
    "rope": "posenc_ext.rope(x, c, c)",
    "rope_table": "posenc_ext.rope_table(4096, torch.ones(32, dtype=torch.float64))",
    "sinusoidal_table": "posenc_ext.sinusoidal_table(4096, 256)",
    "add_sinusoidal": "posenc_ext.add_sinusoidal(x[:, :, 0])",
    "alibi_bias": "posenc_ext.alibi_bias(slopes, 512)",
    "rope_table_grad": "torch.ops.posenc_ext.rope_table_grad(x, x, c, c, *options)",
    "relative_gather": "posenc_ext.relative_gather(scores, distances)",
    "alibi_softmax": "posenc_ext.alibi_softmax(scores, slopes)",
}
SMALL = (
    "posenc_ext.rope(x[:, :2], c, c)",
    "posenc_ext.sinusoidal_table(4, 8)",
    "posenc_ext.alibi_bias(slopes, 4)",
)
SETUP = """if True:
    import os
    torch.set_num_threads(1)
    x, c = torch.ones(1, 2048, 16, 64), torch.ones(2048, 32)
    slopes, scores = torch.ones(8), torch.ones(1, 8, 512, 512)
    distances = torch.arange(1023) % 512
    options = None, None, None, 0, "bshd", False, False, False
"""


@on_linux
def test_large_calls_use_the_threads_that_are_set_and_small_ones_start_none():
    """Without OpenMP in its own flags, at::parallel_for in an extension is a plain loop."""
    calls = [f"lambda: {call}," for call in (*LARGE.values(), *SMALL)]
    code = f"""{SETUP}
    import threading, time
    def tasks():
        return len(os.listdir("/proc/self/task"))
    def started(call):
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            before = tasks()
            call()
            print(tasks() - before)
    at_rest = tasks()
    for call in ({"".join(calls)}):
        thread = threading.Thread(target=started, args=(call,))  # each has a pool of its own
        thread.start()
        thread.join()
        while tasks() > at_rest:  # its threads end a little later
            time.sleep(0.01)
    """
    right = ["0", "1", "1"] * len(LARGE) + ["0", "0", "0"] * len(SMALL)
    assert run_python(code) == right


@on_linux
@pytest.mark.parametrize("threads", [1, 3])
def test_a_child_of_a_threaded_parent_finishes(threads):
    """OpenMP's threads do not survive fork(), whatever number the child asks for.

    torch's own large operations wait for them for ever, so results are compared with one thread.
    """
    code = f"""{SETUP}
    import warnings
    warnings.simplefilter("ignore", DeprecationWarning)
    def run():
        return [{", ".join(LARGE.values())}]
    def flat(results):
        return [t for r in results for t in (r if isinstance(r, tuple) else (r,))]
    torch.set_num_threads(2)
    right = flat(run())
    child = os.fork()
    if not child:
        torch.set_num_threads({threads})
        results = flat(run())
        torch.set_num_threads(1)
        os._exit(0 if all(map(torch.equal, results, right)) else 1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return 4
        def __getitem__(self, index):
            return run()[0][0, index]
    loader = torch.utils.data.DataLoader(Rows(), num_workers=2, multiprocessing_context="fork")
    print(torch.equal(torch.cat(list(loader)), right[0][0, :4]))
    """
    assert run_python(code) == ["0", "True"]


# Launches.


def argument_spans(text, function):
    """Where the arguments of each call of `function` begin and end."""
    for call in re.finditer(rf"\b{function}\(", text):
        depth, end = 1, call.end()
        while depth:
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        yield call.end(), end


def test_every_launch_is_checked():
    sources = [
        p for p in CSRC.rglob("*") if p.is_file() and p.suffix in (".cu", ".cuh", ".h", ".cpp")
    ]
    launching = {p.name: p.read_text().count("<<<") for p in sources if "<<<" in p.read_text()}
    assert launching == {"device.cuh": 1}  # POSENC_LAUNCH, which takes a stream
    (check,) = (p.name for p in sources if "C10_CUDA_KERNEL_LAUNCH_CHECK();" in p.read_text())
    assert check == "launch.h"
    checked = 0
    for path in CSRC.glob("cuda/*.cpp"):
        text = path.read_text()
        spans = list(argument_spans(text, "launch_on_device_of"))
        code = re.sub(r"//.*", lambda comment: " " * len(comment[0]), text)
        for used in re.finditer(r"\bstream\b|\blaunch_(?!on_device_of)\w+\(", code):
            assert any(begin < used.start() < end for begin, end in spans), path.name
        checked += len(spans)
    assert checked >= 8


# Builds.


@pytest.mark.parametrize(
    ("platform", "flags"),
    [("darwin", ([], [])), ("win32", (["/openmp"], []))],
)
def test_openmp_flags_are_those_the_compiler_knows(platform, flags, monkeypatch):
    setup = runpy.run_path(str(ROOT / "setup.py"), run_name="not_main")
    monkeypatch.setattr(sys, "platform", platform)
    assert setup["openmp_flags"]() == flags


def test_intrinsics_are_compiled_for_x86_only():
    """An arm64 compiler never sees immintrin.h."""
    users = [p for p in CSRC.rglob("*") if p.is_file() and "<immintrin.h>" in p.read_text()]
    assert [p.name for p in users] == ["for_each_isa.h"]
    guards = []
    for line in users[0].read_text().splitlines():
        if re.match(r"#\s*if", line):
            guards.append(line)
        elif re.match(r"#\s*endif", line):
            guards.pop()
        elif "<immintrin.h>" in line:
            assert any("__x86_64__" in guard for guard in guards)
            return
    pytest.fail("no line includes it")


@pytest.mark.parametrize("there", [False, True], ids=["without", "with"])
def test_ninja_is_asked_for_where_there_is_none(there, monkeypatch):
    spec = importlib.util.spec_from_file_location("backend", ROOT / "build_backend/posenc_build.py")
    backend = importlib.util.module_from_spec(spec)
    monkeypatch.setenv("PATH", os.environ["PATH"])  # which the backend adds to
    spec.loader.exec_module(backend)
    monkeypatch.setattr(backend.shutil, "which", lambda name: "/bin/ninja" if there else None)
    assert backend.build_requirements() == ([] if there else ["ninja"])


def test_the_limit_of_compile_jobs_is_documented():
    assert "MAX_JOBS" in (ROOT / "docs/install.md").read_text()
