"""Specialised files: constant sizes, and buckets behind a guard, against ONNX Runtime on the original."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

from cost_model.comparison import Comparison, estimated
from graphs import load, save
from graphs.builder import Builder
from graphs.errors import InvalidOption
from graphs.inference import infer
from graphs.ir import Graph
from graphs.text import parse_graph
from optimizer import optimize, specialize
from optimizer.command_line import main
from optimizer.finalists import INPUT, Finalist
from optimizer.fixing import fixed
from optimizer.piecewise import piecewise
from optimizer.replay import replay
from search.trace import same_graph

Output = pytest.CaptureFixture[str]
RNG = np.random.default_rng(5)
WORDS: dict[str, Any] = {"target": "roofline", "effort": "low"}
WEIGHT = RNG.normal(size=(32, 32)).astype(np.float32)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Peaks of the device are measured once."""
    return str(tmp_path_factory.mktemp("timings") / "t.db")


def model(opset: int = 18) -> Graph:
    """Two inputs that share a size, a shape computed at run time, a weight worth sharing, three outputs."""
    b = Builder("m", opset=opset)
    x, mask = b.input("x", "float32", ["batch", "seq", 32]), b.input("mask", "float32", ["batch", "seq"])
    rows = b.MatMul(x, WEIGHT)
    count = b.Gather(b.Shape(x), np.asarray([0, 1], np.int64), axis=0)
    parts = b.Reshape(rows, shape=b.Concat(count, np.asarray([4, 8], np.int64), axis=0))
    b.output(b.Mul(b.Reshape(parts, shape=b.Shape(x)), b.Unsqueeze(mask, np.asarray([2], np.int64))), "y")
    b.output(x, "same")
    b.output(b.constant(np.asarray([1.0, 2.0], np.float32)), "fixed")
    return b.graph()


def feeds(batch: int, seq: int, rows: int | None = None) -> dict[str, np.ndarray]:
    rng = np.random.default_rng((batch, seq))
    return {"x": rng.normal(size=(batch, seq, 32)).astype(np.float32),
            "mask": rng.normal(size=(batch, seq if rows is None else rows)).astype(np.float32)}


def session(graph: Graph, path: Path) -> onnxruntime.InferenceSession:
    save(graph, path)
    onnx.checker.check_model(str(path), full_check=True)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def assert_same(a: onnxruntime.InferenceSession, b: onnxruntime.InferenceSession, given: dict[str, np.ndarray]) -> None:
    for left, right in zip(a.run(None, given), b.run(None, given), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-5)


def test_fixed_sizes_are_in_the_types_and_nothing_else_changes(tmp_path: Path) -> None:
    graph = model()
    special = fixed(graph, {"batch": 2, "seq": 5})
    assert [str(special.declared[name]) for name in special.inputs] == ["float32[2, 5, 32]", "float32[2, 5]"]
    assert str(graph.declared["x"]) == "float32[batch, seq, 32]"
    assert special.inputs == graph.inputs and special.outputs == graph.outputs
    assert [node.outputs for node in special.nodes] == [node.outputs for node in graph.nodes]
    original, made = session(graph, tmp_path / "a.onnx"), session(special, tmp_path / "b.onnx")
    assert [tuple(each.shape) for each in made.get_outputs()] == [(2, 5, 32), (2, 5, 32), (2,)]
    assert_same(original, made, feeds(2, 5))
    with pytest.raises(Exception, match="invalid dimensions"):
        made.run(None, feeds(2, 6))
    assert str(fixed(graph, {"batch": 2}).type_of("y")) == "float32[2, seq, 32]"


def test_optimizing_with_fixed_sizes(tmp_path: Path, database: str) -> None:
    save(model(), tmp_path / "m.onnx")
    words = {**WORDS, "timings": database}
    result = optimize(tmp_path / "m.onnx", fix_dims={"batch": 2, "seq": 5}, dims={"seq": [5]}, **words)
    assert {node.op for node in result.graph.nodes}.isdisjoint({"Shape", "Gather", "Concat"})
    assert result.report["fixed"]["sizes"] == {"batch": 2, "seq": 5}
    assert "batch=2, seq=5: the result takes no other sizes" in result.summary()
    assert result.report["options"]["dims"] == {"seq": [5]}
    assert_same(session(model(), tmp_path / "a.onnx"), session(result.graph, tmp_path / "b.onnx"), feeds(2, 5))
    first, second = result.trace.steps[:2]
    assert first["cost_before"] == pytest.approx(first["cost_after"])  # the same nodes, at the same sizes
    assert first["cost_after"] == second["cost_before"] > 0
    assert first["rule"] == "fix-sizes" and result.report["steps"] == len(result.trace.steps)
    assert same_graph(result.trace.replay(load(tmp_path / "m.onnx")), result.graph)
    general = optimize(tmp_path / "m.onnx", **WORDS, timings=database)
    assert_same(session(model(), tmp_path / "a.onnx"), session(general.graph, tmp_path / "b.onnx"), feeds(3, 7))


