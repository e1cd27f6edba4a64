"""Run a command whose libraries hold AddressSanitizer and UBSan: sanitized.py COMMAND ...

Their runtimes are loaded before all else, since python itself is built without them. Leaks are not
looked for.
"""

import os
import subprocess
import sys

FLAGS = "-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer"


def environment() -> dict[str, str]:
    """What a process needs in its environment."""
    compiler = os.environ.get("CXX", "g++")
    found = []
    # libstdc++ too: without it, the first exception that torch throws ends the process.
    for name in ("libasan.so", "libubsan.so", "libstdc++.so"):
        command = [compiler, f"-print-file-name={name}"]
        path = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
        if not os.path.isabs(path):
            raise FileNotFoundError(f"{compiler} has no {name}")
        found.append(path)
    return {
        "LD_PRELOAD": ":".join(found),
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTEST_ADDOPTS": "-s",  # what it captures is lost when a fault ends the process
        "POSENC_SANITIZED": "1",
    }


if __name__ == "__main__":
    os.execvpe(sys.argv[1], sys.argv[1:], os.environ | environment())
