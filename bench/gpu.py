"""Everything that only a GPU can tell, in under ten minutes: python3 bench/gpu.py [--json FILE]

Builds in place for the GPU at hand, runs the CUDA tests, runs the checks once more under
compute-sanitizer where there is one, and times every op (bench/bench_gpu.py). A test may skip for
want of a second GPU or of memory only. Needs a torch with CUDA, nvcc, setuptools, numpy and pytest;
no network. Exits with 0 only if all of it ran and passed, and every target was met. Without a GPU
it runs nothing and says so. --rehearse: small shapes, and nothing judged, as on a stand-in for the
CUDA runtime, which computes nothing.
"""

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 570  # seconds in all
FOLDERS = ("tests", "examples", ".")  # that tests import from
BEGIN = time.monotonic()


def left(share: float = 1.0) -> float:
    """Seconds that a step may take: a share of what is left."""
    return max(1.0, share * (LIMIT - (time.monotonic() - BEGIN)))


def step(title: str, command: list[str], seconds: float, **env: str) -> bool:
    """Run one step; False if it fails or takes too long."""
    print(f"== {title}: {' '.join(command)[:200]}", flush=True)
    start = time.monotonic()
    try:
        status = subprocess.run(command, cwd=ROOT, env=os.environ | env, timeout=seconds).returncode
    except subprocess.TimeoutExpired:
        status = "too slow"
    print(f"== {title}: exit {status} after {time.monotonic() - start:.0f} s\n", flush=True)
    return status == 0


def without_gpu() -> str:
    """Why nothing can run here, or an empty string."""
    try:
        import torch
    except ModuleNotFoundError:
        return f"{sys.executable} has no torch"
    if torch.version.cuda is None:
        return f"torch {torch.__version__} of {sys.executable} has no CUDA"
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} sees no GPU"
    return ""


def lacks(path: Path, seen: set[Path] | None = None) -> set[str]:
    """Missing modules that a test file needs, or another that it imports from FOLDERS."""
    seen = set() if seen is None else seen
    seen.add(path)
    text = path.read_text()
    names = set(re.findall(r"^(?:from|import) (\w+)", text, re.MULTILINE))
    names -= set(re.findall(r"importorskip\(\"(\w+)", text))  # no reason for others not to run
    names |= {"expecttest"} if "opcheck" in text else set()
    missing = set()
    for name in names - {"posenc_ext"}:
        own = [ROOT / folder / f"{name}.py" for folder in FOLDERS]
        own = [file for file in own if file.exists()]
        if own:
            missing |= set().union(*(lacks(file, seen) for file in own if file not in seen))
        elif importlib.util.find_spec(name) is None:
            missing.add(name)
    return missing


def run_tests(python: str, more: list[str], **env: str) -> bool:
    """The tests marked cuda, none of which may skip for want of CUDA; False if any file could not
    run. pytest lists those that skip for want of a second GPU or of memory."""
    if importlib.util.find_spec("pytest") is None:
        print("pytest is not installed: the tests were not run\n")
        return False
    missing = {path: lacks(path) for path in sorted((ROOT / "tests").glob("test_*.py"))}
    for path, names in missing.items():
        if names:
            print(f"{path.name} cannot run without {', '.join(sorted(names))}")
    files = [str(path) for path, names in missing.items() if not names]
    chosen = ["--maxfail=20", "-m", "cuda and not slow", *more]
    command = [python, "-m", "pytest", "-q", *chosen, *files]
    passed = bool(files) and step("tests", command, left(0.5), FAIL_WITHOUT_CUDA="1", **env)
    return passed and not any(missing.values())


def main() -> int:
    parser = argparse.ArgumentParser(prog="python3 bench/gpu.py")
    parser.add_argument("--json", metavar="FILE", default="build/gpu.json", help="where to")
    parser.add_argument("--no-build", action="store_true", help="take the module that is there")
    parser.add_argument(
        "--rehearse", action="store_true", help="see above; collects the tests only"
    )
    options = parser.parse_args()
    rehearse = ["--rehearse"] if options.rehearse else []
    reason = without_gpu()
    if reason:
        print(f"nothing was run: {reason}. This needs an NVIDIA GPU and a torch with CUDA.")
        return 1

    python = sys.executable
    done: dict[str, bool] = {}
    if not options.no_build:
        build = [python, "setup.py", "-q", "build_ext", "--inplace"]
        done["build"] = step("build", build, left(0.5), POSENC_CUDA="1")
        if not done["build"]:
            print("nothing was run: the build failed")
            return 1
    # What was built here, whether or not another is installed.
    path = {"PYTHONPATH": str(ROOT), "POSENC_MODULE_DIR": str(ROOT / "posenc_ext")}
    checks = [python, "-m", "bench.bench_gpu", "--checks-only", *rehearse]
    done["checks"] = step("checks", checks, left(0.3), **path)
    done["tests"] = run_tests(python, ["--collect-only"] * options.rehearse, **path)
    sanitizer = shutil.which("compute-sanitizer") or shutil.which(
        "compute-sanitizer", path="/usr/local/cuda/bin"
    )
    if sanitizer and not options.rehearse:
        command = [sanitizer, "--error-exitcode", "9", *checks]
        done["compute-sanitizer"] = step("compute-sanitizer", command, left(0.4), **path)
    else:
        print("compute-sanitizer was not run: not installed, or a rehearsal\n")
    Path(options.json).parent.mkdir(parents=True, exist_ok=True)
    timings = [python, "-m", "bench.bench_gpu", "--json", options.json, *rehearse]
    done["timings"] = step("timings", timings, left(), **path)

    for name, passed in done.items():
        print(f"{name}: {'passed' if passed else 'FAILED'}")
    return 0 if all(done.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
