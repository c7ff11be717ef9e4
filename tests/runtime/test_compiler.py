"""Which C compiler fused kernels are made with."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from graphs.text import parse_graph
from optimizer import optimize
from runtime import Session
from runtime.codegen.c import FusedKernel, compiler
from runtime.fusion import Group, fuse


@pytest.fixture
def without_a_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler.shutil, "which", lambda name: None)
    compiler._compiler.cache_clear()
    compiler.compiled.cache_clear()


@pytest.fixture(autouse=True)
def forget() -> object:
    yield
    compiler._compiler.cache_clear()
    compiler.compiled.cache_clear()


def test_the_package_is_asked_last(without_a_system: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "find_spec", lambda name: object() if name == "ziglang" else None)
    assert list(compiler._commands()) == [(sys.executable, "-m", "ziglang", "cc")]


def test_without_any_compiler_it_is_said_what_to_do(without_a_system: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "find_spec", lambda name: None)
    said = compiler.unavailable()
    assert said is not None and "egraft[jit]" in said and compiler.identity() == ""


@pytest.mark.parametrize(("named", "reason"), [
    ("/nowhere/gcc", "no such program is here"), ("'gcc", "no such program is here"),
    ("FOLDER/text", "it does not answer as"), ("false", "it does not answer as"), ("true", "it does not answer as"),
    ("cc -Wall", ""), ("", ""),
])
def test_a_cc_that_cannot_be_used_is_told(named: str, reason: str, tmp_path: Path,
                                          monkeypatch: pytest.MonkeyPatch) -> None:
    if compiler.unavailable() is not None:
        pytest.skip(str(compiler.unavailable()))
    (tmp_path / "text").write_text("no program")
    (tmp_path / "text").chmod(0o755)
    monkeypatch.setenv("CC", named.replace("FOLDER", str(tmp_path)))
    compiler._compiler.cache_clear()
    graph = parse_graph("""graph "g" opset 18 (x: float32[3, 41]) -> (y) {
      a = Exp(x)
      y = Sqrt(a)
    }""")
    told = Session(fuse(graph, [Group((0, 1), "y")])).report.summary()
    assert bool(told) == bool(reason) and reason in told
    warnings = optimize(graph, target="egraft:cpu", effort="low", timings=str(tmp_path / "t.db")).report["warnings"]
    assert warnings == ([told] if told else [])


@pytest.mark.skipif(find_spec("ziglang") is None, reason="extra jit is not installed")
def test_the_package_compiles_kernels(without_a_system: None) -> None:
    graph = parse_graph("""graph "g" opset 18 (x: float32[3, 40]) -> (y) {
      y = Softmax(x)
    }""")
    x = np.random.default_rng(0).standard_normal((3, 40)).astype(np.float32)
    (got,) = FusedKernel(graph)(x)
    np.testing.assert_allclose(got.sum(axis=1), 1, rtol=1e-5)


def test_a_compiler_that_does_not_answer_leaves_the_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine that has too much to do."""
    def hang(*arguments: object, **more: object) -> None:
        raise subprocess.TimeoutExpired("cc", 60)

    if compiler.unavailable() is not None:
        pytest.skip(str(compiler.unavailable()))
    graph = parse_graph("""graph "g" opset 18 (x: float32[3, 41]) -> (y) {
      a = Exp(x)
      b = Sin(a)
      c = Abs(b)
      y = Exp(c)
    }""")
    session = Session(fuse(graph, [Group((0, 1), "b"), Group((2, 3), "y")]))
    monkeypatch.setattr(compiler.subprocess, "run", hang)
    monkeypatch.setattr(compiler, "cached", lambda name, make: make(Path("nowhere")))
    x = np.random.default_rng(0).standard_normal((3, 41)).astype(np.float32)
    for _ in range(4):
        np.testing.assert_array_equal(session.run({"x": x})["y"], np.exp(np.abs(np.sin(np.exp(x)))))
