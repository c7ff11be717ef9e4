"""LSTM, GRU and RNN in the engine (`runtime/codegen/c/recurrent.py`) beside NumPy, float64 and ONNX's reference."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import load_model_from_string
from onnx.reference import ReferenceEvaluator

from cost_model.timings import Timings
from graphs import load, save
from graphs.errors import ExecutionFailed
from graphs.ir import Graph
from graphs.onnx_io import proto_bytes
from graphs.text import parse_graph
from runtime import Session, run
from runtime.codegen.c import FusedKernel, NotFusable, Packs, recurrent, unavailable
from runtime.codegen.c.check import by_nodes, fault, widened
from runtime.fusion import FusedFunction, Group, as_functions, fuse
from runtime.joined import Stretch
from search.fusions import discover
from search.fusions.enumerate import enumerate_groups
from search.fusions.labels import label_of

pytestmark = pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
FUNCTIONS = {"RNN": 1, "GRU": 2, "LSTM": 3}
DIRECTIONS = ("forward", "reverse", "bidirectional")
OPTIONAL = ("b", "l", "h", "c", "p")


@pytest.fixture(autouse=True)
def threads_share_little_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is computed here is not worth a second thread."""
    monkeypatch.setattr(recurrent, "THREAD_WORK", 1 << 6)


def graph_of(op: str, sizes: tuple[int, int, int, int], direction: str = "forward", layout: int = 0,
             optional: Collection[str] = (), wanted: Collection[str] = ("y", "yh", "yc"), **attrs: object) -> Graph:
    """One node of (steps, batch, inputs, hidden); `optional` inputs and `wanted` outputs are there."""
    steps, batch, width, hidden = sizes
    ways, gates = 2 if direction == "bidirectional" else 1, GATES[op] * hidden
    state = (batch, ways, hidden) if layout else (ways, batch, hidden)
    shapes = {"x": (batch, steps, width) if layout else (steps, batch, width), "w": (ways, gates, width),
              "r": (ways, gates, hidden), "b": (ways, 2 * gates), "l": (batch,), "h": state, "c": state,
              "p": (ways, 3 * hidden)}
    names = list(shapes) if op == "LSTM" else list(shapes)[:6]
    used = [name for name in names if name in ("x", "w", "r") or name in optional]
    types = [f"{name}: {'int32' if name == 'l' else 'float32'}[{', '.join(map(str, shapes[name]))}]" for name in used]
    made = [name if name in wanted else "" for name in ("y", "yh", "yc")[:3 if op == "LSTM" else 2]]
    while not made[-1]:
        made.pop()
    text = {"direction": f'"{direction}"', "hidden_size": hidden, **({"layout": 1} if layout else {}), **attrs}
    arguments = [*(name if name in used else "" for name in names), *(f"{key}={each}" for key, each in text.items())]
    outputs = ", ".join(name for name in made if name)
    return parse_graph(f'graph "g" opset 17 ({", ".join(types)}) -> ({outputs}) {{\n'
                       f'{", ".join(made)} = {op}({", ".join(arguments)})\n}}')


def arrays_of(graph: Graph, seed: int = 0) -> list[np.ndarray]:
    """Values of the inputs, of weights smaller ones; lengths from none to all steps."""
    rng, found = np.random.default_rng(seed), []
    shapes = {name: type_.shape for name in graph.inputs if (type_ := graph.type_of(name))}
    for name, shape in shapes.items():
        if name == "l":
            steps = shapes["x"][1 if graph.nodes[0].attrs["layout"] else 0]
            found.append(rng.integers(0, steps + 1, shape).astype(np.int32))
        else:
            scale = 1.0 if name in "xhc" else shape[-1] ** -0.5 if name in "wr" else 0.3
            found.append((rng.standard_normal(shape) * scale).astype(np.float32))
    return found


