"""Which C compiler fused kernels are made with."""

import platform
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from cost_model.timings import Timings
from graphs.text import parse_graph
from optimizer import optimize
from runtime import Session
from runtime.codegen.c import REFUSED, FusedKernel, compiler
from runtime.codegen.c.native import source
from runtime.fusion import Group, fuse
from search.fusions.measure import Measured
from search.fusions.trials import trials_for


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
    compiler._failed.clear()


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


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="names of other processors")
@pytest.mark.parametrize("processor", ["x86-64", "haswell", "znver3", "skylake-avx512"])
def test_every_compiler_takes_the_engine_for_other_processors(processor: str, tmp_path: Path) -> None:
    """Instructions that only some have, and what gcc and clang call them."""
    for command in compiler._commands():
        if command[-2:] == ("ziglang", "cc"):
            flag = f"-mcpu={processor.replace('-', '_')}"
        else:
            flag = f"-march={processor}"
        (tmp_path / "engine.c").write_text(source(), encoding="utf-8")
        done = subprocess.run([*command, flag, "-std=gnu11", "-O1", "-c", str(tmp_path / "engine.c"), "-o",
                               str(tmp_path / "engine.o")], text=True, capture_output=True, timeout=300)
        assert not done.returncode, f"{command}: {done.stderr[:2000]}"


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


FULL = """#!/bin/sh
case "$*" in
  *-shared*) echo called >> "$0.log"; echo "ld: final link failed: No space left on device" >&2; exit 1 ;;
esac
exec cc "$@"
"""
CHAIN = """graph "g" opset 18 (x: float32[64, 411]) -> (y) {
  a = Sin(x)
  b = Exp(a)
  c = Abs(b)
  d = Cos(c)
  e = Add(d, a)
  y = Mul(e, c)
}"""


@pytest.fixture
def full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compiler that works until it has to write a library."""
    if compiler.unavailable() is not None:
        pytest.skip(str(compiler.unavailable()))
    fake = tmp_path / "fake-cc"
    fake.write_text(FULL)
    fake.chmod(0o755)
    monkeypatch.setenv("CC", str(fake))
    monkeypatch.setenv("EGRAFT_KERNELS", str(tmp_path / "kernels"))
    compiler._compiler.cache_clear()
    compiler.compiled.cache_clear()
    return Path(f"{fake}.log")


def test_a_full_disk_leaves_the_nodes_and_is_told(full_disk: Path) -> None:
    session = Session(fuse(parse_graph(CHAIN), [Group((0, 1, 2, 3, 4, 5), "y")]))
    x = np.random.default_rng(0).standard_normal((64, 411)).astype(np.float32)
    a = np.sin(x)
    c = np.abs(np.exp(a))
    for _ in range(4):
        np.testing.assert_array_equal(session.run({"x": x})["y"], (np.cos(c) + a) * c)
    assert "run node by node: the C compiler failed (status 1): ld: final link failed" in session.report.summary()
    calls = len(full_disk.read_text().splitlines())
    assert calls == 2 * len(compiler._failed)  # in the folder of kernels, and in one of this process


def test_a_full_disk_is_no_verdict_on_kernels(full_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timings = str(tmp_path / "t.db")
    found = optimize(parse_graph(CHAIN), target="egraft:cpu", effort="low", timings=timings, threads=1)
    assert any("kernels were not tried: the C compiler failed" in line for line in found.report["warnings"])
    assert "impossible" not in found.report["fusions"]["counts"]
    monkeypatch.setenv("CC", "cc")
    compiler._compiler.cache_clear()
    again = optimize(parse_graph(CHAIN), target="egraft:cpu", effort="low", timings=timings, threads=1)
    assert again.report["fusions"]["counts"]["generated"] > 0 and not again.report["warnings"]


def test_a_compiler_that_answers_with_any_bytes_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "fake-cc"
    fake.write_text("#!/bin/sh\nprintf '\\320\\377'\n")
    fake.chmod(0o755)
    monkeypatch.setenv("CC", str(fake))
    compiler._compiler.cache_clear()
    assert compiler._trouble_with_cc() == f"$CC is {str(fake)!r}, and it does not answer as compilers do"


def test_what_a_compiler_once_refused_gives_way_to_what_came_out(tmp_path: Path) -> None:
    """Releases before wrote so after a full disk, and such a record would be tried again in every run."""
    body, trials = parse_graph(CHAIN), trials_for("egraft:cpu")
    bad, good = Measured(0.0, 1.0, "impossible", f"{REFUSED}: no space"), Measured(1.0, 2.0, "faster")
    with Timings(tmp_path / "t.db") as timings:
        trials.record(body, False, 1, timings, bad, [])
        assert trials.recorded(body, False, 1, timings) is None
        assert trials.record(body, False, 1, timings, good, [1.0]) == good
        other = Measured(3.0, 4.0, "faster")
        assert trials.record(body, False, 1, timings, other, [3.0]) == good
    with Timings(tmp_path / "t.db") as timings:
        assert trials.recorded(body, False, 1, timings) == good
