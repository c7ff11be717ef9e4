"""Recompute or keep: peaks counted by hand and by the runtime, results bit for bit, the search against all subsets."""

import itertools
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from cost_model.memory import Lifetimes, peak_activation_bytes
from graphs.builder import Builder
from graphs.errors import InvalidOption
from graphs.ir import Graph, Node, fused_count
from graphs.onnx_io import proto_bytes
from graphs.text import parse_graph
from optimizer import optimize, pipeline
from optimizer.context import Context
from optimizer.finalists import Finalist
from optimizer.normalize import normalize
from optimizer.recompute import chosen, flushed, plans, within
from optimizer.replay import replay
from optimizer.report import memory_text
from runtime import Session
from runtime.training import SGD, AdamW, mean_squared_error, training_step
from runtime.validation import Validation

BATCH, WIDTH, LAYERS = 256, 16, 8
SIZES = {"batch": BATCH}
UPDATE = SGD(0.1)
STEP = BATCH * WIDTH * 4  # bytes of one activation


def one(_: object) -> float:
    return 1.0


def step(layers: int = LAYERS, optimizer: SGD | AdamW = UPDATE) -> Graph:
    """The training step of a deep network of Tanh, which the backward pass reads."""
    b, rng = Builder(), np.random.default_rng(0)
    x, t = b.input("x", "float32", ["batch", WIDTH]), b.input("t", "float32", ["batch", WIDTH])
    h = x
    for index in range(layers):
        h = b.Tanh(h @ b.constant(rng.normal(0, 0.3, (WIDTH, WIDTH)).astype(np.float32), f"w{index}"))
    b.output(mean_squared_error(b, h, t), "loss")
    graph = training_step(b.graph(), "loss", optimizer)
    normalize(graph)
    return graph


def feeds(batch: int = BATCH) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {name: rng.normal(size=(batch, WIDTH)).astype(np.float32) for name in ("x", "t")}


def same(left: Graph, right: Graph, given: dict[str, np.ndarray]) -> bool:
    a, b = (Session(graph).run(given) for graph in (left, right))
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name], equal_nan=True) for name in a)


def test_peaks_by_hand() -> None:
    graph = parse_graph("""graph "g" opset 18 (x: float32[100]) -> (y, z) {
      a = Sin(x) r = Reshape(a, shape=[10, 10]) c = Cos(r) d = Add(c, r) e = Sum(d, c) y = Relu(e) z = Relu(a) }""")
    lives = Lifetimes(graph, graph.nodes, {})
    # a and r are one memory, which z reads last; d takes over neither that nor c, which e reads; y and z are outputs
    assert list(lives.live) == [400, 400, 800, 1200, 1600, 800, 400]
    graph = parse_graph('graph "g" opset 18 (x: float32[100]) -> (y) { a = Sin(x) b = Exp(a) c = Cos(b) y = Relu(c) }')
    assert peak_activation_bytes(graph, {}) == 800  # Exp overwrites; Cos does not
    assert list(Lifetimes(graph, graph.nodes, {}).live) == [400, 400, 800, 400]


@pytest.mark.parametrize("optimizer", [UPDATE, AdamW(0.1)])
def test_updates_run_as_soon_as_they_can(optimizer: SGD | AdamW) -> None:
    graph = step(3, optimizer)
    order = [node.outputs[0] for node in flushed(graph)]
    assert sorted(order) == sorted(node.outputs[0] for node in graph.nodes)
    assert order.index("next_w2") < order.index("grad_w1") < order.index("next_w1") < order.index("grad_w0")


@pytest.mark.parametrize("share", [0.8, 0.5, 0.4])
def test_a_limit_is_kept_and_every_bit_stays(share: float) -> None:
    graph = step()
    whole = peak_activation_bytes(graph, SIZES)
    made, found = within(graph, SIZES, share * whole, one)
    assert found.peak == peak_activation_bytes(made, SIZES) <= share * whole
    assert found.recomputed > 0
    session = Session(made)
    session.run(feeds())
    outputs = sum(array.nbytes for array in session.run(feeds()).values())  # which the runtime counts, too
    assert session.report.peak_bytes is not None and session.report.peak_bytes <= share * whole + outputs
    assert same(graph, made, feeds())
    again = made.copy()
    normalize(again)  # merges what is equal (sizes): what was computed twice is not, for all it can tell
    assert peak_activation_bytes(again, SIZES) <= 1.02 * found.peak


def test_a_looser_limit_never_costs_more() -> None:
    graph = step(5)
    whole = peak_activation_bytes(graph, SIZES)
    found = plans(graph, SIZES, lambda node: 3.0 if node.op == "MatMul" else 1.0)
    rows = [chosen(graph, found, SIZES, share / 20 * whole)[1] for share in range(21)]
    least = min(row.peak for row in rows)
    assert least < 0.6 * whole
    for limit, (tight, loose) in enumerate(itertools.pairwise(rows)):
        if tight.peak <= limit / 20 * whole:  # what keeps a limit keeps every looser one, for no more time
            assert loose.peak <= (limit + 1) / 20 * whole and loose.seconds <= tight.seconds
        else:
            assert tight.peak == least
    assert rows[-1].seconds == 0


