"""Which finalist is handed back, by scripted times: nothing is measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

from cost_model.targets.base import Runner, Unsupported
from cost_model.timings import Timings
from graphs import load
from graphs.inference import infer
from graphs.ir import Graph
from graphs.onnx_io import load_onnx, to_model_proto
from graphs.text import parse_graph
from optimizer import finalists, journal, optimize
from optimizer.candidates import Improved
from optimizer.context import Context, open_context
from optimizer.finalists import INPUT, UNSTATED, Finalist, Outcome, enter, race
from optimizer.looks import dominates
from optimizer.options import Options
from tests.cost_model.fakes import FakeTarget, FakeTime

HEAD = 'graph "g" opset 18 (x: float32[2, 4]) -> (y) {'
BEFORE = f"{HEAD} t = Transpose(x, perm=[1, 0]) u = Transpose(t, perm=[1, 0]) y = Relu(u) }}"
LEANER = f"{HEAD} y = Relu(x) }}"
OTHER = f"{HEAD} a = Neg(x) b = Abs(a) y = Relu(b) }}"  # nodes that the input does not have
MICROSECOND = 1e-6


def graph_of(text: str) -> Graph:
    graph = parse_graph(text)
    infer(graph)
    return graph


class Scripted(FakeTarget):
    """A session of a graph takes the times that the script holds for it, the next session the next ones."""

    def __init__(self, script: Mapping[str, list[tuple[float, ...]]]) -> None:
        super().__init__()
        self.time = FakeTime()
        self.clocks = self.time.clocks
        self.script = {str(graph_of(text)): looks for text, looks in script.items()}
        self.sessions: Counter[str] = Counter()

    def prepare(self, graph: Graph, feeds: Mapping[str, np.ndarray], threads: int = 1) -> Runner:
        super().prepare(graph, feeds, threads)
        text = str(graph)
        looks = self.script[text]
        times = looks[min(self.sessions[text], len(looks) - 1)]
        self.sessions[text] += 1
        return Runner(self.time.runner(*(each * MICROSECOND for each in times)), dict)


def context_of(timings: Path, target: FakeTarget, **options: Any) -> Context:
    settings = Options(target="egraft:cpu", effort="low", timings=str(timings), **options)
    context = open_context(graph_of(BEFORE), settings)
    context.target, context.threads = target, 1
    return context


def raced(context: Context, text: str, predicted: float | None) -> Outcome:
    entries = [Finalist(INPUT, graph_of(BEFORE), list), Finalist("new", graph_of(text), list, predicted)]
    return race(entries, context, 10 * MICROSECOND)


def looked(path: Path, text: str, looks: list[tuple[float, ...]], predicted: float | None) -> tuple[str, int, Outcome]:
    """(who wins, sessions of the new graph, all)."""
    target = Scripted({BEFORE: [(10.0,)], text: looks})
    outcome = raced(context_of(path / "t.db", target), text, predicted)
    return outcome.ranked[0].name, target.sessions[str(graph_of(text))], outcome


def test_what_only_lacks_nodes_is_thrown_out_by_two_looks_alone(tmp_path: Path) -> None:
    name, sessions, outcome = looked(tmp_path, LEANER, [(11.5,), (10.0,)], None)
    assert (name, sessions) == ("new", 2) and outcome.comparison is not None
    found = outcome.comparison.results["new"]
    assert (found.verdict, found.looks) == ("equal", 2)
    assert found.low <= 1.001 and found.high >= 1.149 and found.ratio == pytest.approx(1.0724, abs=1e-3)


def test_what_only_shares_constants_is_thrown_out_by_two_looks_alone(tmp_path: Path) -> None:
    def text(second: str) -> str:
        return (f"{HEAD} w = constant float32[1, 4] [1, 2, 3, 4] {second} "
                f"a = Mul(x, w) b = Mul(a, {second[:1] or 'w'}) y = Relu(b) }}")

    before, shared = text("v = constant float32[1, 4] [1, 2, 3, 4]"), text("")
    for second, winner in ((10.0, "new"), (11.0, INPUT)):
        target = Scripted({before: [(10.0,)], shared: [(11.5,), (second,)]})
        entries = [Finalist(INPUT, graph_of(before), list), Finalist("new", graph_of(shared), list)]
        outcome = race(entries, context_of(tmp_path / f"{second}.db", target), None)
        assert (outcome.ranked[0].name, target.sessions[str(graph_of(shared))]) == (winner, 2)


@pytest.mark.parametrize(("text", "predicted"), [(LEANER, None), (LEANER, 8 * MICROSECOND), (OTHER, 8 * MICROSECOND)])
def test_what_is_slower_twice_is_refused(tmp_path: Path, text: str, predicted: float | None) -> None:
    assert looked(tmp_path, text, [(11.5,), (10.6,)], predicted)[:2] == (INPUT, 2)


def test_a_doubtful_equal_is_looked_at_again(tmp_path: Path) -> None:
    noisy = (10.0, 11.9, 9.5, 12.0, 11.0)  # its interval holds 1, its median does not
    assert looked(tmp_path, LEANER, [noisy, (10.1,)], 8 * MICROSECOND)[:2] == ("new", 2)
    assert looked(tmp_path / "again", LEANER, [noisy, noisy], 8 * MICROSECOND)[:2] == (INPUT, 2)


def test_a_prediction_that_is_contradicted_counts_with_both_looks_together(tmp_path: Path) -> None:
    assert looked(tmp_path / "a", OTHER, [(10.5,), (9.9,)], 8 * MICROSECOND)[:2] == ("new", 2)
    assert looked(tmp_path / "b", OTHER, [(12.0,), (10.0,)], 8 * MICROSECOND)[:2] == (INPUT, 2)


def test_what_only_a_prediction_speaks_for_counts_with_both_looks_together(tmp_path: Path) -> None:
    """Fewer nodes are no proof of less work: what is slower in both together is not handed back."""
    fewer = f"{HEAD} a = Abs(x) y = Relu(a) }}"
    for looks, winner in (([(12.0,), (10.0,)], INPUT), ([(10.9,), (9.8,)], INPUT), ([(10.5,), (9.9,)], "new")):
        assert looked(tmp_path / str(looks), fewer, looks, 8 * MICROSECOND)[:2] == (winner, 2)


@pytest.mark.parametrize("predicted", [None, 10 * MICROSECOND, 12 * MICROSECOND])
def test_what_nothing_speaks_for_is_looked_at_once(tmp_path: Path, predicted: float | None) -> None:
    assert looked(tmp_path, OTHER, [(10.5,), (9.0,)], predicted)[:2] == (INPUT, 1)


def test_fewer_nodes_that_are_about_equal_win_against_a_prediction_that_says_a_little_more(tmp_path: Path) -> None:
    fewer = f"{HEAD} a = Abs(x) y = Relu(a) }}"  # an operator that the input does not have, in place of two
    slower = 10.5 * MICROSECOND
    assert looked(tmp_path / "noise", fewer, [(10.15,)], slower)[:2] == ("new", 1)
    changing = (9.8,) * 300 + (10.6,) * 300  # an interval from 0.98 to 1.06
    assert looked(tmp_path / "a", fewer, [changing, (9.7,)], slower)[:2] == ("new", 2)
    assert looked(tmp_path / "b", fewer, [changing, (11.0,)], slower)[:2] == (INPUT, 2)
    assert looked(tmp_path / "c", fewer, [(11.0,), (9.0,)], slower)[:2] == (INPUT, 1)


def test_what_wins_at_once_is_looked_at_once(tmp_path: Path) -> None:
    assert looked(tmp_path, LEANER, [(9.0,), (12.0,)], None)[:2] == ("new", 1)


def test_nothing_is_rewritten_for_nothing(tmp_path: Path) -> None:
    """As many operators, and measured as fast: only what is predicted to be faster takes the input's place."""
    assert looked(tmp_path, OTHER, [(10.0,)], 10 * MICROSECOND)[:2] == (INPUT, 1)
    assert looked(tmp_path / "b", OTHER, [(10.0,)], 8 * MICROSECOND)[:2] == ("new", 1)


