"""Kinds of graphs beside the plain one: a few of each through `optimize`; `make fuzz` runs many more."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphs.text import print_graph

from .__main__ import case, cases
from .checking import examine
from .generator import generate
from .kinds import KINDS, kind_of
from .maker import Maker, Refused
from .operators import Recipe

GROUP = 5
RECIPES: dict[str, Recipe] = {name: recipe for recipes in KINDS.values() for name, recipe in recipes.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_original_against_optimized(kind: str, tmp_path: Path) -> None:
    outcomes, faults = [], []
    for seed in range(GROUP):
        graph, precision, objective = case(seed, kind)
        outcome = examine(graph, precision, str(tmp_path / "timings.db"), objective, seed, again=seed == 0)
        outcomes.append(outcome)
        if outcome.fault:
            faults.append(f"seed {seed} {kind} ({precision}, {objective}): {outcome.fault}\n{graph}")
    assert not faults, "\n\n".join(faults)
    assert any(each.rewritten for each in outcomes), "the generator must make what rules match"
    assert sum(each.compared for each in outcomes) >= GROUP // 2, "the generator must make what runs"


@pytest.mark.parametrize("name", RECIPES)
def test_recipe(name: str) -> None:
    """Each recipe makes its node sooner or later."""
    for seed in range(100):
        m = Maker(seed, smooth=seed % 2 == 0)
        try:
            RECIPES[name](m)
        except Refused:
            continue
        if name.islower() or name.split()[0] in {node.op for node in m.b._graph.nodes}:
            return
    pytest.fail(f"{name} is never made")


def test_the_same_seed_gives_the_same_graph() -> None:
    for seed, kind in enumerate(KINDS):
        assert print_graph(generate(seed, kind=kind)) == print_graph(generate(seed, kind=kind))


def test_every_seed_stands_for_a_plain_graph_and_a_kind() -> None:
    assert list(cases(3, 3, "all")) == [(3, ""), (3, kind_of(3)), (4, "")]
    assert list(cases(3, 1, "plain")) == [(3, "")]
    assert list(cases(3, 1, "new")) == [(3, kind_of(3))]
    assert list(cases(3, 1, "nested")) == [(3, "nested")]
    assert {kind_of(seed) for seed in range(len(KINDS))} == set(KINDS)