def test_what_is_not_searched_below_a_limit_would_not_be_cheaper() -> None:
    graph = step(5)
    whole = peak_activation_bytes(graph, SIZES)

    def seconds(node: Node) -> float:
        return 3.0 if node.op == "MatMul" else 1.0

    found = plans(graph, SIZES, seconds)
    for share in (0.9, 0.75, 0.6):
        _, plan = within(graph, SIZES, share * whole, seconds)
        assert plan.peak <= share * whole and plan.seconds == chosen(graph, found, SIZES, share * whole)[1].seconds


def test_numbers_that_are_none_and_no_numbers_at_all() -> None:
    graph = step()
    made, _ = within(graph, SIZES, 0.5 * peak_activation_bytes(graph, SIZES), one)
    given = feeds()
    given["x"][3, 5], given["x"][4, 5], given["t"][0, 0] = np.nan, -np.inf, np.inf
    assert same(graph, made, given)
    assert same(graph, made, feeds(0))


def test_onnx_runtime_computes_the_same() -> None:
    graph = step()
    made, _ = within(graph, SIZES, 0.5 * peak_activation_bytes(graph, SIZES), one)
    found = []
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    for each in (graph, made):
        session = onnxruntime.InferenceSession(proto_bytes(each), options, providers=["CPUExecutionProvider"])
        found.append(session.run(None, feeds()))
    for a, b in zip(*found):
        np.testing.assert_array_equal(a, b)


def forward_and_back(count: int, again: frozenset[int]) -> list[tuple[int, bool]]:
    """The order in which a chain of values is computed, and then each is read from the last to the first; those of
    `again` are computed again, with what they need, just before."""
    rows = [(index, True) for index in range(count)]
    for index in reversed(range(count)):
        first = index
        while first in again and first > 0:
            first -= 1
        rows += [(each, True) for each in range(first if first in again else first + 1, index + 1)] + [(index, False)]
    return rows


def chain_peak(rows: list[tuple[int, bool]]) -> int:
    """The most values alive at a time: each computation reads the one before, each reading adds a value of its own."""
    peak = 0
    reads = [(index - 1 if made else index, time) for time, (index, made) in enumerate(rows)]
    for time, (_, made) in enumerate(rows):
        alive = 0
        for index in {row[0] for row in rows if row[1]}:
            born = [t for t, row in enumerate(rows) if row == (index, True)]
            for start, end in zip(born, [*born[1:], len(rows)]):
                last = max([t for read, t in reads if read == index and start < t < end], default=start)
                alive += start <= time <= last
        peak = max(peak, alive + (0 if made else 1))
    return peak


def chain(count: int) -> Graph:
    """That chain: Cos is not done in place, and each reader is an output (not counted) of one element."""
    lines = ["v0 = Sin(x)", *(f"v{i} = Cos(v{i - 1})" for i in range(1, count))]
    carried = "x0"
    for index in reversed(range(count)):
        lines.append(f"t{index} = Sum(v{index}, {carried}) s{index} = ReduceMax(t{index}, keepdims=0)")
        carried = f"s{index}"
    text = f'graph "chain" opset 18 (x: float32[1000], x0: float32[]) -> ({carried}) {{ {" ".join(lines)} }}'
    return parse_graph(text)


@pytest.mark.parametrize("limit", [3, 4, 5])
def test_the_search_is_within_a_third_of_the_best_subset(limit: int) -> None:
    count = 6
    graph = chain(count)
    _, found = within(graph, {}, limit * 4000 + 100, lambda node: 1.0 if node.op in ("Sin", "Cos") else 0.1)
    best = min(len(rows) - 2 * count for size in range(count) for again in itertools.combinations(range(count), size)
               for rows in [forward_and_back(count, frozenset(again))] if chain_peak(rows) <= limit)
    assert found.peak <= limit * 4000 + 100
    assert found.recomputed <= best * 4 / 3


@pytest.mark.parametrize("reader, again", [("Sum(t, a, r)", {"a"}), ("Sum(t, a)", set())])
def test_what_is_drawn_is_not_drawn_again(reader: str, again: set[str]) -> None:
    # a may be computed again where r is still there; to have r there for that only would not save anything
    graph = parse_graph(f"""graph "g" opset 18 (x: float32[1000]) -> (y) {{
      r = RandomNormalLike(x) a = Sin(r) p = Cos(x) q = Sin(x) s = Sum(x, x) t = Sum(p, q, s) y = {reader} }}""")
    _, found = within(graph, {}, 20100.0 if again else 16100.0, one)
    assert {name.partition("_again")[0] for group in found.groups for name in group} == again
    assert 20000 <= found.peak <= 20016  # where the limit is not met, the least that was found is told


