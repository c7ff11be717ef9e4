"""Fusions in `optimize` for egraft:cpu: chosen, traced, written as functions, recognised again, and taken apart."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from graphs import load
from graphs.ir import Graph, is_fused
from graphs.text import parse_graph
from optimizer import Result, Trace, optimize
from optimizer.commands import trace_command
from optimizer.report_html import render
from optimizer.result import step_text
from optimizer.validating import unsteady
from runtime import Session, noted, run
from runtime.codegen.c import FusedKernel, unavailable
from runtime.feeds import draw
from runtime.fusion import Group, fuse
from search.trace import same_graph
from tests.norms import spelled_norm

needs_compiler = pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))
SIZES = {"n": 64}
# Large enough that a kernel is faster than its nodes on any machine.
GRAPH = """graph "g" opset 18 (x: float32[n, 256], r: float32[n, 256]) -> (y) {
  two = constant float32[] 2.0
  tiny = constant float32[] 1e-5
  half = constant float32[] 0.5
  one = constant float32[] 1.0
  root = constant float32[] 1.4142135
  u = Add(x, r)
  NORM
  t = Transpose(z, perm=[1, 0])
  m = MatMul(z, t)
  a = Div(m, root)
  b = Erf(a)
  c = Add(b, one)
  e = Mul(m, c)
  y = Mul(e, half)
}""".replace("NORM", spelled_norm("u", "z", "tiny"))
EXACT = """graph "g" opset 18 (x: float32[n, 4096], r: float32[n, 4096]) -> (y) {
  a = Mul(x, r)
  b = Add(a, x)
  c = Relu(b)
  d = Mul(c, r)
  y = Sub(d, x)
}"""


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return {"target": "egraft:cpu", "effort": "low", "threads": 1, "dims": {"n": [64]},
            "timings": str(tmp_path_factory.mktemp("fusing") / "timings.db")}


@pytest.fixture(scope="module")
def result(settings: dict[str, Any]) -> Result:
    return optimize(parse_graph(GRAPH), **settings)


def fused(graph: Graph) -> list[str]:
    return [node.name for node in graph.nodes if is_fused(node)]


@needs_compiler
def test_the_result_has_fused_nodes_and_the_trace_leads_to_it(result: Result) -> None:
    graph = parse_graph(GRAPH)
    assert fused(result.graph) and result.report["chosen"].endswith(", fused") and not result.report["warnings"]
    assert result.report["validation"]["ok"] and result.report["measured"]["verdict"] == "faster"
    replayed = result.trace.replay(graph)
    assert same_graph(replayed, result.graph)
    feeds = draw(graph, 0, SIZES)
    np.testing.assert_allclose(run(replayed, feeds)["y"], run(graph, feeds)["y"], rtol=1e-4, atol=1e-5)


@needs_compiler
def test_each_kind_of_fusion_is_a_step_with_kernel_gain_and_intensity(result: Result) -> None:
    steps = [step for step in result.trace.steps if step.get("kind") == "fusion"]
    report = result.report["fusions"]
    assert len(steps) == len(report["chosen"]) == len({step["fusion"]["signature"] for step in steps})
    labels = " ".join(step["fusion"]["label"] for step in steps)  # with the product, where that is faster
    assert "residual + LayerNorm" in labels and "GELU" in labels
    for step in steps:
        found = step["fusion"]
        assert step["exactness"] == "rounding" and "EG_KERNEL" in found["kernel"]
        assert found["gain_seconds"] > 0
        assert found["intensity"]["after"] > found["intensity"]["before"]
        assert "EG_KERNEL" in step_text(step) and "us in one place" in step_text(step)
    assert steps[-1]["cost_after"] < steps[0]["cost_before"]
    counts = report["counts"]
    assert counts["unique"] >= counts["generated"] >= counts["measured"] >= len(steps)
    assert "GELU" in result.summary() and "GELU" in render(result.report)
    assert result.report["after"]["nodes"] < 10 and result.report["after"]["operators"]["egraft.Fused"] == len(
        fused(result.graph))


@needs_compiler
def test_operations_per_byte_are_those_of_the_nodes_and_of_the_kernel(settings: dict[str, Any]) -> None:
    result = optimize(parse_graph(EXACT), **settings, precision="exact")
    step = next(step for step in result.trace.steps if step.get("kind") == "fusion")
    assert step["exactness"] == "exact" and step["fusion"]["operators"] == ["Mul", "Add", "Relu", "Mul", "Sub"]
    # 5 operations an element; one by one the nodes move 3 + 3 + 2 + 3 + 3 floats, the kernel 3.
    assert step["fusion"]["intensity"] == pytest.approx({"before": 5 / (14 * 4), "after": 5 / (3 * 4)})
    graph = parse_graph(EXACT)
    feeds = draw(graph, 0, SIZES)
    np.testing.assert_array_equal(run(result.graph, feeds)["y"], run(graph, feeds)["y"])


@needs_compiler
def test_a_second_run_measures_nothing_and_finds_the_same(result: Result, settings: dict[str, Any]) -> None:
    again = optimize(parse_graph(GRAPH), **settings, frozen=True, fresh=True)  # made anew, of what was recorded
    assert str(again.graph) == str(result.graph)
    assert [step["patch"] for step in again.trace.steps] == [step["patch"] for step in result.trace.steps]
    assert "measured" not in again.report["fusions"]["counts"]


@needs_compiler
def test_the_file_is_plain_onnx_recognised_again_and_taken_apart_for_others(
        result: Result, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, graph = tmp_path / "m.onnx", parse_graph(GRAPH)
    result.save(place)
    result.trace.save(tmp_path / "t.json")
    feeds = draw(graph, 1, SIZES)
    want = run(graph, feeds)["y"]
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(str(place), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, feeds)[0], want, rtol=1e-4, atol=1e-5)
    again = optimize(place, **settings)
    assert same_graph(again.graph, result.graph), "what is fused stays fused"
    assert same_graph(Trace.load(tmp_path / "t.json").replay(graph), result.graph)
    elsewhere = optimize(place, **{**settings, "target": "roofline"})
    assert not fused(elsewhere.graph) and not elsewhere.graph.functions
    assert elsewhere.trace.steps[0]["rule"] == "unpack-fused"
    assert same_graph(elsewhere.trace.replay(load(place)), elsewhere.graph)
    calls: list[int] = []
    plain = FusedKernel.__call__
    monkeypatch.setattr(FusedKernel, "__call__", lambda self, *a, **k: calls.append(1) or plain(self, *a, **k))
    np.testing.assert_allclose(run(load(place), feeds)["y"], want, rtol=1e-4, atol=1e-5)
    assert len(calls) == len(fused(result.graph))
    monkeypatch.setattr("runtime.codegen.c.compiler._compiler", lambda: None)
    bodies = Session(load(place))
    np.testing.assert_allclose(bodies.run(feeds)["y"], want, rtol=1e-4, atol=1e-5)
    assert "no C compiler" in bodies.report.summary()


def test_without_a_compiler_the_report_says_so(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.codegen.c.compiler._compiler", lambda: None)
    found = optimize(parse_graph(EXACT), **settings)
    assert not fused(found.graph) and "no C compiler" in found.report["fusions"]["note"]
    assert "fusions    none: no C compiler" in found.summary()


@needs_compiler
def test_a_kernel_that_fails_validation_is_done_without(settings: dict[str, Any],
                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that passed its check is wrong in the whole model: it is found by bisecting, and refused."""
    plain = FusedKernel.__call__

    def broken(self: FusedKernel, *arrays: np.ndarray, **more: Any) -> list[np.ndarray]:
        found = plain(self, *arrays, **more)
        return [each + 1 for each in found] if any(node.op == "Erf" for node in self.graph.nodes) else found

    monkeypatch.setattr(FusedKernel, "__call__", broken)
    found = optimize(parse_graph(GRAPH), **settings)
    assert found.report["dropped"] and found.report["dropped"][0]["rule"] == "fuse"
    assert found.report["fusions"]["counts"]["refused"]
    feeds = draw(found.original, 0, SIZES)
    np.testing.assert_allclose(run(found.graph, feeds)["y"], run(found.original, feeds)["y"], rtol=1e-4, atol=1e-5)