CALL = """<ir_version: 9, opset_import: ["" : 18, "f" : 1]> g (float[2, 4] x) => (float[2, 4] y) { y = f.f(x) }
<domain: "f", opset_import: ["" : 18]> f (a) => (b) { c = Neg(a) d = Neg(c) e = Abs(d) b = Relu(e) }"""


def test_a_call_counts_as_the_nodes_of_its_body() -> None:
    """One node that stands for four is not simpler than two; and these two are all among the four."""
    entries = [Finalist(INPUT, load(onnx.parser.parse_model(CALL).SerializeToString()), list),
               Finalist("fewer", graph_of(f"{HEAD} a = Abs(x) y = Relu(a) }}"), list)]
    assert [entry.name for entry in finalists.by_simplicity(entries)] == ["fewer", INPUT]
    assert dominates(entries[1].opened, entries[0].opened, {})
    assert entries[0].graph.node_count() == 1 and entries[1].opened is entries[1].graph


@pytest.mark.parametrize(("leaner", "winner"), [(9.4, "leaner"), (9.8, "fastest")])
def test_what_only_lacks_nodes_of_the_fastest_wins_over_it_within_the_noise(tmp_path: Path, leaner: float,
                                                                            winner: str) -> None:
    """The fastest has an Abs more; whatever the clock says, it computes all that the other one does."""
    fastest = f"{HEAD} a = Neg(x) b = Abs(a) y = Relu(b) }}"
    fewer = f"{HEAD} a = Neg(x) y = Relu(a) }}"
    target = Scripted({BEFORE: [(10.0,)], fastest: [(9.1,)], fewer: [(leaner,)]})
    entries = [Finalist(INPUT, graph_of(BEFORE), list), Finalist("fastest", graph_of(fastest), list, 8 * MICROSECOND),
               Finalist("leaner", graph_of(fewer), list, 8 * MICROSECOND)]
    outcome = race(entries, context_of(tmp_path / "t.db", target), 10 * MICROSECOND)
    assert outcome.ranked[0].name == winner


