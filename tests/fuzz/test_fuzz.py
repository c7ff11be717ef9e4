"""A small fixed set of random graphs through `optimize`, compared in ONNX Runtime; `make fuzz` runs many more."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphs.operators import table
from graphs.text import parse_graph, print_graph

from .__main__ import case
from .checking import examine
from .generator import LEAST, generate
from .kinds import KINDS
from .maker import Maker, Refused
from .operators import NOT_YET, RECIPES
from .shrink import shrink

GROUP, GROUPS = 8, 6


@pytest.mark.parametrize("group", range(GROUPS))
def test_original_against_optimized(group: int, tmp_path: Path) -> None:
    outcomes, faults = [], []
    for seed in range(group * GROUP, (group + 1) * GROUP):
        graph, precision, objective = case(seed)
        outcome = examine(graph, precision, str(tmp_path / "timings.db"), objective, seed, again=seed % 4 == 0)
        outcomes.append(outcome)
        if outcome.fault:
            faults.append(f"seed {seed} ({precision}, {objective}): {outcome.fault}\n{graph}")
    assert not faults, "\n\n".join(faults)
    rewritten, compared = (sum(getattr(each, kind) for each in outcomes) for kind in ("rewritten", "compared"))
    print(f"{rewritten} of {GROUP} graphs rewritten, {compared} compared")
    assert rewritten >= GROUP * 3 // 8, "the generator must make what rules match"
    assert compared >= GROUP * 5 // 8, "the generator must make what runs"


def test_the_same_seed_gives_the_same_graph() -> None:
    for seed in (1, 2, 30):
        assert print_graph(generate(seed)) == print_graph(generate(seed))
    assert print_graph(generate(1)) != print_graph(generate(2))


def test_every_operator_has_a_recipe_or_is_on_the_list() -> None:
    operators = {record.name for record in table().values() if not record.domain and record.standard}
    of_kinds = operators & {name for recipes in KINDS.values() for name in recipes}
    assert operators == set(RECIPES) | of_kinds | NOT_YET
    assert not (set(RECIPES) | of_kinds) & NOT_YET


@pytest.mark.parametrize("op", sorted(RECIPES))
def test_recipe(op: str) -> None:
    """Each recipe makes its node sooner or later."""
    for seed in range(300):
        m = Maker(seed, smooth=False)
        try:
            RECIPES[op](m)
        except Refused:
            continue
        if any(node.op == op for node in m.b._graph.nodes):
            return
    pytest.fail(f"{op} is never made")


def test_shrinking_keeps_what_fails() -> None:
    graph = next(each for each in map(generate, range(50)) if sum(node.op == "Mul" for node in each.nodes) > 2)
    small = shrink(graph, lambda each: any(node.op == "Mul" for node in each.nodes))
    assert [node.op for node in small.nodes] == ["Mul"]
    assert parse_graph(print_graph(small)).outputs == small.outputs
    assert graph.node_count() >= LEAST