def assert_like_float64(graph: Graph, arrays: Sequence[np.ndarray], **how: object) -> None:
    """As near to what the nodes give in float64 as rounding allows."""
    got = FusedKernel(graph)(*arrays, **how)  # type: ignore[arg-type]
    truth = by_nodes(widened(graph))([each.astype(np.float64) if each.dtype.kind == "f" else each for each in arrays])
    for mine, exactly, like in zip(got, truth, by_nodes(graph)(arrays), strict=True):
        assert mine.shape == like.shape and mine.dtype == like.dtype and mine.flags.c_contiguous
        np.testing.assert_allclose(mine, exactly, rtol=2e-5, atol=5e-6)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("op", "direction", "layout"), list(product(GATES, DIRECTIONS, (0, 1))))
def test_kernels_pass_the_check(op: str, direction: str, layout: int, seed: int) -> None:
    """Normal, special and whole numbers, NaN and infinities, beside NumPy; with some optional inputs and outputs."""
    rng = np.random.default_rng([seed, layout, *map(ord, op + direction)])
    optional = {name for name in OPTIONAL if rng.random() < 0.6}
    wanted = {name for name in ("y", "yh", "yc") if rng.random() < 0.6} or {"yh"}
    if op != "LSTM":
        wanted = wanted - {"yc"} or {"yh"}
    attrs: dict[str, object] = {"clip": 0.7} if rng.random() < 0.4 else {}
    if rng.random() < 0.4:
        count = FUNCTIONS[op] * (2 if direction == "bidirectional" else 1)
        names = rng.choice(["Relu", "Tanh", "Sigmoid"] if op == "RNN" else ["Tanh", "Sigmoid"], count)
        attrs["activations"] = f"""[{', '.join(f'"{name}"' for name in names)}]"""
    own = {"GRU": "linear_before_reset", "LSTM": "input_forget"}
    if op in own:
        attrs[own[op]] = seed
    sizes = tuple(int(rng.integers(1, most)) for most in (7, 7, 20, 40))
    graph = graph_of(op, sizes, direction, layout, optional, wanted, **attrs)  # type: ignore[arg-type]
    assert len(graph.outputs) == len(wanted)
    assert fault(FusedKernel(graph), {name: graph.type_of(name).shape for name in graph.inputs}) is None  # type: ignore[union-attr]


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(list(GATES)), st.sampled_from(DIRECTIONS), st.integers(0, 1), st.integers(0, 1),
       st.tuples(st.integers(1, 7), st.integers(1, 5), st.integers(1, 40), st.integers(1, 40)),
       st.sets(st.sampled_from(OPTIONAL)), st.integers(1, 3), st.booleans())
def test_any_sizes(op: str, direction: str, layout: int, special: int, sizes: tuple[int, int, int, int],
                   optional: set[str], threads: int, packed: bool) -> None:
    own = {"GRU": {"linear_before_reset": special}, "LSTM": {"input_forget": special}}
    graph = graph_of(op, sizes, direction, layout, optional, ("y", "yh", "yc"), **own.get(op, {}))
    assert_like_float64(graph, arrays_of(graph), threads=threads, packs=Packs(frozenset({1, 2} if packed else ())))


