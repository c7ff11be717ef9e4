"""What was done inside of branches and loop bodies is told by the step that changed them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from graphs import save
from graphs.inference import infer
from graphs.ir import Graph
from graphs.text import parse_graph
from optimizer import Trace, optimize, rewriting
from optimizer.bodies import improve_bodies, make_names_unique
from optimizer.command_line import main
from optimizer.normalize import PASSES
from optimizer.result import shortened, step_text
from rules.catalogue import all_rules
from runtime import run
from search.steps import same_graph

OUTER, INNER = "If 'outer' then_branch", "If 'outer' then_branch / If 'inner' else_branch"
MODEL = """graph "m" opset 18 (x: float32[2, 3], a: bool[], b: bool[]) -> (y) {
  y = If(a, then_branch=graph () -> (t) {
      p = Transpose(x, perm=[1, 0])
      q = Transpose(p, perm=[1, 0])
      t = If(b, then_branch=graph () -> (u) { u = Relu(q) }, else_branch=graph () -> (v) {
        n = Neg(q)
        v = Neg(n)
      })
    }, else_branch=graph () -> (w) { w = Sigmoid(x) })
}"""


def graph() -> Graph:
    found = parse_graph(MODEL)
    found.nodes[0].name = "outer"
    body = found.nodes[0].attrs["then_branch"]
    assert isinstance(body, Graph)
    next(node for node in body.nodes if node.op == "If").name = "inner"
    return found


def test_places_lead_from_the_outermost_graph() -> None:
    seen: list[str] = []

    def look(body: Graph, place: str) -> Graph:
        seen.append(place)
        return body

    assert improve_bodies(graph(), look) == []
    assert seen == ["If 'outer' then_branch / If 'inner' then_branch", INNER, OUTER, "If 'outer' else_branch"]


@pytest.fixture(scope="module")
def trace_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inside")
    result = optimize(graph(), target="roofline", effort="low", objective="nodes",
                      timings=str(folder / "t.db"))
    result.trace.save(folder / "trace.json")
    save(result.graph, folder / "result.txt")
    assert not result.report["warnings"]
    assert same_graph(Trace.load(folder / "trace.json").replay(graph()), result.graph)
    return folder / "trace.json"


def test_the_step_lists_the_rules_by_body(trace_file: Path) -> None:
    step = next(row for row in Trace.load(trace_file).steps if row["rule"] == "optimize-bodies")
    known = {rule.name for rule in all_rules()} | {named.name for named in PASSES}
    assert {row["body"] for row in step["inside"]} == {INNER, OUTER}, "nothing is to be done in the other bodies"
    assert all(row["rule"] in known and row["exactness"] == "exact" and row["meaning"] for row in step["inside"])
    inner = [line for row in step["inside"] if row["body"] == INNER for line in row["before"]]
    assert any("Neg(" in line for line in inner) and not any("Transpose" in line for line in inner)
    assert any("Transpose" in line for row in step["inside"] if row["body"] == OUTER for line in row["before"])


def test_the_command_shows_them(trace_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", str(trace_file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    step = next(row for row in Trace.load(trace_file).steps if row["rule"] == "optimize-bodies")
    assert f"  in {INNER}: 1 step" in lines and any(line.startswith(f"  in {OUTER}: ") for line in lines)
    for row in step["inside"]:
        assert f"    {row['rule']} (exact): {row['meaning']}" in lines
    assert main(["trace", str(trace_file), "--why-not", step["inside"][0]["rule"]]) == 0
    assert f"it did fire: step {step['index']} of" in capsys.readouterr().out


def test_long_nested_graphs_are_cut_for_reading() -> None:
    text = "\n".join(f"line {number}" for number in range(9))
    assert shortened(text, 3) == ["line 0", "line 1", "line 2", "... and 6 more lines"]
    assert shortened(text, 8)[-1] == "... and 1 more line" and shortened(text, 9) == text.splitlines()
    step = {"index": 0, "rule": "r", "exactness": "exact", "before": [text], "after": ["y = Neg(x)"]}
    assert step_text(step).splitlines()[-2:] == ["  - ... and 3 more lines", "  + y = Neg(x)"]


def test_a_new_name_of_a_branch_is_none_of_the_graphs_nested_in_it() -> None:
    # t of the branch clashes with t outside; t_1 is free outside, but the inner branch, which reads t, has it
    inner = "then_branch=graph () -> (t_1) { t_1 = Neg(t) }, else_branch=graph () -> (v) { v = Abs(t) }"
    text = f"""graph "g" opset 18 (x: float32[2], a: bool[]) -> (t, y) {{
  t = Relu(x)
  y = If(a, then_branch=graph () -> (w) {{ t = Exp(x) w = If(a, {inner}) }}, else_branch=graph () -> (z) {{
    z = Neg(x)
  }})
}}"""
    graph = parse_graph(text)
    make_names_unique(graph)
    branch = next(graph.nodes[1].graphs)
    new = branch.nodes[0].outputs[0]
    (first,), (second,) = (body.nodes for body in branch.nodes[1].graphs)
    assert first.inputs == second.inputs == (new,)
    defined = [out for each in graph.walk() for node in each.nodes for out in node.outputs]
    assert len(set(defined)) == len(defined)


NEVER_DRAWN = """graph "m" opset 18 (x: float32[2, 3], rate: int64[]) -> (y) {
  high = constant int64[] 16000
  is_high = Equal(rate, high)
  y = If(is_high, then_branch=graph () -> (t) { n = Neg(x) t = Neg(n) }, else_branch=graph () -> (w) { w = Relu(x) })
}"""


def test_a_branch_that_random_inputs_do_not_take_is_validated_by_itself(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"target": "roofline", "effort": "low", "timings": str(tmp_path / "t.db"), "fresh": True}
    right = optimize(parse_graph(NEVER_DRAWN), **settings)
    assert not right.report["warnings"] and not right.report["unchanged"]

    def wrong(body: Graph, context: object) -> tuple[Graph, list[dict[str, object]]]:
        made, steps = improve(body, context)
        if not steps:
            return made, steps
        other = parse_graph('graph "b" opset 18 (x: float32[2, 3]) -> (t) { t = Abs(x) }')
        infer(other)
        return other, steps

    improve = rewriting._improve_body
    monkeypatch.setattr(rewriting, "_improve_body", wrong)
    found = optimize(parse_graph(NEVER_DRAWN), **settings)
    assert any("then_branch" in text and "failed validation" in text for text in found.report["warnings"])
    x = np.arange(-3, 3, dtype=np.float32).reshape(2, 3)
    for rate in (16000, 8000):
        feeds = {"x": x, "rate": np.array(rate)}
        np.testing.assert_array_equal(run(found.graph, feeds)["y"], run(parse_graph(NEVER_DRAWN), feeds)["y"])