def test_both_looks_are_in_the_database(tmp_path: Path) -> None:
    name, _, first = looked(tmp_path, LEANER, [(11.5,), (10.0,)], None)
    warm = Scripted({})  # nothing may be measured any more
    for options in ({}, {"frozen": True}):
        again = raced(context_of(tmp_path / "t.db", warm, **options), LEANER, None)
        assert again.ranked[0].name == name == "new" and not warm.prepared
        assert again.comparison is not None and first.comparison is not None
        assert again.comparison.results == first.comparison.results
    keys = [record.key for record in Timings(tmp_path / "t.db").records(kind="verdict")]
    assert len(keys) == 2 and sorted(keys)[1].endswith("threads=1 look=2")


def test_only_what_is_slower_twice_at_another_size_is_out(tmp_path: Path) -> None:
    before, leaner = (text.replace("2, 4", "n, 4") for text in (BEFORE, LEANER))
    for second, winner in ((10.0, "new"), (11.0, INPUT)):
        target = Scripted({before: [(10.0,)], leaner: [(9.0,), (11.0,), (second,)]})
        context = context_of(tmp_path / f"{winner}.db", target)
        context.sizes, context.more_sizes = {"n": 1}, [{"n": 2}]
        entries = [Finalist(INPUT, graph_of(before), list), Finalist("new", graph_of(leaner), list)]
        assert race(entries, context).ranked[0].name == winner


def test_what_sessions_cannot_hold_is_ranked_without_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finalists, "HELD_BYTES", -1)
    for predicted, winner in ((9 * MICROSECOND, "new"), (11 * MICROSECOND, INPUT)):
        name, sessions, outcome = looked(tmp_path, OTHER, [(1.0,)], predicted)
        assert (name, sessions) == (winner, 0)
        assert outcome.comparison is None and "not measured as a whole" in outcome.note


def test_dominates() -> None:
    before = graph_of(BEFORE)
    assert dominates(graph_of(LEANER), before, {})
    assert not dominates(before, before, {})
    assert not dominates(graph_of(OTHER), before, {})
    assert not dominates(graph_of(f"{HEAD} y = Neg(x) }}"), before, {}), "another operator"
    wider = 'graph "g" opset 18 (x: float32[2, 5]) -> (y) { y = Relu(x) }'
    assert not dominates(graph_of(wider), before, {}), "another type"


class Refusing(Scripted):
    """It cannot run some graphs."""

    def __init__(self, script: Mapping[str, list[tuple[float, ...]]], refused: list[str]) -> None:
        super().__init__(script)
        self.refused = {str(graph_of(text)) for text in refused}

    def prepare(self, graph: Graph, feeds: Mapping[str, np.ndarray], threads: int = 1) -> Runner:
        if str(graph) in self.refused:
            raise Unsupported("this runtime does not load it")
        return super().prepare(graph, feeds, threads)


