import math
from pathlib import Path

import numpy as np
import pytest

from cost_model.costs import NodeInput
from cost_model.fingerprint import Fingerprint
from cost_model.node_costs import NodeCosts
from cost_model.protocol import Settings
from cost_model.targets import Unsupported, all_targets, find_target, resolve
from cost_model.targets.base import chain
from cost_model.targets.egraft_cpu import EgraftCpu
from cost_model.targets.estimated import Recorded
from cost_model.timings import Timings
from graphs.errors import FrozenMiss, InvalidOption, TargetUnavailable
from graphs.ir import Graph
from graphs.text import parse_graph
from graphs.types import TensorType
from tests.cost_model.fakes import FakeTarget

QUICK = Settings(sample=1e-6, min_rounds=3, max_rounds=4, budget=0.2)
FEEDS = {"x": np.linspace(-1, 1, 16, dtype=np.float32).reshape(2, 8)}


def pair() -> dict[str, Graph]:
    text = 'graph "g" opset 17 (x: float32[2, 8]) -> (y) {{\n  t = {}(x)\n  y = Relu(t)\n}}'
    return {"original": parse_graph(text.format("Neg")), "other": parse_graph(text.format("Abs"))}


def test_every_target_of_the_design_is_in_the_table() -> None:
    names = [target.name for target in all_targets()]
    assert names == ["onnxruntime:cpu", "onnxruntime:cuda", "egraft:cpu", "egraft:cuda", "roofline"]
    for target in all_targets():
        reason = target.available()
        assert reason is None or ("; " in reason and "\n" not in reason)
        assert target.description


def test_names_that_do_not_exist_and_targets_that_are_not_here() -> None:
    with pytest.raises(InvalidOption, match="no target 'tpu'"):
        find_target("tpu")
    for target in all_targets():
        if target.available() is not None:
            with pytest.raises(TargetUnavailable):
                resolve(target.name)
            with pytest.raises(TargetUnavailable):
                target.prepare(pair()["original"], FEEDS)


def test_auto_measures_where_the_file_will_run(monkeypatch: pytest.MonkeyPatch) -> None:
    state = {target.name: "not here; no" for target in all_targets()}
    state["egraft:cpu"] = None  # type: ignore[assignment]
    for target in all_targets():
        monkeypatch.setattr(target, "available", lambda name=target.name: state[name])
    assert resolve("auto").name == "egraft:cpu"
    state["onnxruntime:cpu"] = None  # type: ignore[assignment]
    assert resolve("auto").name == "onnxruntime:cpu"
    assert resolve("auto", file_is_onnx=False).name == "egraft:cpu"
    state["egraft:cuda"] = state["onnxruntime:cuda"] = None  # type: ignore[assignment]
    assert resolve("auto").name == "onnxruntime:cuda"
    assert resolve("auto", file_is_onnx=False).name == "egraft:cuda"


@pytest.mark.parametrize("name", ["onnxruntime:cpu", "egraft:cpu"])
def test_a_target_runs_and_prices_a_tiny_graph(name: str) -> None:
    if name.startswith("onnxruntime"):
        pytest.importorskip("onnxruntime")
    target, timings = find_target(name), Timings(":memory:")
    runner = target.prepare(*chain(3))
    runner()
    np.testing.assert_array_equal(runner.outputs()["v3"], np.float32([-0.5]))
    runner.close()
    overhead = target.overhead(1, timings)
    assert overhead.launch > 0 and overhead.call >= 0
    inputs = [NodeInput(TensorType("float32", (4, 8))), NodeInput(TensorType("float32", (8, 8)), True)]
    cost = target.node_cost("MatMul", "", {}, inputs, 1, 17, timings=timings)
    assert cost.source == "measured" and 0 < cost.seconds < math.inf
    again = target.node_cost("MatMul", "", {}, inputs, 1, 17, timings=timings)
    assert (again.source, again.seconds) == ("database", cost.seconds)
    view = {"shape": (8, 4), "allowzero": 0}
    assert target.node_cost("Reshape", "", view, inputs[:1], 1, 17, timings=timings).source == "measured"
    (record,) = (each for each in timings.records(kind="node") if each.key.startswith("MatMul"))
    assert len(record.samples) == len(record.note["raw"]) == len(record.note["reference"]) >= 3


def test_onnxruntime_tells_what_it_lacks_and_what_it_removes() -> None:
    pytest.importorskip("onnxruntime")
    target, timings = find_target("onnxruntime:cpu"), Timings(":memory:")
    value = NodeInput(TensorType("float32", (2, 2)))
    assert target.node_cost("Nope", "some.domain", {}, [value], 1, 17, timings=timings).source == "unsupported"
    assert target.node_cost("Identity", "", {}, [value], 1, 17, timings=timings).source == "free"


