"""Models whose Loops go on for ever with inputs that are drawn at random end as Unsupported."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from cost_model.targets import Unsupported, onnxruntime_cpu, resolve
from cost_model.targets.base import prepared
from graphs.inference import infer
from graphs.ir import Graph
from graphs.text import parse_graph
from runtime import Session

FEEDS = {"x": np.array(0.0, np.float32), "n": np.array(3.0, np.float32)}


def counting(name: str = "g") -> Graph:
    """Counts from x on until n is reached; infinity never is."""
    graph = parse_graph(f"""graph "{name}" opset 18 (x: float32[], n: float32[]) -> (y) {{
      k = constant bool[] true
      y = Loop(, k, x, body=graph (i: int64[], c: bool[], s: float32[]) -> (d, t) {{
        one = constant float32[] 1
        t = Add(s, one)
        d = Less(t, n)
      }})
    }}""")
    infer(graph)
    return graph


def up_to(number: float) -> dict[str, Any]:
    return {**FEEDS, "n": np.array(number, np.float32)}


def test_onnx_runtime_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(onnxruntime_cpu, "PATIENCE", 0.3)
    target, start = resolve("onnxruntime:cpu"), time.monotonic()
    with pytest.raises(Unsupported, match=r"has not ended after 0\.3 s"):
        prepared(target, counting(), up_to(np.inf))
    attempt = target.trial(counting())
    with pytest.raises(Unsupported, match="has not ended"):
        attempt(up_to(np.inf))
    assert time.monotonic() - start < 30
    attempt(FEEDS)  # what ends runs as ever, in the same session
    assert prepared(target, counting(), FEEDS).outputs()["y"] == 3


def test_our_runtime_is_stopped_where_it_is_measured_and_not_where_it_is_used() -> None:
    target = resolve("egraft:cpu")
    with pytest.raises(Unsupported, match="its condition still holds after 10000 turns"):
        prepared(target, counting(), up_to(10_001))
    assert prepared(target, counting(), up_to(9_999)).outputs()["y"] == 9_999
    assert Session(counting()).run(up_to(10_001))["y"] == 10_001
