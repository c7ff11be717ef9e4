import math
from pathlib import Path

import numpy as np
import pytest

from cost_model import protocol
from cost_model.costs import ABSENT, NodeInput, NodeSpec
from cost_model.node_costs import NodeCosts
from cost_model.peaks import Peaks
from cost_model.probe import Unmeasurable, node_graph, output_types
from cost_model.protocol import Sample, Samples
from cost_model.roofline import graph_roofline
from cost_model.signature import graph_digest, node_key, spec_of
from cost_model.sizes import default_measure_sizes, measure_size_sets, size_of, static_type
from cost_model.timings import Timings
from graphs.dims import call, data_dim, symbol
from graphs.errors import FrozenMiss, InvalidOption
from graphs.inference import infer
from graphs.ir import Graph
from graphs.text import parse_graph
from graphs.types import TensorType
from tests.cost_model.fakes import FakeTarget

ROWS = TensorType("float32", (symbol("batch"), 8))
WEIGHT = TensorType("float32", (8, 4))
PEAKS = Peaks(flops=1e9, cache_bytes=1e9, memory_bytes=1e9, threads=1)


def costs(target: FakeTarget, timings: Timings | None = None, **options: float) -> NodeCosts:
    found = NodeCosts(target, timings or Timings(":memory:"), {"batch": 2}, **options)  # type: ignore[arg-type]
    found._peaks = PEAKS
    return found


def small(text: str) -> Graph:
    return parse_graph(text)


def test_a_signature_knows_operator_types_and_constants_but_no_names() -> None:
    first = small(
        'graph "g" opset 17 (x: float32[2, 8]) -> (y) {\n  w = constant float32[8, 1] [1, 2, 3, 4, 5, 6, 7, 8]\n'
        "  y = MatMul(x, w)\n}"
    )
    second = small(
        'graph "h" opset 18 (in: float32[2, 8]) -> (out) {\n'
        "  v = constant float32[8, 1] [9, 2, 3, 4, 5, 6, 7, 8]\n  out = MatMul(in, v)\n}"
    )
    keys = {node_key(spec_of(graph, graph.nodes[0], {}), 1) for graph in (first, second)}
    assert keys == {"MatMul@13 (float32[2, 8], const float32[8, 1]) -> 1 threads=1"}
    assert node_key(spec_of(first, first.nodes[0], {}), 2).endswith("threads=2")


def test_small_constants_count_by_content() -> None:
    def key(exponent: float) -> str:
        value = NodeInput(TensorType("float32", ()), True, np.array(exponent, np.float32))
        return node_key(NodeSpec("Pow", "", {}, (NodeInput(WEIGHT), value), 1, 17), 1)

    assert key(2.0) == "Pow@15 (float32[8, 4], const float32 2) -> 1 threads=1".replace("float32 2", "float32[] 2")
    assert key(2.0) != key(3.0)


@pytest.mark.parametrize(("one", "other"), [
    ("ReduceMean(x, axes=[-1])", "ReduceMean(x, axes=[2])"), ("ReduceSum(x)", "ReduceSum(x, axes=[1, -1, 0])"),
    ("Softmax(x)", "Softmax(x, axis=2)"), ("Gather(x, i, axis=-3)", "Gather(x, i)"),
    ("Concat(x, x, axis=-2)", "Concat(x, x, axis=1)"), ("LayerNormalization(x, w)", "LayerNormalization(x, w, axis=2)"),
    ("Transpose(x)", "Transpose(x, perm=[2, 1, 0])"),
    ("Slice(x, starts=[1], ends=[9223372036854775807], axes=[-1])", "Slice(x, starts=[-3], ends=[4], axes=[2])"),
    ("Add(w, x)", "Add(x, w)"),
])  # fmt: skip
def test_the_same_operation_has_one_signature_however_it_is_spelled(one: str, other: str) -> None:
    def key(node: str) -> str:
        graph = small('graph "g" opset 18 (x: float32[2, 3, n], i: int64[1]) -> (y) { '
                      f"w = constant float32[4] [1, 2, 3, 5] y = {node} }}")
        infer(graph)
        return node_key(spec_of(graph, graph.nodes[0], {"n": 4}), 1)

    assert key(one) == key(other)


