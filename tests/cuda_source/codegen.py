"""What nvcc makes of every kernel: python tests/cuda_source/codegen.py [--write] [ARCH ...]

Compiles csrc/cuda/*_kernels.cu for each architecture of setup.py that the toolkit knows. Fails when
a kernel spills, uses local memory, contracts to FMA, or when an aligned kernel lacks 16-byte loads
or stores of global memory or splits such stores. Prints registers, shared memory and occupancy.
--write puts that table into docs/cuda.md; without it, the table there must be what this toolkit
gives. Counts the machine code for 9.0 too (sass.py), in a table of its own. Needs nvcc, no GPU, and
nvdisasm for the counts.
"""

import argparse
import ast
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import sass

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/cuda.md"
MARKS = "<!-- codegen -->\n", "<!-- /codegen -->\n"
COUNT_MARKS = "<!-- counts -->\n", "<!-- /counts -->\n"
COUNTED_ARCH = "9.0"
FLAGS = ["-std=c++20", "-O3", "--fmad=false"]
THREADS = 256  # kThreads in csrc/cuda/device.cuh

# Threads, blocks and KB of shared memory of a multiprocessor; registers are 64 K everywhere.
LIMITS = {
    "7.5": (1024, 16, 64),
    "8.0": (2048, 32, 164),
    "8.6": (1536, 16, 100),
    "8.9": (1536, 24, 100),
    "9.0": (2048, 32, 228),
    "10.0": (2048, 32, 228),
    "12.0": (1536, 24, 100),
}
WIDE_LOAD = r"ld\.global(\.\w+)*\.v(4\.[bufs]+32|2\.[bufs]+64)"
WIDE_STORE = r"st\.global(\.\w+)*\.v(4\.[bufs]+32|2\.[bufs]+64)"
# Parts of 16 bytes: of any type, and of elements of 2 bytes.
SPLIT_STORE = r"st\.global(\.\w+)*\.(v2\.[bufs]+(16|32)|v4\.[bufs]+16)\b"
SPLIT_STORE_OF_HALVES = SPLIT_STORE + r"|st\.global(?!\.v4)(\.\w+)*\.[bus]32\b"


def constant(name):
    """A tuple or number that setup.py assigns at top level."""
    for node in ast.parse((ROOT / "setup.py").read_text()).body:
        if isinstance(node, ast.Assign) and node.targets[0].id == name:
            return ast.literal_eval(node.value)
    raise LookupError(name)


def run(*command):
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{result.stdout}{result.stderr}")
    return result.stdout + result.stderr


def demangled(names):
    lines = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True)
    short = []
    for line in lines.stdout.splitlines():
        name = line.replace("posenc::(anonymous namespace)::", "").replace("posenc::", "")
        short.append(re.sub(r"^void |\(.*\)$", "", name))
    return dict(zip(names, short, strict=True))


def is_aligned(kernel):
    """By convention the last template argument says so, of kernels that have both paths."""
    return kernel.endswith(", true>") and not kernel.startswith(NO_WIDE_PATH)


# Kernels that make what they write, or that write sums only.
ONLY_STORES = r"(alibi_cells|table)_kernel<.*, false, true>$|relative_gather_kernel<"
ONLY_LOADS = r"alibi_slope_grad_kernel<"

# Kernels whose last template argument is the layout of the pairs.
NO_WIDE_PATH = ("rope_table_grad_kernel", "norm_parameters_kernel")


def resources(source, arch, folder):
    """{kernel: (registers, shared bytes)} of one file on one architecture; counts of its machine
    code; and what is wrong."""
    sm = arch.replace(".", "")
    out = folder / f"{source.stem}.{sm}.cubin"
    options = [*FLAGS, f"-I{source.parents[1]}", f"-arch=sm_{sm}", "-Xptxas", "-v", "-cubin"]
    text = run("nvcc", *options, "-o", out, source)
    found, faults = {}, []
    for part in text.split("Compiling entry function '")[1:]:
        kernel = part.split("'")[0]
        memory = [int(n) for n in re.findall(r"(\d+) bytes (?:stack frame|spill|lmem)", part)]
        if any(memory):
            faults.append(f"sm_{sm} {kernel}: uses local memory: {memory}")
        shared = re.search(r"(\d+) bytes smem", part)
        registers = int(re.search(r"Used (\d+) registers", part)[1])
        found[kernel] = registers, int(shared[1]) if shared else 0
    if not found:
        faults.append(f"sm_{sm} {source.name}: no kernel in it")
    counts = sass.count(out, found, demangled(list(found))) if arch == COUNTED_ARCH else {}
    return found, counts, faults


def wide_access(source, folder):
    """What is wrong with the PTX of one file."""
    out = folder / f"{source.stem}.ptx"
    run("nvcc", *FLAGS, f"-I{source.parents[1]}", "-arch=compute_80", "-ptx", "-o", out, source)
    faults = []
    bodies = dict(re.findall(r"\.entry (\w+)\((.*?)\n\}", out.read_text(), re.DOTALL))
    names = demangled(list(bodies))
    for kernel, body in bodies.items():
        if "fma." in body:
            faults.append(f"{names[kernel]}: contracts to FMA")
        if re.search(r"\b(ld|st)\.local", body):
            faults.append(f"{names[kernel]}: has local memory in PTX")
        loads = bool(re.search(WIDE_LOAD, body)) or bool(re.match(ONLY_STORES, names[kernel]))
        stores = bool(re.search(WIDE_STORE, body)) or bool(re.match(ONLY_LOADS, names[kernel]))
        if not is_aligned(names[kernel]):
            continue
        if not (loads and stores):
            faults.append(f"{names[kernel]}: lacks 16-byte loads or stores")
        split = SPLIT_STORE_OF_HALVES if "f16" in names[kernel] else SPLIT_STORE
        if re.search(split, body) and not re.match(ONLY_LOADS, names[kernel]):
            faults.append(f"{names[kernel]}: splits 16-byte stores")
    return faults