def test_whole_graphs_are_compared_and_the_verdict_is_kept(tmp_path: Path) -> None:
    target, timings, graphs = FakeTarget(), Timings(tmp_path / "t.db"), pair()
    first = target.compare(graphs, "original", FEEDS, settings=QUICK, timings=timings)
    assert first.kind == "measured" and set(first.results) == {"original", "other"}
    count = len(target.prepared)
    renamed = {"b": graphs["other"], "a": graphs["original"]}
    again = FakeTarget()
    second = again.compare(renamed, "a", FEEDS, settings=QUICK, timings=Timings(tmp_path / "t.db"))
    assert (second.kind, second.baseline, count, again.prepared) == ("database", "a", 2, [])
    assert second.results["b"] == first.results["other"]
    with pytest.raises(FrozenMiss, match="verdict"):
        wider = {"x": np.ones((3, 8), np.float32)}
        again.compare(renamed, "a", wider, timings=Timings(tmp_path / "t.db", frozen=True))
    with pytest.raises(FrozenMiss, match="verdict"):  # other values may take another branch
        others = {"x": FEEDS["x"] + 1}
        again.compare(renamed, "a", others, timings=Timings(tmp_path / "t.db", frozen=True))


def test_graphs_that_are_equal_are_run_once() -> None:
    target, graphs = FakeTarget(), pair()
    graphs["copy"] = graphs["original"].copy()
    found = target.compare(graphs, "copy", FEEDS, settings=QUICK, timings=Timings(":memory:"))
    assert len(target.prepared) == 2
    assert found.results["copy"] == found.results["original"] and found.verdict("copy", "original") == "equal"


class Elsewhere(EgraftCpu):
    """The same target where another device answers."""

    @property
    def fingerprint(self) -> Fingerprint:
        return Fingerprint.of({"cpu": "another"})


def test_the_records_of_another_machine_are_replayed_under_that_name(tmp_path: Path) -> None:
    path = tmp_path / "there.db"
    local, graphs = find_target("egraft:cpu"), pair()
    there = Timings(path)
    costs = NodeCosts(local, there, {}, opset=17)
    for node in graphs["original"].nodes:
        costs.node_in(graphs["original"], node)
    costs.measure()
    for number in range(20):  # kernels are filed with their compiler: more of them do not make that the device
        there.add(f"kernel {number}", "egraft:cpu", Fingerprint.of({"compiler": "some"}), "fusion", [1.0], 1.0, {})
    there.close()
    target = find_target(f"egraft:cpu@{path}")
    assert not target.measures and target.name == f"egraft:cpu@{path}"
    assert target.origin == "this machine"  # the records are of the very machine that this test runs on
    assert Recorded(Elsewhere(), str(path)).origin == "another machine"
    replay = NodeCosts(target, Timings(":memory:"), {}, opset=17)
    assert [replay.node_in(graphs["original"], node).source for node in graphs["original"].nodes] == ["database"] * 2
    found = target.compare(graphs, "original", FEEDS, timings=Timings(":memory:"))
    assert found.kind == "recorded" and found.rounds == 0 and "estimated" in found.note
    with pytest.raises(InvalidOption, match="no records"):
        find_target(f"onnxruntime:cpu@{path}")


def test_roofline_only_estimates() -> None:
    target = find_target("roofline")
    found = target.compare(pair(), "original", FEEDS, timings=Timings(":memory:"))
    assert found.kind == "estimated" and "nothing was measured" in found.note
    with pytest.raises(TargetUnavailable):
        target.prepare(pair()["original"], FEEDS)


def test_a_graph_that_the_target_cannot_run_is_left_out_of_the_comparison(tmp_path: Path) -> None:
    graphs = pair()
    for target in (FakeTarget(missing=frozenset({"Abs"})), FakeTarget()):
        timings = Timings(tmp_path / "t.db")  # the second target is the same device: it reads the verdict
        found = target.compare(graphs, "original", FEEDS, settings=QUICK, timings=timings)
        assert list(found.results) == ["original"] and "no kernel" in found.unsupported["other"]
    with pytest.raises(Unsupported):
        FakeTarget(missing=frozenset({"Neg"})).compare(graphs, "original", FEEDS, settings=QUICK)


def test_roofline_does_not_look_at_measured_times() -> None:
    timings, graph = Timings(":memory:"), pair()["original"]
    costs = NodeCosts(find_target("egraft:cpu"), timings, {}, opset=17)
    costs.node_in(graph, graph.nodes[0])
    costs.measure()
    roofline = NodeCosts(find_target("roofline"), timings, {}, opset=17)
    assert roofline.node_in(graph, graph.nodes[0]).source == "roofline"
    assert roofline.measure().count == 0