def test_another_operation_has_another_signature() -> None:
    text = 'graph "g" opset {} (x: float32[2, 4], w: float32[4]) -> (y) {{ y = {} }}'
    nodes = [(11, "Softmax(x, axis=0, flatten=1)"), (11, "Softmax(x, axis=1, flatten=1)"), (18, "Sub(w, x)"),
             (18, "Sub(x, w)"), (18, "ReduceSum(x)"), (18, "ReduceSum(x, axes=[-1])")]
    graphs = [small(text.format(*each)) for each in nodes]
    for graph in graphs:
        infer(graph)
    assert len({node_key(spec_of(graph, graph.nodes[0], {}), 1) for graph in graphs}) == len(nodes)


def test_absent_inputs_at_the_end_are_no_inputs() -> None:
    value = NodeInput(WEIGHT)
    long, short = (NodeSpec("Clip", "", {}, inputs, 1, 17) for inputs in ((value, ABSENT, ABSENT), (value,)))
    assert node_key(long, 1) == node_key(short, 1)
    middle = NodeSpec("Clip", "", {}, (value, ABSENT, NodeInput(TensorType("float32", ()))), 1, 17)
    assert "(float32[8, 4], -, float32[])" in node_key(middle, 1)


def test_a_cost_is_an_estimate_until_it_is_measured_and_then_comes_from_the_database(tmp_path: Path) -> None:
    target, path = FakeTarget(), tmp_path / "t.db"
    fresh = costs(target, Timings(path))
    inputs = [NodeInput(ROWS), NodeInput(WEIGHT, True)]
    before = fresh.cost("MatMul", "", {}, inputs)
    assert before.source == "roofline" and before.seconds > 1e-6
    assert fresh.missing() == ["MatMul@13 (float32[2, 8], const float32[8, 4]) -> 1 threads=1"]
    done = fresh.measure()
    assert (done.count, done.left, fresh.missing()) == (1, 0, [])
    measured = fresh.cost("MatMul", "", {}, inputs)
    assert measured.source == "measured" and measured.seconds > 0
    again = costs(FakeTarget(), Timings(path)).cost("MatMul", "", {}, inputs)
    assert again.source == "database" and again.seconds == measured.seconds
    other_device = costs(FakeTarget("two"), Timings(path)).cost("MatMul", "", {}, inputs)
    assert other_device.source == "roofline"


def test_equal_signatures_are_measured_once_and_the_budget_is_kept() -> None:
    target = FakeTarget()
    found = costs(target)
    for rows in (2, 4, 2, 4):
        found.cost("Relu", "", {}, [NodeInput(TensorType("float32", (rows, 8)))])
    assert len(found.missing()) == 2
    assert found.missing()[0].startswith("Relu@14 (float32[4, 8])")  # the more expensive one first
    none = found.measure(budget_seconds=0.0)
    assert (none.count, none.left) == (0, 2)
    assert found.measure([found.missing()[1]]).count == 1
    assert found.sources() == {"roofline": 1, "measured": 1}


def test_what_depends_on_constants_alone_is_free() -> None:
    found = costs(FakeTarget())
    weight = NodeInput(WEIGHT, True)
    assert found.cost("Transpose", "", {"perm": (1, 0)}, [weight]).source == "free"
    assert found.cost("Transpose", "", {"perm": (1, 0)}, [NodeInput(WEIGHT)]).source == "roofline"
    random = {"dtype": 1, "shape": (2,), "mean": 0.0, "scale": 1.0, "seed": None}
    assert found.cost("RandomNormal", "", random, []).source != "free"


