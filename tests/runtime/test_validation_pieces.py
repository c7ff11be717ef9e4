"""Large graphs are validated in pieces, with the verdict that they get in one piece."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from graphs.constants import Constant
from graphs.inference import infer
from graphs.ir import Graph, Node
from graphs.text import parse_graph
from runtime.validation import Validation, pieces, validate

LAYERS, WIDTH = 6, 160


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "WHOLE_BYTES", 1 << 18)
    monkeypatch.setattr(pieces, "PIECE_BYTES", 1 << 16)


def stack(folded: bool = False, wrong: int | None = None, error: float = 1e-4,
          name: Callable[[int], str] = "h{}".format, every: bool = False) -> Graph:
    """Layers `h = tanh((h @ w) * 1.5)`, the factor `folded` into `w` or not; that of layer `wrong` is off by `error`.

    `name` names what a layer gives; `every` makes each an output.
    """
    rng = np.random.default_rng(5)
    lines, constants = [], {"factor": Constant.of(np.float32(1.5))}
    now, layers = "x", []
    for index in range(LAYERS):
        weight = (rng.standard_normal((WIDTH, WIDTH)) / WIDTH**0.5).astype(np.float32)
        if folded:
            weight = weight * np.float32(1.5)
        if index == wrong:
            weight = weight * np.float32(1 + error)
        constants[f"w{index}"] = Constant.of(weight)
        product = f"q{index}" if folded else f"p{index}"
        lines.append(Node("MatMul", (now, f"w{index}"), (product,), version=13))
        if not folded:
            lines.append(Node("Mul", (product, "factor"), (f"s{index}",), version=14))
            product = f"s{index}"
        layers.append(name(index))
        lines.append(Node("Tanh", (product,), (layers[-1],), version=13))
        now = layers[-1]
    lines.append(Node("Relu", (now,), ("y",), version=14))
    head = parse_graph('graph "g" opset 17 (x: float32[n, 160]) -> (y) { y = Relu(x) }')
    graph = Graph("g", ["x"], [*(layers if every else ()), "y"], lines, constants, {"x": head.types["x"]},
                  dict(head.declared), opsets=dict(head.opsets))
    infer(graph)
    return graph


def count(found: Validation) -> object:
    return found.executed["pieces"]


@pytest.mark.parametrize("exactness", ["rounding", "finite"])
def test_a_folded_scale_passes_piece_by_piece(exactness: str) -> None:
    found = validate(stack(), stack(folded=True), exactness)
    assert found.ok, found.reason
    assert count(found) == LAYERS + 1
    assert {check.name for check in found.outputs} == {*(f"h{index}" for index in range(LAYERS)), "y"}
    assert any("7 pieces, of at most 0 MB" in note for note in found.notes)
    assert any(each.special for each in found.rounds) == (exactness == "rounding")
    assert "random" in found.summary() and "given data" not in found.summary()


@pytest.mark.parametrize("layer", [0, 3, LAYERS - 1])
def test_a_wrong_layer_is_found(layer: int) -> None:
    found = validate(stack(), stack(folded=True, wrong=layer, error=0.01))
    assert found.status == "failed"
    assert not validate(stack(), stack(wrong=layer), "exact").ok
    assert validate(stack(), stack(), "exact").ok


def test_names_that_mean_something_else_are_not_believed() -> None:
    shifted = stack(folded=True, name=lambda index: f"h{index - 1}" if index else "first")
    found = validate(stack(), shifted)
    assert found.status == "failed"  # h0 is another layer there: no cut holds, and joining all would be the whole
    one = stack(folded=True, name=lambda index: {2: "h3", 3: "h2"}.get(index, f"h{index}"))
    assert validate(stack(), one).ok  # two names changed places: that piece is joined with the next ones


def test_outputs_of_each_layer_belong_to_its_piece() -> None:
    found = validate(stack(every=True), stack(folded=True, every=True))
    assert found.ok and count(found) == LAYERS + 1
    assert [check.name for check in found.outputs] == [*(f"h{index}" for index in range(LAYERS)), "y"]


def test_given_data_run_through_the_pieces() -> None:
    x = np.random.default_rng(0).standard_normal((3, WIDTH)).astype(np.float32)
    found = validate(stack(), stack(folded=True), feeds=[{"x": x}, {"x": x + 1}])
    assert found.ok and count(found) == LAYERS + 1 and len(found.rounds) == 2
    assert all(each.given for each in found.rounds)
    assert not validate(stack(), stack(folded=True, wrong=4, error=0.01), feeds={"x": x}).ok


def test_graphs_without_common_places_are_validated_whole() -> None:
    found = validate(stack(), stack(folded=True, name="other{}".format))
    assert found.ok and "pieces" not in found.executed
    assert any("no narrow places" in note for note in found.notes)


def test_what_depends_on_no_weight_may_cross_all_cuts() -> None:
    """It is computed again by the piece that reads it, whatever it is called in the other graph."""
    graphs = [stack(), stack(folded=True)]
    for graph, light in zip(graphs, ("a", "b")):
        graph.nodes.insert(0, Node("Abs", ("x",), (light,), version=13))
        graph.nodes[-1] = Node("Add", (f"h{LAYERS - 1}", light), ("y",), version=14)
        infer(graph)
    found = validate(*graphs)
    assert found.ok and count(found) == LAYERS + 1
