"""Branches that give a rank which nodes after the If do not accept are never taken by a run that succeeds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from graphs import save
from graphs.inference import infer
from graphs.ir import Graph
from graphs.text import parse_graph
from optimizer.normalize import normalize

# As PyTorch writes `x.squeeze(-1)`: where the dimension is 1 it goes away, else the value is handed through.
SQUEEZE = """s = Shape(x) k = constant int64[1] [2] n = Gather(s, k, axis=0) one = constant int64[1] [1]
  c = Equal(n, one)
  y = If(c, then_branch=graph "t" () -> (p) { p = Squeeze(x, axes=[-1]) },
            else_branch=graph "e" () -> (q) { q = Identity(x) })"""
WEIGHTS = "w = constant float32[1, 8, 3] {w} r = constant float32[1, 8, 2] {r}"


def weights() -> str:
    rng = np.random.default_rng(0)
    return WEIGHTS.format(**{name: rng.normal(size=shape).round(3).tolist()
                             for name, shape in (("w", (1, 8, 3)), ("r", (1, 8, 2)))})


def graph(body: str, outputs: str = "h") -> Graph:
    head = f'graph "m" opset 17 (x: float32[a, 3, b], d: bool[]) -> ({outputs})'
    found = parse_graph(f"{head} {{ {SQUEEZE} {body} }}")
    infer(found)
    return found


def normalized(found: Graph) -> list[str]:
    result = found.copy()
    normalize(result)
    return [node.op for node in result.nodes]


def test_the_rank_that_a_recurrent_node_asks_for_decides(tmp_path: Path) -> None:
    """Also through nodes that keep or change the rank, and a second If that asks for the rank itself."""
    body = f"""{weights()} z = Relu(y) rank = Size(Shape(z)) two = constant int64[] 2 g = Equal(rank, two)
      v = If(g, then_branch=graph "t2" () -> (p2) {{ p2 = Identity(z) }},
                else_branch=graph "e2" () -> (q2) {{ q2 = Unsqueeze(z, axes=[0]) }})
      u = Unsqueeze(v, axes=[0]) _, h = LSTM(u, w, r, hidden_size=2)""".replace(
          "rank = Size(Shape(z))", "zs = Shape(z) rank = Size(zs)")
    found = graph(body)
    result = found.copy()
    normalize(result)
    assert [node.op for node in result.nodes] == ["Squeeze", "Relu", "Unsqueeze", "LSTM"]
    outputs = []
    for name, each in (("a", found), ("b", result)):
        save(each, tmp_path / f"{name}.onnx")
        session = onnxruntime.InferenceSession(tmp_path / f"{name}.onnx", providers=["CPUExecutionProvider"])
        x = np.random.default_rng(1).normal(size=(5, 3, 1)).astype(np.float32)
        outputs.append(session.run(None, {"x": x, "d": np.asarray(True)})[0])
        with pytest.raises(Exception, match=r"LSTM|Squeeze"):  # neither runs at other sizes
            session.run(None, {"x": np.ones((5, 3, 2), np.float32), "d": np.asarray(True)})
    np.testing.assert_array_equal(*outputs)


@pytest.mark.parametrize("body", [
    "h = Relu(y)",  # any rank
    "h = Unsqueeze(y, axes=[0])",
    "u = Unsqueeze(y, axes=[0]) _, k2 = LSTM(u, w, r, hidden_size=2) h = Relu(x)",  # not needed by an output
    # Needed in one of two branches alone: the other one takes both ranks.
    """h = If(d, then_branch=graph "t2" () -> (p2) { u = Unsqueeze(y, axes=[0]) _, p2 = LSTM(u, w, r, hidden_size=2) },
                 else_branch=graph "e2" () -> (q2) { q2 = Relu(y) })""",
], ids=["no reader asks", "Unsqueeze takes all", "not needed", "one branch asks"])  # fmt: skip
def test_a_branch_that_can_be_taken_stays(body: str) -> None:
    found = graph(f"{weights()} {body}", "h, y" if body.startswith("u") else "h")
    assert "If" in normalized(found)


def test_what_both_branches_ask_for_counts() -> None:
    ask = "u = Unsqueeze(y, axes=[0]) _, {} = LSTM(u, w, r, hidden_size=2)"
    found = graph(f"""{weights()} h = If(d, then_branch=graph "t2" () -> (p2) {{ {ask.format("p2")} }},
      else_branch=graph "e2" () -> (q2) {{ {ask.format("q3")} q2 = Neg(q3) }})""")
    assert normalized(found) == ["Squeeze", "If"]
