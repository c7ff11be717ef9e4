"""Fused nodes: what they mean, that they run as one kernel, and how they run where there is none."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from graphs import load, save
from graphs.inference import infer
from graphs.ir import Graph
from graphs.text import parse_graph
from runtime import Session, run, validate
from runtime.codegen.c import FusedKernel, unavailable
from runtime.fusion import Group, as_functions, body_of, fuse, is_fused, signature
from tests.norms import spelled_norm

needs_compiler = pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))
NORM = """graph "g" opset 18 (x: float32[n, m], r: float32[n, m], g: float32[m]) -> (y, u) {
  two = constant float32[] 2.0
  u = Add(x, r)
  NORM
  y = Mul(g, q)
}""".replace("NORM", spelled_norm("u", "q"))
WHOLE = Group(tuple(range(8)), "y")


def feeds(rows: int = 5, columns: int = 70) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {"x": rng.standard_normal((rows, columns)).astype(np.float32),
            "r": rng.standard_normal((rows, columns)).astype(np.float32),
            "g": rng.standard_normal(columns).astype(np.float32)}


def expected(given: dict[str, np.ndarray]) -> np.ndarray:
    u = given["x"].astype(float) + given["r"]
    return (u - u.mean(-1, keepdims=True)) / u.std(-1, keepdims=True) * given["g"]


def test_a_group_becomes_one_node_and_what_others_need_stays() -> None:
    fused = fuse(parse_graph(NORM), [WHOLE])
    assert [node.op for node in fused.nodes] == ["Add", "Fused"]  # u is an output
    assert fused.outputs == ["y", "u"] and fused.nodes[1].outputs == ("y",)
    given = feeds()
    got = run(fused, given)
    np.testing.assert_allclose(got["y"], expected(given), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(got["u"], given["x"] + given["r"])


@needs_compiler
def test_it_runs_as_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    plain = FusedKernel.__call__
    monkeypatch.setattr(FusedKernel, "__call__", lambda self, *a, **k: calls.append(len(a)) or plain(self, *a, **k))
    session = Session(fuse(parse_graph(NORM), [WHOLE]))
    session.run(feeds())
    session.run(feeds(2, 3))  # other sizes
    assert calls == [3, 3] and session.report.fused == 1 and not session.report.unfused


def test_without_a_compiler_it_runs_node_by_node_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.codegen.c.compiler._compiler", lambda: None)
    graph, given = parse_graph(NORM), feeds()
    session = Session(fuse(graph, [WHOLE]))
    np.testing.assert_array_equal(session.run(given)["y"], run(graph, given)["y"])
    assert "no C compiler" in session.report.summary()


def test_tensors_without_elements_run_node_by_node() -> None:
    got = run(fuse(parse_graph(NORM), [WHOLE]), feeds(0, 4))
    assert got["y"].shape == (0, 4)


def test_a_fused_graph_is_valid_beside_its_original() -> None:
    graph = parse_graph(NORM)
    found = validate(graph, fuse(graph, [WHOLE]), "rounding", sizes={"n": 4, "m": 33})
    assert found.ok, found.to_dict()


def test_exact_nodes_have_the_bits_of_unfused_ones() -> None:
    graph = parse_graph("""graph "g" opset 18 (a: float32[n], b: float32[n], c: float32[n]) -> (y) {
      p = Mul(a, b)
      q = Add(p, c)
      r = Relu(q)
      y = Div(r, b)
    }""")
    rng = np.random.default_rng(0)
    given = {name: rng.standard_normal(999).astype(np.float32) for name in "abc"}
    got = run(fuse(graph, [Group((0, 1, 2, 3), "y")], exact=True), given)["y"]
    np.testing.assert_array_equal(got.view(np.int32), run(graph, given)["y"].view(np.int32))


def renamed(a: str, b: str) -> Graph:
    return parse_graph(f"""graph "g" opset 18 ({a}: float32[4], {b}: float32[4]) -> (out) {{
      k = constant float32[] 2.0
      s = Mul({a}, k)
      out = Add(s, {b})
    }}""")


def test_groups_that_compute_the_same_have_one_signature() -> None:
    one, _ = body_of(renamed("a", "b"), Group((0, 1), "out"))
    other, inputs = body_of(renamed("z", "q"), Group((0, 1), "out"))
    assert signature(one) == signature(other) and sorted(inputs) == ["q", "z"]
    turned = parse_graph("""graph "g" opset 18 (a: float32[4], b: float32[4]) -> (out) {
      k = constant float32[] 2.0
      s = Mul(k, a)
      out = Add(b, s)
    }""")
    assert signature(body_of(turned, Group((0, 1), "out"))[0]) == signature(one)
    another = parse_graph("""graph "g" opset 18 (a: float32[4], b: float32[4]) -> (out) {
      k = constant float32[] 2.5
      s = Mul(k, a)
      out = Add(b, s)
    }""")
    assert signature(body_of(another, Group((0, 1), "out"))[0]) != signature(one)


def test_operands_that_are_exchanged_still_go_where_they_belong() -> None:
    graph = parse_graph("""graph "g" opset 18 (a: float32[n], b: float32[n]) -> (y) {
      e = Exp(b)
      s = Sub(a, e)
      t = Mul(e, s)
      y = Add(a, t)
    }""")
    given = {name: np.random.default_rng(len(name)).standard_normal(50).astype(np.float32) for name in "ab"}
    got = run(fuse(graph, [Group((0, 1, 2, 3), "y")]), given)["y"]
    np.testing.assert_allclose(got, run(graph, given)["y"], rtol=1e-5, atol=1e-6)


def test_a_fused_node_prints() -> None:
    text = str(fuse(parse_graph(NORM), [WHOLE]))
    assert "egraft.Fused(" in text and "ReduceMean" in text
    again = parse_graph(text)
    assert any(is_fused(node) for node in again.nodes)
    np.testing.assert_allclose(run(again, feeds())["y"], expected(feeds()), rtol=1e-5, atol=1e-5)


@needs_compiler
@pytest.mark.parametrize("exact", [False, True])
def test_fused_nodes_go_into_a_file_and_are_recognized_again(exact: bool, tmp_path: Path,
                                                             monkeypatch: pytest.MonkeyPatch) -> None:
    graph = parse_graph("""graph "g" opset 18 (a: float32[n], b: float32[n]) -> (y) {
      k = constant float32[] 0.5
      p = Mul(a, b)
      q = Add(p, k)
      r = Relu(q)
      t = Neg(r)
      y = Mul(t, b)
    }""")
    groups = [Group((0, 1), "q"), Group((2, 3, 4), "y")]
    save(as_functions(fuse(graph, groups, exact)), tmp_path / "m.onnx")
    given = {name: np.random.default_rng(len(name)).standard_normal(300).astype(np.float32) for name in "ab"}
    want = run(graph, given)["y"]
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, given)[0], want, rtol=1e-6, atol=1e-6)
    calls: list[bool] = []
    plain = FusedKernel.__call__
    monkeypatch.setattr(FusedKernel, "__call__",
                        lambda self, *a, **k: calls.append(self.exact) or plain(self, *a, **k))
    loaded = load(tmp_path / "m.onnx")
    assert len(loaded.nodes) == 2
    np.testing.assert_array_equal(run(loaded, given)["y"], want)
    assert calls == [exact, exact]


def test_types_go_through_fused_nodes_and_their_bodies_keep_theirs() -> None:
    graph = fuse(parse_graph(NORM), [WHOLE])
    before = str(graph)
    infer(graph)
    assert str(graph.types["y"]) == "float32[n, m]" and str(graph) == before
    graph.types = {name: type_ for name, type_ in graph.types.items() if name in graph.inputs}
    infer(graph)
    assert str(graph.types["y"]) == "float32[n, m]" and str(graph) == before


@needs_compiler
def test_equal_fused_nodes_of_a_file_share_one_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = parse_graph("""graph "g" opset 18 (a: float32[n], b: float32[n]) -> (y) {
      k = constant float32[] 0.375
      p = Mul(a, b)
      q = Add(p, k)
      r = Mul(q, b)
      y = Add(r, k)
    }""")
    save(as_functions(fuse(graph, [Group((0, 1), "q"), Group((2, 3), "y")])), tmp_path / "m.onnx")
    kernels: list[int] = []
    monkeypatch.setattr(FusedKernel, "__call__", lambda self, *a, **k: kernels.append(id(self)) or plain(self, *a, **k))
    given = {name: np.random.default_rng(len(name)).standard_normal(300).astype(np.float32) for name in "ab"}
    session = Session(load(tmp_path / "m.onnx"))
    np.testing.assert_array_equal(session.run(given)["y"], run(graph, given)["y"])
    assert len(kernels) == 2 and len(set(kernels)) == 1 and session.report.fused == 2
    assert session.report.nodes == len(onnx.load(tmp_path / "m.onnx").graph.node)


plain = FusedKernel.__call__