def test_a_missing_kernel_is_unsupported_and_remembered(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    found = costs(FakeTarget(missing=frozenset({"Relu"})), Timings(path))
    found.cost("Relu", "", {}, [NodeInput(ROWS)])
    found.measure()
    cost = found.cost("Relu", "", {}, [NodeInput(ROWS)])
    assert (cost.source, cost.seconds) == ("unsupported", math.inf) and "no kernel" in cost.note
    again = costs(FakeTarget(missing=frozenset({"Relu"})), Timings(path))
    assert again.cost("Relu", "", {}, [NodeInput(ROWS)]).source == "unsupported"


def test_a_measurement_that_fails_leaves_an_estimate_and_is_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    broken = costs(FakeTarget(broken=frozenset({"Relu"})), Timings(path))
    broken.cost("Relu", "", {}, [NodeInput(ROWS)])
    broken.measure()
    cost = broken.cost("Relu", "", {}, [NodeInput(ROWS)])
    assert cost.source == "roofline" and "the data do not fit" in cost.note and math.isfinite(cost.seconds)
    mended = costs(FakeTarget(), Timings(path))
    mended.cost("Relu", "", {}, [NodeInput(ROWS)])
    mended.measure()
    assert mended.cost("Relu", "", {}, [NodeInput(ROWS)]).source == "measured"


@pytest.mark.parametrize(("measured", "filed", "times"), [
    ([(5.8, 11.2, 0.02), (0.022, 0.023, 0.021)], 0.022, 2), ([(0.02, 0.021, 0.09)], 0.021, 1),
    ([(0.01, 0.03, 0.04), (5.0, 20.0, 11.2)], 0.03, 1), ([(0.001, 0.03, 0.06), (5.0, 20.0, 0.2)], 0.03, 2),
])
def test_samples_that_disagree_wildly_are_taken_once_more(monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
                                                          measured: list[tuple[float, ...]], filed: float,
                                                          times: int) -> None:
    """What other processes do to a node's samples is no cost of the node: the record that scatters less is filed."""
    taken = iter(measured)

    def measure_one(*_: object, **__: object) -> Samples:
        return Samples(tuple(Sample(each, each) for each in next(taken)), 1, "cpu")

    target, path = FakeTarget(), tmp_path / "t.db"
    for name in ("chain", "work"):  # their nominal times are measured before
        target.reference(name, 1, Timings(path))
    monkeypatch.setattr(protocol, "measure_one", measure_one)
    found = costs(target, Timings(path))
    found.cost("Relu", "", {}, [NodeInput(ROWS)])
    found.measure()
    assert found.cost("Relu", "", {}, [NodeInput(ROWS)]).seconds == pytest.approx(filed)
    assert len(list(taken)) == len(measured) - times
    again = costs(FakeTarget(), Timings(path), frozen=True)
    assert again.cost("Relu", "", {}, [NodeInput(ROWS)]).seconds == pytest.approx(filed)


def test_frozen_costs_come_from_the_database_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    warm = costs(FakeTarget(), Timings(path))
    warm.cost("Relu", "", {}, [NodeInput(ROWS)])
    warm.measure()
    frozen = costs(FakeTarget(), Timings(path), frozen=True)
    assert frozen.cost("Relu", "", {}, [NodeInput(ROWS)]).source == "database"
    assert frozen.cost("Sigmoid", "", {}, [NodeInput(ROWS)]).source == "roofline"
    with pytest.raises(FrozenMiss, match="Sigmoid"):
        frozen.measure()


def test_what_there_was_no_time_for_is_estimated_in_a_frozen_run_and_measured_in_the_next(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    first = costs(FakeTarget(), Timings(path), budget_seconds=0.0)
    first.cost("Relu", "", {}, [NodeInput(ROWS)])
    assert first.measure().left == 1
    frozen = costs(FakeTarget(), Timings(path), frozen=True)
    cost = frozen.cost("Relu", "", {}, [NodeInput(ROWS)])
    assert cost.source == "roofline" and "time" in cost.note and not frozen.missing()
    assert cost.seconds == first.cost("Relu", "", {}, [NodeInput(ROWS)]).seconds
    frozen.measure()
    later = costs(FakeTarget(), Timings(path))
    later.cost("Relu", "", {}, [NodeInput(ROWS)])
    later.measure()
    assert later.cost("Relu", "", {}, [NodeInput(ROWS)]).source == "measured"


def test_what_cannot_be_measured_alone_is_estimated_and_says_why() -> None:
    found = costs(FakeTarget())
    cost = found.cost("Relu", "", {}, [NodeInput(None)])
    assert cost.source == "roofline" and "unknown" in cost.note and cost.seconds == 1e-6
    assert found.missing() == []


def test_the_one_node_graph_is_the_node_with_fitting_data() -> None:
    table, ids = NodeInput(TensorType("float32", (50, 4)), True), NodeInput(TensorType("int64", (2, 3)))
    spec = NodeSpec("Gather", "", {"axis": 0}, (table, ids), 1, 17)
    graph, feeds = node_graph(spec)
    assert graph.type_of("y0") == TensorType("float32", (2, 3, 4))
    assert list(graph.constants) == ["x0"] and list(feeds) == ["x1"]
    assert feeds["x1"].min() >= 0 and feeds["x1"].max() < 50
    again, _ = node_graph(spec)
    assert again.constants["x0"] == graph.constants["x0"]
    assert output_types(spec) == [TensorType("float32", (2, 3, 4))]
    with pytest.raises(Unmeasurable, match="input 0"):
        node_graph(NodeSpec("Relu", "", {}, (NodeInput(None),), 1, 17))


def test_default_sizes_by_name_then_by_place() -> None:
    graph = Graph(inputs=["image", "ids", "odd", "audio"])
    graph.types = {
        "image": TensorType("float32", (symbol("N"), 3, symbol("height"), symbol("s3"))),
        "ids": TensorType("int64", (symbol("batch_size"), symbol("u1"))),
        "odd": TensorType("float32", (symbol("q0"), symbol("q1"), symbol("seq_len") * 2)),
        "audio": TensorType("float32", (symbol("frames"), 80)),
    }
    assert default_measure_sizes(graph) == {
        "N": 1,
        "height": 224,
        "s3": 224,
        "batch_size": 1,
        "u1": 128,
        "q0": 1,
        "q1": 16,
        "seq_len": 128,
        "frames": 128,
    }
    sets = measure_size_sets(graph, {"N": [1, 8], "u1": 64})
    assert [(each["N"], each["u1"]) for each in sets] == [(1, 64), (8, 64)]
    with pytest.raises(InvalidOption, match="no dimension 'nope'"):
        default_measure_sizes(graph, {"nope": 3})
    with pytest.raises(InvalidOption, match="impossible size"):
        default_measure_sizes(graph, {"N": [0]})


def test_sizes_of_dimensions_that_data_decide_are_stated() -> None:
    assert size_of(symbol("seq") + 1, {"seq": 4}) == 5
    assert size_of(symbol("seq"), {}) == 128
    assert size_of(data_dim("nonzero") * 2, {}) == 32
    assert size_of(call("max", symbol("a"), data_dim("n")), {"a": 40}) == 40
    assert static_type(TensorType("float32"), {}) is None


def test_graph_digest_ignores_names_and_sees_everything_else() -> None:
    text = 'graph "g" opset 17 (x: float32[2, 8]) -> (y) {{\n  {0} = Relu(x)\n  y = {1}({0})\n}}'
    base = graph_digest(small(text.format("t", "Exp")))
    assert graph_digest(small(text.format("other", "Exp"))) == base
    assert graph_digest(small(text.format("t", "Log"))) != base
    assert graph_digest(small(text.format("t", "Exp").replace("2, 8", "2, 9"))) != base
    assert graph_digest(small(text.format("t", "Exp").replace("opset 17", "opset 18"))) != base


def test_the_roofline_of_a_graph_counts_unique_bytes_and_launches() -> None:
    graph = small(
        'graph "g" opset 17 (x: float32[batch, 8]) -> (y) {\n'
        "  w = constant float32[8, 1] [1, 2, 3, 4, 5, 6, 7, 8]\n  u = Neg(w)\n  t = MatMul(x, u)\n"
        "  r = Reshape(t, shape=[-1])\n  y = Exp(r)\n}"
    )
    found = graph_roofline(graph, {"batch": 4}, PEAKS, launch=1e-6)
    assert found.launches == 2 and found.unknown == 0
    assert found.unique_bytes == 4 * 8 * 4 + 8 * 4 + 4 * 4
    assert found.lower_bound == pytest.approx(max(found.flops, found.unique_bytes) / 1e9)
    assert found.kernels_bound > 2e-6
    assert found.intensity == pytest.approx(found.flops / found.unique_bytes)


OUTSIDE, INSIDE = (
    f"""graph "g" opset 18 (x: float32[n], c: bool[]) -> (y) {{
      {"" if inside else "w = constant float32[2] [1, 2]"}
      y = If(c, then_branch=graph "t" () -> (t) {{ s = Neg(x) t = Abs(s) }}, else_branch=graph "e" () -> (e) {{
        {"w = constant float32[2] [1, 2]" if inside else ""}
        a = Neg(w) r = ReduceSum(a, axes=[0], keepdims=1) e = Mul(x, r) }}) }}"""
    for inside in (False, True))
NEG = 1e-6 + 8000 / 1e9  # launch; 1,000 float32 read and written at 1e9 bytes a second


@pytest.mark.parametrize("text", [OUTSIDE, INSIDE])
def test_a_branch_sees_types_and_constants_around_it(text: str) -> None:
    """The dearer branch counts, two nodes over 1,000 elements, whose type only the graph around it knows."""
    graph = parse_graph(text)
    infer(graph)
    found = NodeCosts(FakeTarget(), Timings(":memory:"), {"n": 1000})
    found._peaks = PEAKS
    assert found.node_in(graph, graph.nodes[0]).seconds == pytest.approx(1e-6 + 2 * NEG)
    last = graph.nodes[0].attrs["else_branch"]
    assert isinstance(last, Graph)
    graph.nodes[0].attrs["then_branch"] = last  # one Mul that runs: what depends on constants alone is free
    assert found.node_in(graph, graph.nodes[0]).seconds == pytest.approx(1e-6 + NEG + 4 / 1e9)


def test_a_loop_of_constants_runs_over_what_its_body_reads() -> None:
    graph = parse_graph("""graph "g" opset 18 (x: float32[1000]) -> (y) {
      m = constant int64[] 1 go = constant bool[] true
      y = Loop(m, go, body=graph "b" (i: int64[], c: bool[]) -> (c, r) { r = Neg(x) }) }""")
    infer(graph)
    assert costs(FakeTarget()).node_in(graph, graph.nodes[0]).seconds == pytest.approx(1e-6 + NEG)


def test_what_a_body_reads_is_free_where_it_is_known_on_load() -> None:
    graph = parse_graph("""graph "g" opset 18 (c: bool[]) -> (y) {
      w = constant float32[2] [1, 2]
      v = Neg(w)
      y = If(c, then_branch=graph "t" () -> (t) { t = Neg(v) }, else_branch=graph "e" () -> (e) { e = Abs(v) }) }""")
    infer(graph)
    assert costs(FakeTarget()).node_in(graph, graph.nodes[1], {"w", "v"}).seconds == pytest.approx(1e-6)


def test_a_body_whose_nodes_were_measured_has_another_price() -> None:
    graph = parse_graph(OUTSIDE)
    infer(graph)
    found = NodeCosts(FakeTarget(), Timings(":memory:"), {"n": 1000})
    found._peaks = PEAKS
    before = found.node_in(graph, graph.nodes[0]).seconds
    assert {key.split("@")[0] for key in found.missing()} == {"Neg", "Abs", "Mul"}
    found.measure()
    assert found.node_in(graph, graph.nodes[0]).seconds != before
