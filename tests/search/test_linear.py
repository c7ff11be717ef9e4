"""Programs solved part by part have the minima of the whole; what is called necessary is in every choice."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search import linear
from search.exact import necessary
from search.linear import OPTIMAL, LinearModel, minimize

NUMBERS = st.integers(-4, 4).map(float)


@st.composite
def models(draw: st.DrawFn) -> LinearModel:
    """Up to eight binary columns, some of them fixed, and rows over few of them."""
    model = LinearModel()
    count = draw(st.integers(1, 8))
    for _ in range(count):
        low, high = draw(st.sampled_from([(0.0, 1.0), (0.0, 1.0), (0.0, 0.0), (1.0, 1.0)]))
        model.column(draw(NUMBERS), low, high, True)
    for _ in range(draw(st.integers(0, 6))):
        columns = draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=3, unique=True))
        low = draw(st.sampled_from([-linear.INFINITY, 0.0, 1.0]))
        high = draw(st.sampled_from([linear.INFINITY, 1.0, 2.0]))
        model.row([(column, draw(st.sampled_from([1.0, 1.0, -1.0, 2.0]))) for column in columns], low, high)
    return model


def fits(model: LinearModel, values: tuple[float, ...]) -> bool:
    inside = all(low <= value <= high for low, value, high in zip(model.lower, values, model.upper))
    return inside and all(
        model.row_lower[row] - 1e-6 <= sum(factor * values[column] for column, factor in model.terms(row))
        <= model.row_upper[row] + 1e-6 for row in range(len(model.row_lower)))


def cost(model: LinearModel, values: Any) -> float:
    return sum(price * value for price, value in zip(model.costs, values))


@given(models(), st.booleans())
@settings(deadline=None)
def test_the_minimum_of_all_parts_is_that_of_the_whole(model: LinearModel, guessed: bool) -> None:
    fitting = [each for each in itertools.product((0.0, 1.0), repeat=len(model.costs)) if fits(model, each)]
    found = minimize(model, 10.0, 1000, fitting[-1] if guessed and fitting else None)
    if not fitting:
        assert found.values is None
        return
    least = min(cost(model, each) for each in fitting)
    assert found.status == OPTIMAL and found.values is not None
    assert fits(model, tuple(round(value) for value in found.values))
    assert cost(model, found.values) == pytest.approx(least, abs=1e-4)
    assert found.bound == pytest.approx(least, abs=1e-3)


def chain(layers: int) -> LinearModel:
    """Layers of four e-nodes between classes that are fixed: all layers are one problem, solved once."""
    model = LinearModel()
    for _ in range(layers):
        cls = model.column(0.0, 1.0, 1.0, False)
        inner = model.column(0.0, 0.0, 1.0, False)
        one, two, three, four = (model.column(price, 0.0, 1.0, True) for price in (5.0, 2.0, 2.0, 3.5))
        model.row([(one, 1.0), (two, 1.0), (cls, -1.0)], 0.0, 0.0)
        model.row([(three, 1.0), (four, 1.0), (inner, -1.0)], 0.0, 0.0)
        model.row([(two, 1.0), (inner, -1.0)], -linear.INFINITY, 0.0)
    return model


def test_equal_parts_are_solved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    solved: list[int] = []
    solve = linear._solve
    monkeypatch.setattr(linear, "_solve", lambda part, *rest: solved.append(len(part.costs)) or solve(part, *rest))
    found = minimize(chain(50), 10.0)
    assert found.values is not None and cost(chain(50), found.values) == pytest.approx(50 * 4.0)
    assert solved == [5]


def test_a_part_for_which_no_time_is_left_keeps_its_guess() -> None:
    model = chain(3)
    guess = [1.0, 0.0, 1.0, 0.0, 0.0, 0.0] * 3
    found = minimize(model, 0.0, None, guess)
    assert found.values is not None and fits(model, tuple(round(value) for value in found.values))


@given(st.lists(st.lists(st.lists(st.integers(0, 7), max_size=3), min_size=1, max_size=3), min_size=8, max_size=8),
       st.sets(st.integers(0, 7), min_size=1, max_size=2))
@settings(deadline=None)
def test_what_is_necessary_is_in_every_choice_and_nothing_else(arguments: list[list[list[int]]],
                                                               roots: set[int]) -> None:
    usable: Any = {cls: [SimpleNamespace(children=tuple(each)) for each in rows] for cls, rows in enumerate(arguments)}
    chosen: list[set[int]] = []
    for choice in itertools.product(*(range(len(rows)) for rows in arguments)):
        needed = _needed([arguments[cls][picked] for cls, picked in enumerate(choice)], roots)
        if needed is not None:
            chosen.append(needed)
    found = necessary(usable, roots, range(8))
    assert all(found <= each for each in chosen)
    if chosen and not _cyclic(arguments):  # in a graph without cycles it is all that is common
        assert found == set.intersection(*chosen)


def _needed(children: list[list[int]], roots: set[int]) -> set[int] | None:
    """Classes that a choice needs; None where it goes round in a circle."""
    done: set[int] = set()

    def visit(cls: int, above: frozenset[int]) -> bool:
        if cls in above:
            return False
        if cls not in done:
            if not all(visit(child, above | {cls}) for child in children[cls]):
                return False
            done.add(cls)
        return True

    return done if all(visit(root, frozenset()) for root in sorted(roots)) else None


def _cyclic(arguments: list[list[list[int]]]) -> bool:
    every = [sorted({child for row in rows for child in row}) for rows in arguments]
    return _needed(every, set(range(len(every)))) is None