def test_a_limit_on_the_command_line_of_a_run() -> None:
    graph = step()
    result = optimize(graph, target="roofline", effort="low", timings=":memory:", dims={"batch": [BATCH]},
                      memory_limit="60%")
    memory = result.report["memory"]
    assert memory["met"] and memory["recomputed"] > 0 and memory["after"] <= memory["limit"] == 0.6 * memory["before"]
    assert peak_activation_bytes(result.graph, SIZES) == memory["after"]
    assert "nodes run again" in result.summary()
    small = {**memory, "before": 152, "after": 64 << 10, "limit": 3 << 20}
    assert memory_text(small).startswith("152 bytes -> 64.0 KiB of live values (limit 3.0 MiB)")
    last = result.trace.steps[-1]
    assert (last["rule"], last["exactness"]) == ("recompute", "exact")
    again = replay(result.original, result.trace.steps)
    assert [node.outputs for node in again.nodes] == [node.outputs for node in result.graph.nodes]
    with pytest.raises(InvalidOption, match="memory_limit"):
        optimize(graph, memory_limit="half")


def test_what_is_told_is_of_the_graph_that_is_handed_back(monkeypatch: pytest.MonkeyPatch) -> None:
    real = pipeline.checked

    def refusing(original: Graph, entry: Finalist, context: Context) -> Validation:
        found = real(original, entry, context)
        if entry.base is not None:
            found.status, found.reason = "failed", "because"
        return found

    monkeypatch.setattr(pipeline, "checked", refusing)
    result = optimize(step(), target="roofline", effort="low", timings=":memory:", dims={"batch": [BATCH]},
                      memory_limit="60%")
    memory = result.report["memory"]
    assert not memory["met"] and memory["recomputed"] == 0 and memory["predicted"] is None
    assert memory["after"] == peak_activation_bytes(result.graph, SIZES)
    assert any("nothing was recomputed" in text for text in result.report["warnings"])


@pytest.mark.parametrize("limit", ["0%", "1"])
def test_no_limit_is_too_low(limit: str) -> None:
    graph = parse_graph("""graph opset 17 (x: float32[64, 64]) -> (y) {
        a = Sin(x) b = Cos(a) c = Add(b, a) d = Tanh(c) e = Mul(d, a) f = Exp(e) y = Add(f, x) }""")
    for each in (graph, step(2)):
        result = optimize(each, target="roofline", effort="low", timings=":memory:", memory_limit=limit)
        assert not result.report["memory"]["met"]
        assert peak_activation_bytes(result.graph, result.report["target"]["sizes"]) == result.report["memory"]["after"]


def test_copies_of_decisions_are_validated_as_what_they_are_copies_of() -> None:
    """The maximum that a copy of MaxPool takes may be another one in float64 than the original's in float32."""
    b, rng = Builder(opset=17), np.random.default_rng(0)
    x = b.input("x", "float32", ["batch", 4, 32, 32])
    h = x
    for _ in range(3):
        h = b.Conv(h, b.constant(rng.normal(0, 0.3, (4, 4, 3, 3)).astype(np.float32)), pads=(1, 1, 1, 1),
                   kernel_shape=(3, 3))
        h = b.MaxPool(h, kernel_shape=(2, 2), strides=(1, 1), pads=(0, 0, 1, 1))
        h = b.Where(b.Greater(h, b.constant(np.float32(0))), h, b.Mul(h, b.constant(np.float32(0.1))))
    b.output(mean_squared_error(b, h, b.input("t", "float32", ["batch", 4, 32, 32])), "loss")
    graph = training_step(b.graph(), "loss", AdamW(0.01))
    result = optimize(graph, target="roofline", effort="low", timings=":memory:", memory_limit="60%")
    assert result.report["memory"]["recomputed"] > 0 and not result.report["dropped"]
    assert "equal bit for bit" in str(result.report["validation"])


def test_fusions_are_told_of_a_graph_within_a_memory_limit(tmp_path: Path) -> None:
    graph = parse_graph("""graph opset 17 (x: float32[512, 512]) -> (y) {
        a = Sin(x) b = MatMul(a, x) c = Exp(b) d = Tanh(c) e = MatMul(d, a) f = Sigmoid(e) g = Mul(f, e)
        y = MatMul(g, a) }""")
    result = optimize(graph, target="egraft:cpu", effort="low", threads=1, timings=str(tmp_path / "t.db"),
                      memory_limit="60%")
    assert result.report["chosen"].endswith("within the memory limit")
    told = sum(row["count"] for row in result.report["fusions"]["chosen"])
    assert 0 < told <= fused_count(result.graph)
