"""`egraft check --prove` on models whose weights were folded or whose branches were rewritten."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from graphs import load, save
from graphs.constants import Constant
from graphs.text import parse_graph
from optimizer.command_line import main
from optimizer.prove import print_proof

WEIGHT = np.random.default_rng(0).standard_normal((40, 40)).astype(np.float32)  # 1,600 elements
SCALE = np.linspace(0.5, 2.0, 40, dtype=np.float32)


def write(path: Path, body: str, **constants: np.ndarray) -> Path:
    stored = {name: Constant.of(array) for name, array in constants.items()}
    lines = " ".join(f"{name} = constant {each.type} sha256:{each.digest}" for name, each in stored.items())
    text = f'graph "m" opset 18 (x: float32[n, 40]) -> (y) {{ {lines} {body} }}'
    save(parse_graph(text, {each.digest: each for each in stored.values()}), path)
    return path


def test_a_folded_weight_is_proved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = write(tmp_path / "a.onnx", "t = MatMul(x, w) y = Mul(t, s)", w=WEIGHT, s=SCALE)
    b = write(tmp_path / "b.onnx", "y = MatMul(x, w)", w=WEIGHT * SCALE)
    assert main(["check", str(a), str(b), "--prove"]) == 0
    assert "computed-constant" in capsys.readouterr().out


def test_who_has_the_extra_input_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = tmp_path / "a.onnx", tmp_path / "b.onnx"
    save(parse_graph('graph "m" opset 18 (x: float32[2], z: float32[2]) -> (y) { y = Add(x, z) }'), a)
    save(parse_graph('graph "m" opset 18 (x: float32[2]) -> (y) { y = Add(x, x) }'), b)
    for first, second in ((a, b), (b, a)):
        assert main(["check", str(first), str(second)]) == 2
        assert f"they differ in their inputs: only {a} has z;" in capsys.readouterr().err
    save(parse_graph('graph "m" opset 18 (x: float32[2], w: float32[2]) -> (y) { y = Add(x, w) }'), b)
    assert main(["check", str(a), str(b)]) == 2
    assert f"only {a} has z; only {b} has w" in capsys.readouterr().err


def test_new_constants_of_a_proof_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    a, b = (parse_graph(f'graph "m" opset 18 (x: float32[n]) -> (y) {{ {body} }}') for body in (
        "two = constant float32[] 2 y = Div(x, two)", "half = constant float32[] 0.5 y = Mul(x, half)"))
    assert print_proof(a, b, "exact")
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("  + ") and line.endswith("= constant float32[] 0.5")]


def test_branches_are_compared_after_rewriting(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = """graph "m" opset 18 (x: float32[n, 4], c: bool[]) -> (y) {{
        y = If(c, then_branch=graph () -> (a) {{ {} }}, else_branch=graph () -> (b) {{ b = Abs(x) }}) }}"""
    for name, branch in [("a", "s = Neg(x) t = Neg(s) a = Tanh(t)"), ("b", "a = Tanh(x)"), ("c", "a = Sin(x)")]:
        save(parse_graph(text.format(branch)), tmp_path / f"{name}.onnx")
    assert main(["check", str(tmp_path / "a.onnx"), str(tmp_path / "b.onnx"), "--prove"]) == 0
    assert "nested graphs" in capsys.readouterr().out
    assert not print_proof(load(tmp_path / "a.onnx"), load(tmp_path / "c.onnx"), "rounding")


def test_a_terminal_shows_what_a_check_does(tmp_path: Path) -> None:
    """A large model is checked for minutes. The standard output has none of it, and without a terminal nothing has."""
    path = write(tmp_path / "a.onnx", "y = Mul(x, s)", s=SCALE)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "egraft", "check", str(path), str(path)]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    shown = subprocess.run(command, stdout=subprocess.PIPE, stderr=theirs, env=environment, check=True)
    os.close(theirs)
    plain = subprocess.run(command, capture_output=True, check=True)
    said = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert "validate 1 node against 1" in said
    assert shown.stdout == plain.stdout and not plain.stderr and b"validate 1 node" not in plain.stdout