def test_one_pair_of_times_of_fixed_sizes(tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the report says was measured and what its roofline holds are the same runs: of the file that was given."""
    row = {"speed_up": 2.0, "low": 1.9, "high": 2.1, "verdict": "faster", "before": 4e-3, "after": 2e-3,
           "rounds": 9, "noise": 0.02, "kind": "measured"}
    monkeypatch.setattr(specialize, "_against_the_file", lambda *_: (row, ""))
    result = optimize(model(), fix_dims={"batch": 2, "seq": 5}, **WORDS, timings=database)
    roofline = result.report["roofline"]
    assert (roofline["before"]["seconds"], roofline["after"]["seconds"]) == (4e-3, 2e-3)
    result.report["fixed"]["against_constant_sizes"] = {**row, "speed_up": 0.98, "verdict": "equal"}
    assert "2.000x of the file that was given, faster; 0.980x of constant sizes alone, equal" in result.summary()


@pytest.mark.parametrize(("words", "text"), [
    (["--fix-dim", "length=3"], "--fix-dim length: the model's inputs have no dimension 'length'; known: batch, seq"),
    (["--fix-dim", "seq=3,seq=4"], "seq is to be 3, too"), (["--fix-dim", "seq"], "--fix-dim seq: not of the form"),
    (["--fix-dim", "seq=0"], "greater than or equal to 1"), (["--fix-dim", "seq=3", "--dim", "seq=4"], "--dim seq:"),
    (["--fix-dim", "seq=3", "--buckets", "seq=3,4"], "leave one of them out"), (["--buckets", "s=3"], "--buckets s:"),
    (["--buckets", "seq=x"], "--buckets seq=x: not of the form"),
    (["--buckets", "seq=1", "--objective", "nodes"], "for the objective time"),
    (["--buckets", "seq=1,2,3,4,5", "--buckets", "batch=1,2,3,4"], "20 combinations of sizes; ask for at most 16"),
    (["--fix-dim", "seq=3", "--inputs", "FOLDER/in.npz"], "invalid-input"),
], ids=lambda each: " ".join(each) if isinstance(each, list) else "")  # fmt: skip
def test_impossible_sizes(words: list[str], text: str, tmp_path: Path, capsys: Output) -> None:
    save(model(), tmp_path / "m.onnx")
    np.savez(tmp_path / "in.npz", **feeds(2, 5))  # type: ignore[arg-type]
    given = [word.replace("FOLDER", str(tmp_path)) for word in words]
    assert main(["optimize", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "o.onnx"), "--target", "roofline",
                 "--timings", str(tmp_path / "t.db"), *given]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1 and text in lines[0], lines
    assert not (tmp_path / "o.onnx").exists()


def test_a_size_that_the_model_does_not_take(database: str) -> None:
    graph = parse_graph("""graph "m" opset 18 (x: float32[n]) -> (y) {
      w = constant float32[3] [1, 2, 3] y = Add(x, w) }""")
    for option in ({"fix_dims": {"n": 2}}, {"buckets": {"n": [3, 2]}}):
        with pytest.raises(InvalidOption, match="n=2: the model does not take this size"):
            optimize(graph, **option, **WORDS, timings=database)


def variants(graph: Graph, *sizes: dict[str, int]) -> list[tuple[dict[str, int], Graph]]:
    """Graphs that differ from the general one in what they give, so that it shows which one ran: `fixed` is the number
    of the variant."""
    found = []
    for number, each in enumerate(sizes):
        special = fixed(graph, each)
        name = next(node.inputs[0] for node in special.nodes if node.outputs == ("fixed",))
        special.constants[name] = parse_graph(
            f"graph opset 18 () -> (v) {{ v = constant float32[2] [{number}, {number}] }}").constants["v"]
        found.append((each, special))
    return found


@pytest.mark.parametrize("opset", [11, 13, 18, 21])
def test_the_guard_chooses_by_all_sizes(opset: int, tmp_path: Path) -> None:
    graph = model(opset)
    made = piecewise(graph, variants(graph, {"seq": 3}, {"seq": 5}, {"seq": 1}))
    assert made.inputs == graph.inputs and made.outputs == graph.outputs and made.opset == opset
    original, found = session(graph, tmp_path / "a.onnx"), session(made, tmp_path / "b.onnx")
    for seq, which in ((3, 0.0), (5, 1.0), (1, 2.0), (4, 1.0), (0, 1.0)):
        given = feeds(2, seq)
        y, same, number = found.run(None, given)
        wanted = original.run(None, given)
        np.testing.assert_allclose(y, wanted[0], rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(same, given["x"])
        assert number[0] == which, seq
        assert list(number) == ([1.0, 2.0] if seq in (4, 0) else [which, which])
    # Inputs that do not agree with each other: a mask of one column, which broadcasts.
    assert list(found.run(None, feeds(2, 3, rows=1))[2]) == [1.0, 2.0]
    assert_same(original, found, feeds(2, 3, rows=1))


def test_several_symbols_and_sizes_inside_expressions(tmp_path: Path) -> None:
    graph = parse_graph("""graph "m" opset 18 (x: float32[a, b], z: float32[a + b]) -> (y, k) {
      s = ReduceSum(x, axes=[0, 1], keepdims=0) k = Shape(x) y = Mul(z, s) }""")
    infer(graph)
    made = piecewise(graph, [({"a": 2, "b": 3}, fixed(graph, {"a": 2, "b": 3})), ({"a": 1, "b": 1}, graph)])
    original, found = session(graph, tmp_path / "a.onnx"), session(made, tmp_path / "b.onnx")
    for a, b in ((2, 3), (1, 1), (3, 2), (2, 2)):
        assert_same(original, found, {"x": np.ones((a, b), np.float32), "z": np.ones(a + b, np.float32)})


def test_one_dimension_needs_a_short_guard(tmp_path: Path) -> None:
    graph = parse_graph('graph "m" opset 18 (x: float32[n, 3]) -> (y) { y = Exp(x) }')
    infer(graph)
    made = piecewise(graph, [({"n": 2}, fixed(graph, {"n": 2}))])
    assert [node.op for node in made.nodes] == ["Shape", "Gather", "Equal", "If"]
    original, found = session(graph, tmp_path / "a.onnx"), session(made, tmp_path / "b.onnx")
    for n in (1, 2, 3):
        assert_same(original, found, {"x": np.ones((n, 3), np.float32)})


def test_weights_stand_once(tmp_path: Path) -> None:
    graph = model()
    made = piecewise(graph, [({"seq": n}, fixed(graph, {"seq": n})) for n in (2, 3, 4)])
    large = [constant for each in made.walk() for constant in each.constants.values() if constant.nbytes >= 1024]
    assert [constant.nbytes for constant in large] == [WEIGHT.nbytes]
    save(graph, tmp_path / "a.onnx")
    save(made, tmp_path / "b.onnx")
    assert (tmp_path / "b.onnx").stat().st_size < (tmp_path / "a.onnx").stat().st_size + WEIGHT.nbytes


def test_an_opset_without_such_an_if(database: str) -> None:
    with pytest.raises(InvalidOption, match=r"opset 10 .*add --opset 11"):
        optimize(parse_graph('graph "m" opset 10 (x: float32[n]) -> (y) { y = Neg(x) }'), buckets={"n": [1]},
                 **WORDS, timings=database)


def contest(seconds: Mapping[str, float]) -> Any:
    """In the place of measuring: each entry takes the seconds that the test says."""

    def measure(entries: list[Finalist], context: Any, sizes: Any) -> tuple[Comparison, dict[str, str], str]:
        times = {entry.name: seconds.get(entry.name, 1.0) for entry in entries}
        return estimated(times, INPUT, "measured", 1, "said by the test"), {}, ""

    return measure


def test_buckets_that_pay_are_in_the_file(tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(specialize, "measure_whole", contest({"bucket": 0.5, "piecewise": 0.6}))
    save(model(), tmp_path / "m.onnx")
    result = optimize(tmp_path / "m.onnx", buckets={"seq": [4, 6]}, fix_dims={"batch": 2}, **WORDS, timings=database)
    assert result.report["chosen"] == "piecewise" and result.report["buckets"]["chosen"]
    assert result.report["measured"]["speed_up"] == pytest.approx(1 / 0.6)
    checked = result.report["buckets"]["validation"]
    assert [row["sizes"] for row in checked] == [{"seq": 4}, {"seq": 6}, {"seq": 128}]
    assert {row["status"] for row in checked} == {"passed"}
    original, found = session(model(), tmp_path / "a.onnx"), session(result.graph, tmp_path / "b.onnx")
    for seq in (4, 6, 5, 1):
        assert_same(original, found, feeds(2, seq))
    rules = [step["rule"] for step in result.trace.steps]
    assert rules[0] == "fix-sizes" and rules[-1] == "piecewise"
    assert same_graph(replay(load(tmp_path / "m.onnx"), result.trace.steps), result.graph)
    assert "buckets    in one file" in result.summary()


@pytest.mark.parametrize(("seconds", "reason"), [
    ({"bucket": 1.0}, "no bucket was measured faster"),
    ({"bucket": 0.5, "piecewise": 1.2}, "it was measured slower than the general graph at"),
    ({"bucket": 0.5, "piecewise": 1.0}, "not measured faster than the general graph at any bucket"),
])
def test_buckets_that_do_not_pay_leave_the_general_graph(
        seconds: dict[str, float], reason: str, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(specialize, "measure_whole", contest(seconds))
    result = optimize(model(), buckets={"seq": [4]}, **WORDS, timings=database)
    assert not any(node.op == "If" for node in result.graph.nodes)
    assert reason in result.report["buckets"]["reason"] and reason in result.summary()


def test_buckets_beside_a_sequence(database: str) -> None:
    """An input that is a sequence decides no size."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (seq(float[n]) x, float[n] w) => (float[n] y) '
        "{ z = Constant<value = int64 {0}>() a = SequenceAt(x, z) y = Add(a, w) }")
    result = optimize(load(model.SerializeToString()), target="roofline", effort="low", timings=database,
                      buckets={"n": [4]})
    assert [node.op for node in result.graph.nodes if node.op != "If"][-2:] == ["SequenceAt", "Add"]