@needs_compiler
def test_a_node_alone_is_no_fusion_and_the_engine_is_named(settings: dict[str, Any], tmp_path: Path,
                                                          capsys: pytest.CaptureFixture[str]) -> None:
    found = optimize(parse_graph("""graph "g" opset 18 (x: float32[1, 64, 64, 64], r: float32[64, 64]) -> (y, z) {
      y = MaxPool(x, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
      z = Det(r)
    }"""), **{**settings, "dims": {}})
    (step,) = found.trace.steps
    told = step_text(step)
    assert step["rule"] == "kernel" and "1 node runs as a kernel" in told
    assert "// MaxPool: computed by the engine" in told
    found.trace.save(tmp_path / "t.json")
    assert trace_command(tmp_path / "t.json", None, "kernel") == 0 and "did fire: step 0" in capsys.readouterr().out


@needs_compiler
def test_why_a_set_is_no_kernel(settings: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def answer(graph: str, rule: str, **more: Any) -> str:
        optimize(parse_graph(graph), **{**settings, "dims": {}, **more}).trace.save(tmp_path / "t.json")
        assert trace_command(tmp_path / "t.json", None, rule) == 0
        return capsys.readouterr().out

    small = """graph "g" opset 18 (x: float64[2, 3], w: float64[3, 4]) -> (y) {
      p = MatMul(x, w)
      y = Relu(p)
    }"""
    assert "fuse: 1 time: there is no kernel for it: MatMul of other than float32 (for example at y (MatMul Relu))" in (
        answer(small, "fuse"))
    assert "kernels are tried for egraft:cpu and egraft:cuda alone" in answer(small, "fuse", target="roofline")
    assert "a larger set" in answer(EXACT.replace("[n", "[64"), "fuse")


@pytest.mark.parametrize("objective", ["nodes", "memory"])
def test_other_objectives_have_no_fusions(settings: dict[str, Any], objective: str) -> None:
    found = optimize(parse_graph(EXACT), **settings, objective=objective)
    assert not fused(found.graph) and found.report["fusions"] is None


def test_a_session_whose_later_runs_differ_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted defect: memory is given to others while a view of it is needed."""
    graph = parse_graph("""graph "g" opset 18 (x: float32[256, 300]) -> (v, y) {
      zero = constant int64[] 0
      a = CumSum(x, zero)
      v = Transpose(a, perm=[1, 0])
      b = Exp(a)
      c = Neg(b)
      d = Transpose(c, perm=[1, 0])
      e = Sin(d)
      y = ReduceMax(e, axes=[1])
    }""")
    fused = fuse(graph, [Group((place,), node.outputs[0]) for place, node in enumerate(graph.nodes)
                         if node.op in ("Exp", "Neg", "Sin", "ReduceMax")])
    context: Any = SimpleNamespace(feeds=None, sizes={}, threads=1, options=SimpleNamespace(seed=0))
    assert unsteady(fused, context) == ""
    monkeypatch.setattr(noted.Notes, "_keep_what_is_left", lambda notes: None)
    if unavailable() is None:
        assert "output 'v' of run 3" in unsteady(fused, context)


@needs_compiler
def test_intensity_of_a_look_up_counts_what_is_picked(tmp_path: Path) -> None:
    """It is the same table before and after: bytes of the whole would make the fusion look idle."""
    graph = parse_graph("""graph "g" opset 18 (i: int64[n, 32], t: float32[30000, 256]) -> (y) {
      e = Gather(t, i)
      a = Mul(e, e)
      b = Exp(a)
      y = ReduceSum(b, axes=[-1])
    }""")
    found = optimize(graph, target="egraft:cpu", threads=1, dims={"n": [16]}, timings=str(tmp_path / "timings.db"))
    steps = [step["fusion"]["intensity"] for step in found.trace.steps if "fusion" in step]
    assert steps and all(each["after"] >= each["before"] for each in steps)
