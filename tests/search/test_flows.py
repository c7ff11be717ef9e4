"""Flows change no choice and make the relaxation tight: against all choices of small e-graphs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from search import exact, flows
from search.greedy import tree_greedy
from search.linear import LinearModel, minimize
from search.saturated import ENode
from search.selection import Problem

Rows = list[list[tuple[int, list[int]]]]  # of each class its e-nodes: a price and arguments
# Three ways from class 0, on each of which class 4 is read by another class.
THIRDS: Rows = [[(1, [1]), (1, [2]), (1, [3])], [(1, [4])], [(1, [4])], [(1, [4])], [(90, [])]]


def problem_of(rows: Rows, roots: list[int]) -> Problem:
    usable: dict[int, list[ENode]] = {cls: [] for cls in range(len(rows))}
    cost: list[float] = []
    enodes: list[ENode] = []
    for cls, row in enumerate(rows):
        for price, args in row:
            enode = ENode(len(enodes), "op", "Add", "", {}, tuple(args), cls, [], (), (), (), origin=None)
            cost.append(float(price))
            enodes.append(enode)
            if cls not in args:  # none is ever usable that reads itself
                usable[cls].append(enode)
    saturated: Any = SimpleNamespace(enodes=enodes, outputs=roots, incumbent={})
    return Problem(saturated, cost, usable, {}, {}, roots)


def choices(problem: Problem) -> Iterator[dict[int, ENode]]:
    for picked in itertools.product(*problem.usable.values()):
        choice = dict(zip(problem.usable, picked))
        if problem.price(choice) < float("inf"):
            yield choice


def relaxed(model: LinearModel) -> float:
    plain = LinearModel(**{**vars(model), "integer": [False] * len(model.integer)})
    found = minimize(plain, 10.0)
    assert found.values is not None
    return sum(price * value for price, value in zip(model.costs, found.values))


def program_of(problem: Problem, start: Mapping[int, ENode]) -> Any:
    return exact._Program(problem, start, tree_greedy(problem).price)


def egraphs() -> st.SearchStrategy[Rows]:
    enode = st.tuples(st.integers(1, 9), st.lists(st.integers(0, 7), max_size=2, unique=True))
    return st.lists(st.lists(enode, min_size=1, max_size=3), min_size=8, max_size=8)


@given(egraphs(), st.sets(st.integers(0, 7), min_size=1, max_size=2))
@settings(deadline=None, max_examples=150)
def test_the_best_of_all_choices_is_found_and_fits_the_program(rows: Rows, roots: set[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flows, "FEW", 0)
        problem = problem_of(rows, sorted(roots))
        every = list(choices(problem))
        assume(every)
        start = every[-1]
        program = program_of(problem, start)
        for choice in every[:20]:
            known = all(enode.index in program.enode_column for cls, enode in choice.items() if cls in program.usable)
            if known:
                assert holds(program.model, program.start(choice))
        best = min(problem.price(choice) for choice in every)
        found = exact.solve(problem, start, tree_greedy(problem).price, 10.0, 1000)
        assert found.choice is not None and found.bound is not None
        assert problem.price(found.choice) == pytest.approx(best)
        assert found.bound <= best + 1e-6


def holds(model: LinearModel, values: list[float]) -> bool:
    return all(low - 1e-6 <= sum(factor * values[column] for column, factor in model.terms(row)) <= high + 1e-6
               for row, (low, high) in enumerate(zip(model.row_lower, model.row_upper)))


@pytest.mark.parametrize("few", [0, 100])
def test_ways_that_meet_again_are_paid_for_once_and_whole(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Class 4 may also be made by two e-nodes, so that it is not needed by itself."""
    rows = [*THIRDS[:2], [(1, [4])], [(1, [5])], [(90, [6])], [(80, [6]), (1, [4])], [(0, [])]]
    monkeypatch.setattr(flows, "FEW", few)
    problem = problem_of(rows, [0])
    best = min(choices(problem), key=problem.price)
    program = program_of(problem, best)
    share = relaxed(program.model) / program.factor / problem.price(best)
    assert share == pytest.approx(1.0, abs=1e-3) if few == 0 else share < 0.6
