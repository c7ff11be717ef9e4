"""A stack of equal blocks is cut into equal regions; what is found in one is done on the others, with their weights."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from graphs.builder import Builder, Value
from graphs.constants import Constant
from graphs.errors import ParseError
from graphs.inference import infer
from graphs.ir import Graph, NameSupply, Node
from graphs.structure import check_structure
from optimizer import Options, optimize
from optimizer import regions as by_region
from optimizer.context import open_context
from optimizer.progress import Clock
from optimizer.searching import search as whole
from search.partition import partition
from search.stamp import Script
from search.steps import Patch, Step, replay, same_graph
from tests.search import samples

WIDTH = 6


def tower(layers: int, scales: dict[int, np.ndarray] | None = None, shared: bool = False) -> Graph:
    """Layers of nine nodes with a residual; `scales`: factors of single layers."""
    draw = np.random.default_rng(1)
    b = Builder("tower", opset=17)
    x = b.input("x", "float32", ["n", WIDTH])
    weight = None
    for layer in range(layers):
        if weight is None or not shared:
            weight = b.constant(draw.standard_normal((WIDTH, WIDTH)).astype(np.float32))
        scale = (scales or {}).get(layer, draw.uniform(0.5, 2, WIDTH).astype(np.float32))
        hidden = b.Mul(b.MatMul(x, weight), b.constant(scale))
        hidden = b.Tanh(b.Transpose(b.Transpose(hidden, perm=(1, 0)), perm=(1, 0)))
        x = b.Add(x, b.Relu(b.Relu(b.Sigmoid(hidden))))
    b.output(x, "y")
    graph = b.graph()
    infer(graph)
    return graph


@pytest.fixture(autouse=True)
def small_regions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_region, "partition",
                        lambda graph, keep=(): partition(graph, keep, least=12, most=30))
    monkeypatch.setattr(by_region, "TERMS_A_NODE", 240)  # 50 nodes are many


def searched(graph: Graph, search=by_region.search, **options):
    context = open_context(graph, Options(target="roofline", **options))
    from optimizer.candidates import Improved

    improved = Improved([])
    search(graph, context, Clock(), improved)
    return improved, context


def test_cuts_are_at_the_narrowest_places_and_equal_blocks_become_equal_regions():
    regions = partition(tower(24), least=12, most=30)
    assert sum(len(region.graph.nodes) - len(region.leaving) for region in regions) == len(tower(24).nodes)
    assert all(len(region.leaving) == 1 for region in regions)
    assert len({region.key for region in regions}) <= 3  # the first and the last differ
    for region in regions:
        check_structure(region.graph)


def test_twice_as_many_layers_are_no_more_searches():
    (few, _), (many, _) = searched(tower(8)), searched(tower(24))
    assert few.statistics["searched"] == many.statistics["searched"]
    assert many.statistics["regions"] >= 2.5 * few.statistics["regions"]
    assert few.statistics["terms"] == many.statistics["terms"]


def test_each_layer_gets_the_same_rewrites_with_its_own_weights():
    few, many = optimize(tower(6), target="roofline"), optimize(tower(18), target="roofline")
    assert few.graph.node_count() * 3 == many.graph.node_count()
    assert any("copy_of" in step for step in many.trace.steps)
    for step in many.trace.steps:
        source = many.trace.steps[step["copy_of"]] if "copy_of" in step else step
        assert (source["rule"], "copy_of" in source) == (step["rule"], False)
    assert same_graph(many.trace.replay(many.original), many.graph)
    assert many.report["validation"]["ok"] and not many.report["warnings"]


@pytest.mark.parametrize("special", [np.ones(WIDTH), np.zeros(WIDTH), np.full(WIDTH, 1e38), np.arange(WIDTH) - 2.0])
def test_a_layer_with_special_weights_is_searched_by_itself(special: np.ndarray):
    graph = tower(16, {7: special.astype(np.float32)})
    result = optimize(graph, target="roofline")
    assert result.report["validation"]["ok"] and not result.report["warnings"]
    assert same_graph(result.trace.replay(result.original), result.graph)
    kinds = {region.key for region in partition(tower(16), least=12, most=30)}
    assert result.report["search"]["searched"] > len(kinds)


def cells(count: int) -> Graph:
    """Cells that end in three convolutions of one value, each with BatchNormalization: folded first, then joined."""
    draw = np.random.default_rng(2)
    b = Builder("cells", opset=17)
    x = b.input("x", "float32", ["n", 4, 5, 5])
    for _ in range(count):
        x = b.Tanh(x)
        x = b.Sum(*(b.Sin(branch(b, x, draw)) for _ in range(3)))
    b.output(x, "y")
    graph = b.graph()
    infer(graph)
    return graph


def branch(b: Builder, x: Value, draw: np.random.Generator) -> Value:
    made = b.Conv(x, b.constant(draw.standard_normal((4, 4, 1, 1)).astype(np.float32)))
    return b.BatchNormalization(made, *(b.constant(draw.uniform(0.5, 2, 4).astype(np.float32)) for _ in range(4)))


def test_what_is_joined_after_a_rewrite_of_each_is_joined_in_one_step_and_copied():
    (few, _), (many, _) = (searched(cells(count), objective="nodes") for count in (6, 18))
    assert few.statistics["searched"] == many.statistics["searched"] < many.statistics["regions"]
    graph = cells(18)
    steps = many.candidates[0].rewrites()
    joins = [step for step in steps if step.rule == "join-convolutions"]
    assert len(joins) == 18 and all(len(step.patch.replace) == 3 for step in joins)
    assert same_graph(replay(graph, steps), many.candidates[0].graph)


def test_the_result_costs_hardly_more_than_that_of_the_whole_search(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(by_region, "partition", partition)
    graph = samples.bert(layers=4, hidden=16, heads=2)
    infer(graph)
    (parts, _), (one, _) = searched(graph), searched(graph, whole)
    best = [min(each.predicted for each in found.candidates) for found in (parts, one)]
    assert best[0] <= best[1] * 1.01
    assert parts.predicted_input == pytest.approx(one.predicted_input)


def test_a_rewrite_across_a_cut_is_found():
    b = Builder("chain", opset=17)
    value = b.input("x", "float32", ["n", 4])
    for count in range(36):  # each pair of Transpose is one rewrite; wherever the cuts are, some pair is cut
        value = b.Transpose(value, perm=(1, 0))
        if count % 2:
            value = b.Sin(value)
    b.output(value, "y")
    graph = b.graph()
    infer(graph)
    improved, _ = searched(graph)
    assert min(each.graph.node_count() for each in improved.candidates) == 18


def test_around_cuts_only_the_kind_that_is_used_is_chosen_and_copied(monkeypatch: pytest.MonkeyPatch):
    kinds: list[list[str]] = []
    plain = by_region.searching.select

    def select(*args, **named):
        found = plain(*args, **named)
        kinds.append(list(found))
        return found

    monkeypatch.setattr(by_region.searching, "select", select)
    improved, _ = searched(tower(8))
    first = improved.statistics["searched"]
    assert kinds[:first] == [["fastest predicted", "fewest nodes"]] * first
    assert kinds[first:] == [["fastest predicted"]] * (len(kinds) - first) and len(kinds) > first


def test_steps_across_cuts_give_no_constant_the_name_of_one_that_is_gone():
    b = Builder("chain", opset=17)
    value = b.Sin(b.input("x", "float32", ["n", 4]))
    for factor in range(2, 22):  # the first cut is where nodes stand as at the beginning: between two Mul
        value = b.Mul(value, b.constant(np.full(4, factor, np.float32)))
        value = b.Sin(b.Mul(value, b.constant(np.full(4, 3, np.float32))))
    b.output(value, "y")
    graph = b.graph()
    infer(graph)
    improved, _ = searched(graph)
    best = min(improved.candidates, key=lambda each: each.graph.node_count())
    steps = best.rewrites()
    assert best.graph.node_count() == 41  # each pair is one Mul, those that were cut too
    assert same_graph(replay(graph, steps), best.graph)
    steps[-1].patch.constants = {next(iter(graph.constants)): Constant.of(np.zeros(4, np.float32))}
    with pytest.raises(ParseError, match="another constant"):
        replay(graph, steps)


def halves(way: str) -> Graph:
    b = Builder("halves", opset=17)
    first, second = b.Split(b.input("x", "float32", ["n", 6]), axis=1, split=(3, 3), outputs=2)
    b.output(b.Add(getattr(b, way)(first) if way else first, second), "y")
    graph = b.graph()
    infer(graph)
    return graph


def test_one_of_several_outputs_can_be_read_again_after_it_was_replaced():
    graph = halves("")
    first, second = graph.nodes[0].outputs
    like = graph.types[first]
    patches = [Patch([Node("Sin", (second,), ("s",), version=7)], replace={first: "s"}, types={"s": like}),
               Patch([Node("Cos", (first,), ("c",), version=7)], replace={"s": "c"}, types={"c": like})]
    steps = [Step(0, "known-shape", "exact", "", [], [], [], patch) for patch in patches]
    regions = partition(graph)
    done = by_region._join(by_region.Pass(graph, NameSupply(graph.names())), regions, [Script(regions[0], steps)])
    assert same_graph(done.graph, halves("Cos"))
    assert same_graph(replay(graph, done.steps), halves("Cos"))


def test_two_runs_give_the_same_bytes():
    one, two = (optimize(tower(16), target="roofline") for _ in range(2))
    assert str(one.graph) == str(two.graph)
    assert one.trace.to_dict() == two.trace.to_dict()


def test_steps_replay_and_name_no_value_twice():
    improved, _ = searched(tower(16, shared=True))
    for candidate in improved.candidates:
        steps = candidate.rewrites()
        made = list(itertools.chain.from_iterable(node.outputs for step in steps for node in step.patch.add))
        assert len(made) == len(set(made))
        assert same_graph(replay(tower(16, shared=True), steps), candidate.graph)


def test_equal_keys_are_equal_but_for_float_elements():
    ones = Constant.of(np.ones(WIDTH, np.float32)).array
    plain, special = (partition(tower(6, scales), least=12, most=30) for scales in ({}, {2: ones}))
    assert [one.key == two.key for one, two in zip(plain, special, strict=True)].count(False) == 1


def test_search_processes_change_nothing_but_time(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    ones = {layer: np.ones(WIDTH, np.float32) for layer in rng.choice(12, 4, replace=False).tolist()}
    texts = []
    for workers in (0, 2):
        monkeypatch.setattr("optimizer.ahead.workers_for", lambda jobs, workers=workers: min(workers, jobs))
        improved, context = searched(tower(12, ones))
        assert not context.warnings
        texts.append([(each.name, str(each.graph), each.predicted) for each in improved.candidates])
    assert texts[0] == texts[1] and texts[0]
