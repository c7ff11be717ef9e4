"""Fusions in branches and loop bodies: found, told by the trace, written as functions that are called there, recognised
again, and validated on inputs of their own."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from graphs import load
from graphs.ir import Graph, is_fused
from graphs.text import parse_graph
from optimizer import Result, optimize
from optimizer.command_line import main
from optimizer.fusing_bodies import moved_bodies
from optimizer.result import step_text
from runtime import run
from runtime.codegen.c import FusedKernel, unavailable
from runtime.fusion import as_functions
from runtime.session import Session
from search.steps import same_graph

needs_compiler = pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))
THEN, ELSE = "If 'choice' then_branch", "If 'choice' else_branch"
# Large enough that a kernel is faster than its nodes on any machine; random rates are never 16000.
GRAPH = """graph "g" opset 18 (x: float32[256, 512], rate: int64[]) -> (y) {
  high = constant int64[] 16000
  half = constant float32[] 0.5
  w = constant float32[1] [0.25]
  is_high = Equal(rate, high)
  y = If(is_high, then_branch=graph () -> (t) {
      a = Mul(x, half)
      b = Exp(a)
      c = Add(b, w)
      d = Mul(c, x)
      t = Tanh(d)
    }, else_branch=graph () -> (u) {
      e = Mul(x, half)
      f = Exp(e)
      g = Add(f, w)
      h = Mul(g, x)
      i = Tanh(h)
      u = Softmax(i, axis=1)
    })
}"""
LOOP = """graph "g" opset 18 (x: float32[128, 512], n: int64[]) -> (y, all) {
  yes = constant bool[] 1
  half = constant float32[] 0.5
  y, all = Loop(n, yes, x, body=graph (i, going, s) -> (again, t, o) {
      again = Identity(going)
      a = Mul(s, half)
      b = Sub(a, x)
      c = Exp(b)
      t = Tanh(c)
      d = Add(t, s)
      e = Sigmoid(d)
      o = ReduceMean(e, axes=[1])
    })
}"""


def model(text: str = GRAPH) -> Graph:
    graph = parse_graph(text)
    graph.nodes[-1].name = "choice"
    return graph


def feeds_of(rate: int = 16000) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(rate).normal(size=(256, 512)).astype(np.float32), "rate": np.array(rate)}


def inside(graph: Graph) -> list[str]:
    return [node.name for each in graph.walk() if each is not graph for node in each.nodes if is_fused(node)]


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return {"target": "egraft:cpu", "effort": "low", "threads": 1,
            "timings": str(tmp_path_factory.mktemp("fusing") / "timings.db")}


@pytest.fixture(scope="module")
def result(settings: dict[str, Any]) -> Result:
    return optimize(model(), **settings)


@needs_compiler
def test_the_result_is_fused_in_both_branches_and_the_trace_leads_to_it(result: Result) -> None:
    assert len(inside(result.graph)) >= 2 and not result.report["warnings"] and result.report["validation"]["ok"]
    assert result.report["measured"]["verdict"] == "faster"
    assert result.report["after"]["operators"]["egraft.Fused"] == len(inside(result.graph))
    assert same_graph(result.trace.replay(model()), result.graph)
    for rate in (16000, 8000):
        want = run(model(), feeds_of(rate))["y"]
        np.testing.assert_allclose(run(result.graph, feeds_of(rate))["y"], want, rtol=1e-4, atol=1e-5)


@needs_compiler
def test_a_step_tells_in_which_bodies_a_kernel_is(result: Result, tmp_path: Path,
                                                  capsys: pytest.CaptureFixture[str]) -> None:
    steps = [step for step in result.trace.steps if step.get("kind") == "fusion"]
    assert steps and not any(step.get("region") for step in result.trace.steps)
    assert {place for step in steps for place in step["fusion"]["inside"]} == {THEN, ELSE}
    for step in steps:
        found = step["fusion"]
        assert set(step["where"]) == set(found["inside"]) and sum(found["inside"].values()) == found["count"]
        assert "in nested graphs" in step["meaning"] and "EG_KERNEL" in found["kernel"] and found["gain_seconds"] > 0
        assert found["intensity"]["after"] >= found["intensity"]["before"]
        assert THEN in step_text(step) or ELSE in step_text(step)
    assert steps[-1]["cost_after"] < steps[0]["cost_before"]
    assert sum(row["count"] for row in result.report["fusions"]["chosen"]) == len(inside(result.graph))
    result.trace.save(tmp_path / "t.json")
    assert main(["trace", str(tmp_path / "t.json"), "--why-not", "fuse"]) == 0
    assert f"it did fire: step {', '.join(str(step['index']) for step in steps)} of" in capsys.readouterr().out


@needs_compiler
def test_a_second_run_measures_nothing_and_finds_the_same(result: Result, settings: dict[str, Any]) -> None:
    again = optimize(model(), **settings, frozen=True, fresh=True)
    assert str(again.graph) == str(result.graph) and "measured" not in again.report["fusions"]["counts"]
    assert [step["patch"] for step in again.trace.steps] == [step["patch"] for step in result.trace.steps]
    kept = optimize(model(), **settings)
    assert kept.report["remembered"] and str(kept.graph) == str(result.graph)


@needs_compiler
def test_functions_are_called_in_branches_and_recognised_again(result: Result, settings: dict[str, Any],
                                                               tmp_path: Path) -> None:
    place = tmp_path / "m.onnx"
    result.save(place)
    onnx.checker.check_model(str(place), full_check=True)
    wanted = {rate: run(model(), feeds_of(rate))["y"] for rate in (16000, 8000)}
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(onnx.load(place))
    for rate, want in wanted.items():
        np.testing.assert_allclose(evaluator.run(None, feeds_of(rate))[0], want, rtol=1e-4, atol=1e-5)
    again = optimize(place, **settings)
    assert same_graph(again.graph, result.graph), "what is fused stays fused"
    assert len(inside(Session(load(place)).graph)) == len(inside(result.graph))
    elsewhere = optimize(place, **{**settings, "target": "roofline"})
    assert not inside(elsewhere.graph) and not elsewhere.graph.functions
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(str(place), providers=["CPUExecutionProvider"])
    for rate, want in wanted.items():
        np.testing.assert_allclose(session.run(None, feeds_of(rate))[0], want, rtol=1e-4, atol=1e-5)


@needs_compiler
def test_a_value_of_the_same_name_in_another_branch_is_no_call(result: Result) -> None:
    """Names in branches that exclude each other may be the same: only where a call stood a fused node comes again."""
    graph = parse_graph("""graph "g" opset 18 (x: float32[4], a: bool[]) -> (y) {
      y = If(a, then_branch=graph () -> (t) {
          t = egraft.Fused(x, body=graph "fused" (x0: float32[4]) -> (y) { v1 = Exp(x0) y = Neg(v1) }, exact=0)
        }, else_branch=graph () -> (t) { s = Relu(x) t = Exp(s) })
    }""")
    again = Session(as_functions(graph)).graph
    then, other = again.nodes[0].graphs
    assert is_fused(then.nodes[0]) and [node.op for node in other.nodes] == ["Relu", "Exp"]


@needs_compiler
def test_a_loop_body_is_fused(settings: dict[str, Any], tmp_path: Path) -> None:
    feeds = {"x": np.random.default_rng(1).normal(size=(128, 512)).astype(np.float32), "n": np.array(4)}
    found = optimize(model(LOOP), **settings)
    assert inside(found.graph) and same_graph(found.trace.replay(model(LOOP)), found.graph)
    want = run(model(LOOP), feeds)
    session = Session(found.graph)
    for _ in range(5):
        for name, value in session.run(feeds).items():
            np.testing.assert_allclose(value, want[name], rtol=1e-4, atol=1e-5)
    found.save(tmp_path / "m.onnx")
    onnx.checker.check_model(str(tmp_path / "m.onnx"), full_check=True)
    onnxruntime = pytest.importorskip("onnxruntime")
    peer = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"), providers=["CPUExecutionProvider"])
    for value, name in zip(peer.run(None, feeds), want):
        np.testing.assert_allclose(value, want[name], rtol=1e-4, atol=1e-5)


@needs_compiler
def test_a_kernel_that_is_wrong_in_a_branch_that_is_never_taken(settings: dict[str, Any],
                                                                monkeypatch: pytest.MonkeyPatch) -> None:
    """The check of the kernel is right, and random inputs never take the branch: it is found by itself, and refused."""
    plain = FusedKernel.__call__

    def broken(self: FusedKernel, *arrays: np.ndarray, **more: Any) -> list[np.ndarray]:
        found = plain(self, *arrays, **more)
        return [each + 1 for each in found] if self.graph.nodes[-1].op == "Tanh" else found

    monkeypatch.setattr(FusedKernel, "__call__", broken)
    found = optimize(model(), **settings, fresh=True)
    assert any("fused by itself" in text for text in found.report["warnings"])
    assert found.report["fusions"]["counts"]["refused"]
    monkeypatch.undo()
    for rate in (16000, 8000):
        np.testing.assert_allclose(run(found.graph, feeds_of(rate))["y"], run(model(), feeds_of(rate))["y"],
                                   rtol=1e-4, atol=1e-5)


@needs_compiler
def test_values_of_unknown_shape_are_refused_with_the_reason(settings: dict[str, Any]) -> None:
    """What a loop carries grows by a row in each turn, and its rank is given up with its sizes where it does too."""
    text = """graph "g" opset 18 (x: float32[4, 8], n: int64[]) -> (y) {
      yes = constant bool[] 1
      y = Loop(n, yes, x, body=graph (i, going, s) -> (again, t) {
          again = Identity(going)
          a = Exp(s)
          b = Mul(a, s)
          t = Unsqueeze(b, axes=[0])
        })
    }"""
    found = optimize(model(text), **settings)
    assert not inside(found.graph)
    assert "the shape of 's'" in found.report["fusions"]["refused"]["Loop 'choice' body"]
    assert "Loop 'choice' body: the shape of 's'" in found.summary()


def test_bodies_move_to_a_graph_whose_values_are_called_otherwise() -> None:
    graph = parse_graph("""graph "g" opset 18 (x: float32[4], a: bool[]) -> (y) {
      p = Neg(x)
      y = If(a, then_branch=graph () -> (t) {
          t = egraft.Fused(p, body=graph "fused" (x0: float32[4]) -> (y) { v1 = Exp(x0) y = Neg(v1) }, exact=0)
        }, else_branch=graph () -> (u) { u = Relu(p) })
    }""")
    other = parse_graph("""graph "g" opset 18 (x: float32[4], a: bool[]) -> (y) {
      q = Neg(x)
      y = If(a, then_branch=graph () -> (t) { s = Exp(q) t = Neg(s) }, else_branch=graph () -> (u) { u = Relu(q) })
    }""")
    made = moved_bodies(graph, other, {"p": "q", "y": "y"})
    assert made.nodes[1].uses == ("a", "q") and same_graph(made, graph)
    there = parse_graph(str(other).replace("(t)", "(p)").replace("t = Neg", "p = Neg").replace("q", "t"))
    clash = moved_bodies(graph, there, {"p": "t", "y": "y"})
    assert not inside(clash), "t would be read of the branch itself"


TWINS = """graph "g" opset 18 (x: float32[256, 512], a: bool[]) -> (y) {
  y = If(a, then_branch=graph () -> (t2) {
      t0 = Sigmoid(x)
      t1 = Tanh(t0)
      t2 = Exp(t1)
    }, else_branch=graph () -> (u2) {
      u0 = Sigmoid(x)
      u1 = Tanh(u0)
      u2 = Exp(u1)
    })
}"""


@needs_compiler
def test_branches_that_are_alike_but_for_names() -> None:
    result = optimize(parse_graph(TWINS), target="egraft:cpu", effort="low", timings=":memory:")
    assert not result.report["warnings"] and result.report["validation"]["ok"]
    for choice in (True, False):
        feeds = {"x": np.ones((256, 512), np.float32), "a": np.array(choice)}
        want = run(parse_graph(TWINS), feeds)["y"]
        np.testing.assert_allclose(Session(result.graph).run(feeds)["y"], want, rtol=1e-6)