def occupancy(arch, registers, shared):
    """Resident threads, in percent of what a multiprocessor holds."""
    threads, blocks, kilobytes = LIMITS[arch]
    warp = -(-registers * 32 // 256) * 256
    by_registers = 65536 // (warp * THREADS // 32)
    block_bytes = shared + (0 if arch == "7.5" else 1024)
    by_memory = kilobytes * 1024 // block_bytes if block_bytes else blocks
    return 100 * min(blocks, threads // THREADS, by_registers, by_memory) * THREADS // threads


def table(archs, by_arch):
    release = re.search(r"release ([\d.]+), V([\d.]+)", run("nvcc", "--version"))[2]
    names = demangled(sorted({kernel for found in by_arch.values() for kernel in found}))
    lines = [f"Registers and occupancy by nvcc {release}, blocks of {THREADS} threads:", ""]
    lines.append(
        "| kernel | shared | " + " | ".join(f"sm_{a.replace('.', '')}" for a in archs) + " |"
    )
    lines.append("|---" * (len(archs) + 2) + "|")
    for kernel in sorted(names, key=names.get):
        shared = max(found[kernel][1] for found in by_arch.values())
        cells = []
        for arch in archs:
            registers, memory = by_arch[arch][kernel]
            cells.append(f"{registers}, {occupancy(arch, registers, memory)} %")
        lines.append(f"| `{names[kernel]}` | {shared} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def count_table(found, counts):
    """What sass.py counted, beside the bytes that a multiprocessor has in flight."""
    lines = [
        f"Machine code of sm_{COUNTED_ARCH.replace('.', '')}: instructions of a lane for each byte "
        f"moved (at most {sass.LANES_PER_BYTE} leave an H200 memory bound), and KB in flight:",
        "",
        "| kernel | call | instructions per byte | at most 4.5 | KB in flight |",
        "|---" * 5 + "|",
    ]
    names = demangled(sorted(counts))
    for kernel in sorted(counts, key=names.get):
        case, per_byte, loads = counts[kernel]
        threads = occupancy(COUNTED_ARCH, *found[kernel]) * LIMITS[COUNTED_ARCH][0] / 100
        kept = "yes" if per_byte <= sass.LANES_PER_BYTE else "no"
        flight = f"{loads * 16 * threads / 1024:.0f}" if loads else ""
        lines.append(f"| `{names[kernel]}` | {case} | {per_byte:.1f} | {kept} | {flight} |")
    return "\n".join(lines) + "\n"


def put(page, marks, text, write):
    """The page with `text` between the marks; a page that shows another one fails."""
    before, _, rest = page.partition(marks[0])
    old, _, after = rest.partition(marks[1])
    if write:
        return before + marks[0] + text + marks[1] + after
    if text.splitlines()[0] in old and old != text:
        sys.exit("docs/cuda.md shows another table: python tests/cuda_source/codegen.py --write")
    return page


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("archs", nargs="*")
    parser.add_argument("--write", action="store_true", help="put the table into docs/cuda.md")
    parser.add_argument("--csrc", type=Path, default=ROOT / "csrc", help="whose kernels")
    options = parser.parse_args()
    known = run("nvcc", "--list-gpu-arch").split()
    all_archs = [a for a in constant("CUDA_ARCHS") if f"compute_{a.replace('.', '')}" in known]
    archs = options.archs or all_archs
    sources = sorted((options.csrc / "cuda").glob("*_kernels.cu"))
    jobs = int(os.environ.get("MAX_JOBS") or os.cpu_count() or 1)
    by_arch, counts, faults = {arch: {} for arch in archs}, {}, []
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(jobs) as pool:
        folder = Path(name)
        pairs = [(arch, source) for source in sources for arch in archs]
        ptx = [pool.submit(wide_access, source, folder) for source in sources]
        for (arch, _), (found, counted, wrong) in zip(
            pairs, pool.map(lambda p: resources(p[1], p[0], folder), pairs), strict=True
        ):
            by_arch[arch] |= found
            counts |= counted
            faults += wrong
        for future in ptx:
            faults += future.result()
    if faults:
        sys.exit("\n".join(faults))
    text = table(archs, by_arch)
    print(text)
    print(
        f"{len(by_arch[archs[0]])} kernels on {len(archs)} architectures: no spills, no local "
        "memory, no FMA, 16-byte access where aligned"
    )
    if counts:
        print(count_table(by_arch[COUNTED_ARCH], counts))
    elif COUNTED_ARCH in archs:
        print("no nvdisasm (pip install nvidia-cuda-nvdisasm): machine code was not counted")
    if archs != all_archs:
        return
    page = put(PAGE.read_text(), MARKS, text, options.write)
    if counts:
        page = put(page, COUNT_MARKS, count_table(by_arch[COUNTED_ARCH], counts), options.write)
    if options.write:
        PAGE.write_text(page)


if __name__ == "__main__":
    main()
