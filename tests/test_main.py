"""`python -m posenc_ext`: its commands, their output and their exit statuses."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import posenc_ext
from posenc_ext import kept, self_check
from posenc_ext.__main__ import main
from posenc_ext.op_checks import CHECKS, Case

PNG = b"\x89PNG\r\n"
QWEN = {
    "model_type": "qwen2",
    "head_dim": 128,
    "rope_theta": 1000000.0,
    "max_position_embeddings": 32768,
    "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
}


def test_info_says_what_is_installed(capsys):
    assert main(["info"]) == 0
    facts = dict(
        re.split(r"  +", line, maxsplit=1) for line in capsys.readouterr().out.splitlines()
    )
    assert facts["posenc_ext"] == posenc_ext.__version__
    assert facts["torch"].startswith(torch.__version__)
    assert facts["instruction set"] == posenc_ext._C.cpu_capability()
    assert facts["threads"] == str(torch.get_num_threads())
    assert facts["OpenMP"] == "yes"
    assert facts["fast-math"] == "no"
    assert facts["compiler"] == posenc_ext._C.build_info()["compiler"]
    assert {"folder", "python", "CUDA", "GPUs"} <= set(facts)


def test_check_passes_and_names_every_op_and_dtype(capsys):
    assert main(["check"]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert all(line.startswith("ok ") for line in lines)
    assert re.fullmatch(r"(\d+) of \1 checks passed in \d+\.\d s", last)
    for op in CHECKS:
        for dtype in ("float32", "float64", "bfloat16", "float16"):
            assert any(re.match(rf"ok +{op} +{dtype} ", line) for line in lines), (op, dtype)


class Record(torch.utils._python_dispatch.TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.ops = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.ops.add(func.name())
        return func(*args, **(kwargs or {}))


def test_check_runs_every_op_of_the_library(monkeypatch):
    monkeypatch.setattr(kept, "_constants", {})  # frequencies are made once
    with Record() as record:
        for result in self_check.run():
            assert result.passed, result
    names = torch._C._dispatch_get_all_op_names()
    ours = {name for name in names if name.startswith("posenc_ext::")}
    assert ours - {op.removesuffix(".default") for op in record.ops} == set()


@pytest.mark.parametrize("op", sorted(op for op in CHECKS if hasattr(posenc_ext, op)))
def test_check_fails_for_an_op_that_is_a_little_wrong(op, monkeypatch, capsys):
    right = getattr(posenc_ext, op)

    def wrong(*args, **kwargs):
        result = right(*args, **kwargs)
        if isinstance(result, torch.Tensor):
            return result * 1.05
        return result[0], result[1] * 1.05

    monkeypatch.setattr(self_check, "CHECKS", {op: CHECKS[op]})
    assert main(["check"]) == 0
    monkeypatch.setattr(posenc_ext, op, wrong)
    assert main(["check"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line[:6] for line in lines] == ["ok    "] * 4 + ["4 of 4"] + ["FAILED"] * 4 + ["0 of 4"]


def test_check_fails_for_wrong_gradients(monkeypatch, capsys):
    right = torch.autograd.grad
    monkeypatch.setattr(
        torch.autograd, "grad", lambda *args: [grad * 1.05 for grad in right(*args)]
    )
    assert main(["check"]) == 1
    failed = re.findall(r"^FAILED (.+?)  ", capsys.readouterr().out, re.MULTILINE)
    assert {"rope gradients", "add_sinusoidal", "alibi_bias", "alibi_softmax"} <= set(failed)


def test_check_reports_an_op_that_raises_and_goes_on(monkeypatch, capsys):
    def broken(*args, **kwargs):
        raise RuntimeError("no kernel")

    monkeypatch.setattr(posenc_ext, "rope_table", broken)
    assert main(["check"]) == 1
    output = capsys.readouterr().out
    assert re.search(r"^FAILED rope_table +float32 +cpu +RuntimeError: no kernel$", output, re.M)
    assert re.search(r"^ok +alibi_softmax", output, re.M)


@pytest.mark.parametrize("wrong", ["nan", "inf", "shape"])
def test_an_error_is_never_taken_for_a_match(wrong):
    want = torch.tensor([1.0, 2.0], dtype=torch.float64)
    got = {
        "nan": torch.tensor([1.0, float("nan")]),
        "inf": torch.tensor([1.0, float("inf")]),
        "shape": torch.tensor([1.0, 2.0, 3.0]),
    }[wrong]
    error = self_check.error_of(got, want, torch.float32)
    case = Case(torch.float32, torch.device("cpu"))
    assert not self_check.Result("op", case, error, 1e9).passed
    assert self_check.error_of(want.float(), want, torch.float32) == 0


def test_bench_runs_where_the_source_is_and_says_so_where_it_is_not(tmp_path):
    source = Path(posenc_ext.__file__).parent
    shutil.copytree(source, tmp_path / "posenc_ext", ignore=shutil.ignore_patterns("__py*"))
    command = [sys.executable, "-m", "posenc_ext", "bench", "--help"]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert process.returncode == 2
    assert "bench needs the source tree" in process.stderr
    if (source.parent / "bench").is_dir():  # not beside the module of a CMake build
        process = subprocess.run(command, cwd=source.parent, capture_output=True, text=True)
        assert process.returncode == 0
        assert "python -m bench" in process.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["sinusoidal", "--positions", "20", "--dim", "7", "--convention", "fairseq"],
        ["decay", "--base", "1e4", "--base", "5e5", "--longest", "100"],
        ["decay", "--rules", "--factor", "4"],
        ["frequencies", "--dim", "64", "--base", "5e5", "--length", "8192"],
        ["alibi", "--heads", "20", "--length", "9"],
    ],
)
def test_plot_writes_a_picture(arguments, tmp_path, capsys):
    path = tmp_path / "picture.png"
    assert main(["plot", *arguments, "--out", str(path)]) == 0
    assert path.read_bytes().startswith(PNG)
    assert capsys.readouterr().out == f"{path}\n"


@pytest.mark.parametrize("picture", ["decay", "frequencies"])
def test_plot_reads_a_config(picture, tmp_path, monkeypatch):
    drawn = {}
    right = getattr(posenc_ext.plot, picture)

    def draw(curves, **options):
        drawn.update(curves=curves, **options)
        return right(curves, **options)

    monkeypatch.setattr(posenc_ext.plot, picture, draw)
    config, path = tmp_path / "config.json", tmp_path / "picture.png"
    config.write_text(json.dumps(QWEN))
    assert main(["plot", picture, "--config", str(config), "--out", str(path)]) == 0
    assert path.read_bytes().startswith(PNG)
    assert list(drawn["curves"]) == ["unscaled, base 1e+06", "yarn"]
    expected = posenc_ext.RotaryPositionalEmbedding.from_config(QWEN).frequencies()
    torch.testing.assert_close(drawn["curves"]["yarn"], expected, rtol=0, atol=0)
    if picture == "frequencies":
        assert drawn["base"] == 1000000.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["alibi", "--heads", "0"], "num_heads must be at least 1, got 0"),
        (["decay", "--dim", "0"], "dim must be positive and even, got 0"),
        (["sinusoidal", "--convention", "other"], "convention must be"),
        (["decay", "--config", "absent.json"], "No such file"),
        (["decay", "--config", "config.json", "--dim", "8"], "do not go with --config"),
        (["decay", "--config", "broken.json"], "broken.json must be JSON: Expecting"),
        (["decay", "--config", "gpt2.json"], "config must be of a model with rotary positions"),
        (["decay", "--config", "list.json"], "config must be a config object or a dict, got list"),
        (["decay", "--seq-len", "8"], "go with --config"),
        (["frequencies", "--base", "1e4", "--base", "1e5"], "--base may be given once"),
        (["decay", "--factor", "4"], "--factor and --length go with --rules"),
        (["decay", "--length", "4"], "--factor and --length go with --rules"),
        (["decay", "--config", "config.json", "--rules"], "--rules does not go with --config"),
        (["sinusoidal", "--positions", str(2**50)], "memory"),
        (["alibi", "--dpi", "1e9"], ""),
    ],
)
def test_plot_refuses_in_one_sentence(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("config.json").write_text(json.dumps(QWEN))
    Path("broken.json").write_text("rope_theta")
    Path("list.json").write_text("[]")
    Path("gpt2.json").write_text('{"model_type": "gpt2", "n_embd": 768, "n_head": 12}')
    assert main(["plot", *arguments, "--out", "picture.png"]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert len(captured.err.splitlines()) == 1
    assert captured.out == ""
    assert not Path("picture.png").exists()


def test_plot_writes_the_file_it_names(tmp_path, capsys):
    path = tmp_path / "picture"
    assert main(["plot", "alibi", "--out", str(path)]) == 0
    assert capsys.readouterr().out == f"{path}\n"
    assert path.read_bytes().startswith(PNG)


def test_plot_refuses_an_unknown_kind_of_file(tmp_path, capsys):
    assert main(["plot", "alibi", "--out", str(tmp_path / "picture.nothing")]) == 2
    assert "not supported" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["other"], ["plot"], ["plot", "alibi"]])
def test_a_missing_or_unknown_command_is_a_usage_error(arguments, capsys):
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2
    assert "usage: python -m posenc_ext" in capsys.readouterr().err


def test_plot_without_a_picture_lists_them(capsys):
    with pytest.raises(SystemExit):
        main(["plot"])
    assert "PICTURE must be sinusoidal, decay, frequencies, alibi" in capsys.readouterr().err


def test_version(capsys):
    with pytest.raises(SystemExit) as exit_:
        main(["--version"])
    assert exit_.value.code == 0
    assert capsys.readouterr().out == f"posenc_ext {posenc_ext.__version__}\n"


def test_plot_reads_the_config_of_a_folder(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps(QWEN))
    out = str(tmp_path / "picture.png")
    assert main(["plot", "decay", "--config", str(tmp_path), "--out", out]) == 0
    (tmp_path / "config.json").unlink()
    assert main(["plot", "decay", "--config", str(tmp_path), "--out", out]) == 2
    assert "config.json" in capsys.readouterr().err