@pytest.mark.parametrize(("op", "attrs"), [("RNN", {}), ("LSTM", {}), ("GRU", {}), ("GRU", {"linear_before_reset": 1})])
def test_onnx_says_the_same(op: str, attrs: dict[str, object]) -> None:
    """Its reference knows one direction, no lengths and no peepholes beside a batch."""
    graph = graph_of(op, (5, 3, 4, 6), optional=("b", "h", "c"), **attrs)
    arrays = arrays_of(graph)
    want = ReferenceEvaluator(load_model_from_string(proto_bytes(graph))).run(None, dict(zip(graph.inputs, arrays)))
    for mine, theirs in zip(FusedKernel(graph)(*arrays), want, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize(("batch", "steps"), [(2, 420), (9, 90)])
def test_many_steps_and_parts_of_a_batch(op: str, batch: int, steps: int) -> None:
    """More steps than are projected at a time, and threads that share a batch; whoever computes it, it is the same."""
    graph = graph_of(op, (steps, batch, 5, 40), "bidirectional", 0, ("b", "l"))
    arrays = arrays_of(graph)
    alone = FusedKernel(graph)(*arrays)
    assert_like_float64(graph, arrays)
    for threads, turned in product((1, 2, 5), (False, True)):
        x = np.ascontiguousarray(arrays[0].swapaxes(0, 1)).swapaxes(0, 1) if turned else arrays[0]
        for one, other in zip(alone, FusedKernel(graph)(x, *arrays[1:], threads=threads)):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_sequences_of_nothing_keep_their_states(direction: str) -> None:
    graph = graph_of("LSTM", (3, 2, 4, 5), direction, 0, OPTIONAL)
    arrays = arrays_of(graph)
    arrays[4][:] = 0, -2
    y, h, c = FusedKernel(graph)(*arrays)
    assert not y.any()
    np.testing.assert_array_equal(h, arrays[5])
    np.testing.assert_array_equal(c, arrays[6])


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_lengths_beyond_the_steps_are_what_they_are_node_by_node(direction: str) -> None:
    graph = graph_of("GRU", (3, 2, 4, 5), direction, 0, ("l",))
    arrays = arrays_of(graph)
    arrays[3][:] = 2, 4
    feeds, fused = dict(zip(graph.inputs, arrays)), alone(graph)
    if direction == "forward":
        for name, each in run(graph, feeds).items():
            np.testing.assert_allclose(run(fused, feeds)[name], each, rtol=1e-5, atol=1e-6)
        return
    for each in (graph, fused):
        with pytest.raises(ExecutionFailed, match="IndexError"):
            run(each, feeds)


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_subnormal_states_are_counted(batch: int) -> None:
    """They are multiplied apart, times 2^64."""
    graph = graph_of("RNN", (1, batch, 1, 40), optional=("h",), activations='["Relu"]')
    arrays = arrays_of(graph)
    arrays[0][:] = 0
    arrays[2][:] = 1e4 * np.abs(arrays[2])
    arrays[3][:] = np.where(np.arange(40) % 2, 1e-40, 1e-37)
    assert FusedKernel(graph)(*arrays)[0].max() > 1e-34
    truth = by_nodes(widened(graph))([each.astype(np.float64) for each in arrays])
    for packs in (Packs(), Packs(frozenset({1, 2}))):
        np.testing.assert_allclose(FusedKernel(graph)(*arrays, packs=packs)[0], truth[0], rtol=1e-5)


@pytest.mark.parametrize(("inputs", "node", "reason"), [
    ("x: float32[2, 1, 3], w: float32[1, 4, 3], r: float32[1, 4, 4]",
     'RNN(x, w, r, hidden_size=4, activations=["Softsign"])', "softsign"),
    ("x: float64[2, 1, 3], w: float64[1, 4, 3], r: float64[1, 4, 4]", "RNN(x, w, r, hidden_size=4)", "float32"),
    ("x: float32[0, 1, 3], w: float32[1, 4, 3], r: float32[1, 4, 4]", "RNN(x, w, r, hidden_size=4)", "no|without"),
])
def test_what_has_no_kernel_runs_in_numpy(inputs: str, node: str, reason: str) -> None:
    graph = parse_graph(f'graph "g" opset 17 ({inputs}) -> (y) {{\ny = {node}\n}}')
    arrays = [np.ones(type_.shape, type_.dtype) for name in graph.inputs if (type_ := graph.type_of(name))]
    with pytest.raises(NotFusable, match=reason):
        FusedKernel(graph)(*arrays)
    feeds = dict(zip(graph.inputs, arrays))
    np.testing.assert_array_equal(run(alone(graph), feeds)["y"], run(graph, feeds)["y"])


def test_its_bits_are_not_those_of_numpy() -> None:
    graph = graph_of("RNN", (2, 1, 3, 4))
    with pytest.raises(NotFusable, match="bits"):
        FusedKernel(graph, exact=True)(*arrays_of(graph))


def test_the_check_finds_a_wrong_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(recurrent._FUNCTIONS, "sigmoid", 1)
    graph = graph_of("GRU", (3, 2, 4, 5))
    assert fault(FusedKernel(graph), {name: graph.type_of(name).shape for name in graph.inputs}) is not None  # type: ignore[union-attr]


def alone(graph: Graph) -> Graph:
    """The first node as a Fused node."""
    first, *others = [name for name in graph.nodes[0].outputs if name]
    return fuse(graph, [Group((0,), first, tuple(others))])


TAGGER = """graph "tagger" opset 17 (x: float32[s, n, 6], w1: float32[1, 16, 6], w2: float32[1, 16, 6],
                                     r: float32[2, 32, 8]) -> (y, h) {
  w = Concat(w1, w2, axis=0)
  w3 = Concat(w, w, axis=1)
  a = Relu(x)
  b, h, c = LSTM(a, w3, r, direction="bidirectional", hidden_size=8)
  d = Transpose(b, perm=[0, 2, 1, 3])
  y = Sigmoid(d)
}"""


def tagger() -> tuple[Graph, dict[str, np.ndarray]]:
    """A graph whose weights are joined, with them as constants."""
    from graphs.constants import Constant

    graph, rng = parse_graph(TAGGER), np.random.default_rng(0)
    for name in ("w1", "w2", "r"):
        type_ = graph.type_of(name)
        assert type_ is not None
        graph.constants[name] = Constant.of(rng.standard_normal(type_.shape).astype(np.float32))
        graph.inputs.remove(name)
    return graph, {"x": rng.standard_normal((5, 2, 6)).astype(np.float32)}


def test_a_set_by_itself_is_found_measured_and_taken() -> None:
    graph, feeds = tagger()
    groups = enumerate_groups(graph, graph.types, 10, 10).groups
    place = next(index for index, node in enumerate(graph.nodes) if node.op == "LSTM")
    assert [group.outputs for group in groups if place in group.nodes] == [("b", "h", "c")]
    found = discover(graph, {"s": 64, "n": 2}, Timings(":memory:"))
    assert not found.faults
    lstm = next(each for each in found.fusions if each.operators == ("LSTM",))
    assert label_of(lstm.body) == "LSTM (3 results)" and lstm.fused < lstm.unfused
    want = Session(graph).run(feeds)
    for name, each in Session(found.graph).run(feeds).items():
        np.testing.assert_allclose(each, want[name], rtol=1e-5, atol=1e-6)


def test_it_is_a_step_of_a_stretch_and_its_joined_weights_are_packed_once() -> None:
    graph, feeds = tagger()
    want = Session(graph).run(feeds)
    places = [index for index, node in enumerate(graph.nodes) if node.op in ("Relu", "LSTM", "Sigmoid")]
    fused = fuse(graph, [Group((index,), graph.nodes[index].outputs[0], graph.nodes[index].outputs[1:])
                         for index in places])
    session = Session(fused)
    for _ in range(3):
        for name, each in session.run(feeds).items():
            np.testing.assert_allclose(each, want[name], rtol=1e-5, atol=1e-6)
    (stretch,) = [each for each, *_ in session.program._runs if isinstance(each, Stretch)]  # type: ignore[union-attr]
    assert len(stretch.steps) == 4 and not any(isinstance(each, list) for each in stretch.records.values())
    function = next(step.function for step in stretch.steps if isinstance(step.function, FusedFunction)
                    and step.function.kernel.graph.nodes[0].op == "LSTM")
    assert function.constants and len(function.packs.made) == 2


def test_a_file_holds_it_as_a_function(tmp_path: object) -> None:
    graph, feeds = tagger()
    place = next(index for index, node in enumerate(graph.nodes) if node.op == "LSTM")
    path = f"{tmp_path}/fused.onnx"
    save(as_functions(fuse(graph, [Group((place,), "b", ("h",))])), path)
    again, want = Session(load(path)), Session(graph).run(feeds)
    assert again.report.fused == 1
    for name, each in again.run(feeds).items():
        np.testing.assert_allclose(each, want[name], rtol=1e-5, atol=1e-6)