@pytest.mark.parametrize("objective", ["time", "nodes", "memory"])
def test_what_the_target_does_not_run_is_never_handed_back(tmp_path: Path, objective: Any) -> None:
    script = {BEFORE: [(10.0,) * 8], LEANER: [(5.0,) * 8], OTHER: [(5.0,) * 8]}
    for refused in ([LEANER], [LEANER, OTHER]):
        context = context_of(tmp_path / f"{len(refused)}.db", Refusing(script, refused), objective=objective)
        entries = [Finalist(name, graph_of(text), list, MICROSECOND)
                   for name, text in ((INPUT, BEFORE), ("leaner", LEANER), ("other", OTHER))]
        found = race(entries, context, 10 * MICROSECOND)
        assert found.unsupported.keys() >= {"leaner"}
        assert found.ranked[0].name not in found.unsupported and len(found.ranked) <= 3 - len(refused)


def test_where_the_target_runs_not_even_the_input_its_refusal_says_nothing(tmp_path: Path) -> None:
    context = context_of(tmp_path / "t.db", Refusing({LEANER: [(5.0,) * 8]}, [BEFORE]))
    entries = [Finalist(INPUT, graph_of(BEFORE), list), Finalist("leaner", graph_of(LEANER), list, MICROSECOND)]
    assert race(entries, context, 10 * MICROSECOND).ranked[0].name == "leaner"


def test_a_call_is_estimated_as_its_body(tmp_path: Path) -> None:
    """Three Neg in a function are three, not one launch of something unknown: one Neg is better than the call."""
    model = onnx.parser.parse_model("""
      <ir_version: 9, opset_import: ["": 17, "f": 1]>
      g (float[4] x) => (float[4] y) { y = f.Thrice(x) }
      <domain: "f", opset_import: ["": 17]>
      Thrice (a) => (d) { b = Neg(a) c = Neg(b) e = Neg(c) d = Relu(e) }""")
    found = optimize(model.SerializeToString(), target="roofline", effort="low", timings=str(tmp_path / "t.db"))
    assert [node.op for node in found.graph.nodes] == ["Neg", "Relu"] and not found.graph.functions


def test_types_that_the_file_states_are_a_matter_of_measuring(tmp_path: Path) -> None:
    """Two files that differ in nothing else: what the input runs with is measured, and what it would run without."""
    x, a, y = (onnx.helper.make_tensor_value_info(name, 1, [2, 4]) for name in "xay")
    nodes = [onnx.helper.make_node("Exp", ["x"], ["a"]), onnx.helper.make_node("Relu", ["a"], ["y"])]
    made = onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", [x], [y], value_info=[a]))
    graph = load_onnx(made.SerializeToString())
    assert [entry.name for entry in enter(graph, graph.copy(), Improved([]))] == [INPUT]
    given, bare = enter(graph, graph.copy(), Improved([]), reads_types=True)
    assert (given.name, bare.name) == (INPUT, UNSTATED)
    assert not to_model_proto(bare.graph).graph.value_info
    replayed = journal.apply(graph, bare.steps()[0]["patch"])
    assert not to_model_proto(replayed).graph.value_info and to_model_proto(graph).graph.value_info


def test_types_that_the_target_refuses_are_left_out(tmp_path: Path) -> None:
    """And what becomes of the file is not remembered of one that states nothing."""
    pytest.importorskip("onnxruntime")
    x, y = (onnx.helper.make_tensor_value_info(name, 1, [2, 4]) for name in "xy")
    nodes = [onnx.helper.make_node("Exp", ["x"], ["a"]), onnx.helper.make_node("Sin", ["a"], ["y"])]
    settings: dict[str, Any] = {"target": "onnxruntime:cpu", "threads": 1, "effort": "low",
                                "timings": str(tmp_path / "t.db")}
    found = []
    for infos in ([onnx.helper.make_tensor_value_info("a", 7, [2, 4])], []):
        made = onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", [x], [y], value_info=infos),
                                      opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
        found.append(optimize(load_onnx(made.SerializeToString()), **settings))
    wrong, right = found
    assert any("wrong types" in each for each in wrong.report["warnings"]) and right.report["warnings"] == []
    assert not to_model_proto(wrong.graph).graph.value_info and right.report["remembered"] is None
