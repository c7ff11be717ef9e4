"""LSTM, GRU and RNN on the emulated device against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from graphs.builder import Builder, Value
from graphs.ir import Graph
from runtime.fusion import Group, fuse

from .harness import check, expected, needs_compiler

pytestmark = needs_compiler

STEPS, BATCH, WIDTH, HIDDEN = 3, 2, 3, 4
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
BOTH = {"direction": "bidirectional"}
# Operator, inputs that are there beside the first three, attributes.
CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("LSTM", "", {}), ("LSTM", "bhc", BOTH), ("LSTM", "bhcp", {"direction": "reverse", "clip": 0.6}),
    ("LSTM", "blhc", BOTH), ("LSTM", "lp", {"input_forget": 1}),
    ("LSTM", "b", {"activations": ["Tanh", "Relu", "Sigmoid"]}),
    ("GRU", "", {}), ("GRU", "bh", BOTH), ("GRU", "bh", {**BOTH, "linear_before_reset": 1}),
    ("GRU", "b", {"linear_before_reset": 1, "clip": 0.5}), ("GRU", "blh", {"direction": "reverse"}),
    ("GRU", "bl", {**BOTH, "linear_before_reset": 1}),
    ("RNN", "", {}), ("RNN", "bh", BOTH), ("RNN", "blh", {**BOTH, "activations": ["Relu", "Sigmoid"]}),
    ("RNN", "b", {"direction": "reverse", "clip": 0.4}),
]  # fmt: skip


def build(cases: list[tuple[str, str, dict[str, Any]]], dtype: str = "float32",
          layout: int = 0) -> tuple[Graph, dict[str, np.ndarray]]:
    """All cases in one graph, each of their outputs one of it; with `layout` the batch comes first."""
    b, feeds, random = Builder("cases", opset=21), {}, np.random.default_rng(0)

    def put(array: np.ndarray, turn: bool = False) -> Value:
        name = f"x{len(feeds)}"
        feeds[name] = np.ascontiguousarray(array.swapaxes(0, 1)) if turn and layout else array
        return b.input(name, feeds[name].dtype.name, feeds[name].shape)

    def normal(*shape: int, turn: bool = False) -> Value:
        small = (random.normal(size=shape) * 0.7).astype(ml_dtypes.bfloat16)
        return put(small.astype(dtype), turn)

    for op, given, attrs in cases:
        directions, gates = 2 if attrs.get("direction") == "bidirectional" else 1, GATES[op] * HIDDEN
        state = (directions, BATCH, HIDDEN)
        inputs = [normal(STEPS, BATCH, WIDTH, turn=True), normal(directions, gates, WIDTH),
                  normal(directions, gates, HIDDEN), normal(directions, 2 * gates) if "b" in given else None,
                  put(np.array([2, STEPS], np.int32)) if "l" in given else None,
                  normal(*state, turn=True) if "h" in given else None]
        if op == "LSTM":
            inputs += [normal(*state, turn=True) if "c" in given else None,
                       normal(directions, 3 * HIDDEN) if "p" in given else None]
        made = b.op(op, *inputs, hidden_size=HIDDEN, outputs=3 if op == "LSTM" else 2, layout=layout, **attrs)
        for value in made:  # type: ignore[union-attr]
            b.output(value)
    return b.graph(), feeds


def test_directions_lengths_states_and_activations(tmp_path: Path) -> None:
    graph, feeds = build(CASES)
    check(graph, feeds, expected(graph, feeds, tmp_path))


def test_the_batch_first(tmp_path: Path) -> None:
    cases = [CASES[1], CASES[3], CASES[8], CASES[13]]
    wanted = []
    for array in expected(*build(cases), tmp_path):
        order = (2, 0, 1, 3) if array.ndim == 4 else (1, 0, 2)
        wanted.append(np.ascontiguousarray(array.transpose(order)))
    check(*build(cases, layout=1), wanted)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-5), ("float16", 5e-3), ("bfloat16", 5e-2)])
def test_other_element_types(dtype: str, tolerance: float, tmp_path: Path) -> None:
    cases = [CASES[2], CASES[7], CASES[13]]
    wanted = [each.astype(getattr(ml_dtypes, dtype, dtype)) for each in expected(*build(cases), tmp_path)]
    check(*build(cases, dtype), wanted, rtol=tolerance, atol=tolerance)


def test_few_launches_for_a_step(tmp_path: Path) -> None:
    graph, feeds = build([("LSTM", "b", {})])
    executor = check(graph, feeds, expected(graph, feeds, tmp_path))
    launches = executor.device.launches  # type: ignore[attr-defined]
    assert launches == ["gemm", "eg_lstm", *["gemm", "eg_lstm"] * (STEPS - 1), "eg_copy"]


def test_other_activations_are_left_to_numpy(tmp_path: Path) -> None:
    graph, feeds = build([("RNN", "", {"activations": ["Softsign"]})])
    check(graph, feeds, expected(graph, feeds, tmp_path), on_host=["RNN"])


def test_a_fused_one_runs_as_its_node(tmp_path: Path) -> None:
    """A kernel of the CPU by itself, with inputs that are absent."""
    graph, feeds = build([CASES[3], CASES[8]])
    groups = [Group((place,), node.outputs[0], node.outputs[1:]) for place, node in enumerate(graph.nodes)]
    check(fuse(graph, groups), feeds, expected(graph, feeds, tmp_path))
