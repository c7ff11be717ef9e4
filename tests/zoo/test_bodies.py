"""Traces of models whose branches hold large weights: what a body folds is part of the patch."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from graphs.builder import Builder
from graphs.ir import Graph
from optimizer import Trace, optimize
from search.trace import same_graph


def branches() -> Graph:
    """An If whose branches multiply by weights that are transposed at run time: 96 numbers each, folded in the body."""
    rng = np.random.default_rng(0)
    b = Builder("branches", opset=17)
    x, flag = b.input("x", "float32", ["n", 8]), b.input("flag", "bool", [])
    graphs = {}
    for name in ("then_branch", "else_branch"):
        inner = b.nested(name)
        weights = inner.Transpose(rng.standard_normal((12, 8)).astype(np.float32), perm=[1, 0])
        inner.output(inner.MatMul(x, inner.value("Mul", weights, np.array(0.5, np.float32))), f"{name}_y")
        graphs[name] = inner.graph()
    b.output(b.If(flag, **graphs), "y")
    return b.graph()


def test_the_trace_replays_from_its_file(tmp_path: Path) -> None:
    result = optimize(branches(), target="onnxruntime:cpu", effort="low", objective="nodes",
                      timings=str(tmp_path / "timings.db"))
    assert not result.report["warnings"]
    assert {step["rule"] for step in result.trace.steps} >= {"optimize-bodies"}
    assert any(step["patch"].get("data") for step in result.trace.steps)
    result.trace.save(tmp_path / "trace.json")
    json.loads((tmp_path / "trace.json").read_text())
    assert same_graph(Trace.load(tmp_path / "trace.json").replay(branches()), result.graph)
