"""PEP 517 backend: setuptools, with the torch of the environment that is being installed into.

pip builds in an isolated environment that hides the target's packages, but an extension must be
compiled against the torch it will run with. So the torch of the target is put at the end of
sys.path; torch becomes a build requirement only when the target has none.

Other front ends (uv, poetry, pdm, build) make a virtual environment for the build and say nothing
of the target. There the build asks for the torch that POSENC_TORCH names, or is refused: the newest
one would replace the user's in the end.
"""

import glob
import importlib.util
import os
import shutil
import subprocess
import sys

from setuptools import __version__ as setuptools_version
from setuptools import build_meta


def target_paths():
    """Return sys.path as the target's own Python sees it, without what the isolation put there."""
    hidden = ("PYTHONPATH", "PYTHONNOUSERSITE")
    env = {name: value for name, value in os.environ.items() if name not in hidden}
    code = "import sys; print(*filter(None, sys.path), sep='\\n')"
    answer = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    return answer.stdout.splitlines()


def find_torch():
    """Make torch importable from the target environment; return whether it is."""
    if importlib.util.find_spec("torch") is None:
        before = list(sys.path)
        # At the end: what the isolated environment pins, setuptools above all, must win.
        sys.path += [path for path in target_paths() if path not in before]
        importlib.invalidate_caches()
        if importlib.util.find_spec("torch") is None:
            sys.path[:] = before
            return False
    return True


def add_own_programs_to_path():
    # `venv/bin/pip install` works without activating the venv; ninja may lie beside pip.
    os.environ["PATH"] += os.pathsep + os.path.dirname(sys.executable)


def torch_requirement():
    """Return what to ask for where no torch is found."""
    asked = os.environ.get("POSENC_TORCH")
    if not asked and "PIP_BUILD_TRACKER" not in os.environ:  # which pip sets
        raise SystemExit(
            "posenc_ext: the torch to build against is hidden from an isolated build: install "
            "torch, setuptools>=77.0.3 and ninja and build without isolation, as with "
            "`uv pip install --no-build-isolation .`, or name it: POSENC_TORCH='torch==...'"
        )
    return asked or "torch"


def build_requirements():
    add_own_programs_to_path()
    needed = [] if find_torch() else [torch_requirement()]
    return needed if shutil.which("ninja") else [*needed, "ninja"]


def prepare():
    if int(setuptools_version.split(".")[0]) < 77:
        raise SystemExit(
            f"posenc_ext: building needs setuptools 77 or newer, got {setuptools_version}: "
            "pip install -U setuptools"
        )
    add_own_programs_to_path()
    find_torch()


def get_requires_for_build_sdist(config_settings=None):
    return []


def get_requires_for_build_wheel(config_settings=None):
    return build_requirements()


def get_requires_for_build_editable(config_settings=None):
    return build_requirements()


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    prepare()
    return build_meta.prepare_metadata_for_build_wheel(metadata_directory, config_settings)


def prepare_metadata_for_build_editable(metadata_directory, config_settings=None):
    prepare()
    return build_meta.prepare_metadata_for_build_editable(metadata_directory, config_settings)


def build_sdist(sdist_directory, config_settings=None):
    return build_meta.build_sdist(sdist_directory, config_settings)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    prepare()
    for stale in glob.glob("build/lib*"):  # a file deleted from the package must not come back
        shutil.rmtree(stale)
    return build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    prepare()
    return build_meta.build_editable(wheel_directory, config_settings, metadata_directory)
