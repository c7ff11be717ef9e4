"""Derivatives against central differences in float64, along random directions of all that moves at once.

A gradient g of height L predicts L(w + h v) - L(w - h v) = 2 h <g, v> + O(h^3) for every direction v (any textbook on
numerical differentiation, e.g. Nocedal and Wright, "Numerical Optimization", 8.1). Each part of v is scaled so that
what it contributes is of the size of L, as far as h then moves no value by more than a part of its own size: a wrong
gradient of one tensor shows beside those of all others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from graphs.errors import EgraftError
from graphs.ir import Graph
from runtime.feeds import SPREADS, draw, size_candidates, smaller_sizes
from runtime.session import check_feeds
from runtime.validation.report import FAILED, NOT_VALIDATED, PASSED
from runtime.validation.twins import Twin, TwinProgram, widen

STEPS = (1e-6, 4e-6)  # h; the second tells whether the first can be trusted
ALLOWED = 1e-4  # relative difference
UNSETTLED = 0.25 * ALLOWED  # the two steps differ by more: the height is not smooth there
LEAST = 1e-4  # part of the height below which a slope counts as zero
ROUNDS, TRIES, MAX_SIZES = 2, 4, 60
LARGE_BYTES = 128 << 20  # of the values of one run in float64: beyond, one place must do
Values = dict[str, np.ndarray]


@dataclass
class Check:
    """The verdict. `difference` is the largest of `rows`, one for each round and direction."""

    status: str = NOT_VALIDATED
    reason: str = ""
    difference: float | None = None
    allowed: float = ALLOWED
    rows: list[dict[str, Any]] = field(default_factory=list)
    zero: list[str] = field(default_factory=list)  # derivatives that were zero in every round

    @property
    def ok(self) -> bool:
        """Passed."""
        return self.status == PASSED

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {**asdict(self), "ok": self.ok, "summary": self.summary()}

    def summary(self) -> str:
        """One line."""
        text = f"{self.status}: derivatives against central differences in float64"
        if self.difference is not None:
            text += f", largest relative difference {self.difference:.2g} of {self.allowed:g} allowed"
        places = list(dict.fromkeys(_sizes_text(row["sizes"]) for row in self.rows))
        if self.rows:
            text += f", {len(self.rows)} random direction{'s' if len(self.rows) > 1 else ''}"
            text += f" at {' and at '.join(places)}" if any(places) else ""
        return text + (f": {self.reason}" if self.reason else "")


def _sizes_text(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in sizes.items())


@dataclass
class Place:
    """Where derivatives are taken: named values of all inputs, and how they were drawn."""

    feeds: dict[str, Any]
    sizes: dict[str, int]
    seed: int
    large: bool = False


class Evaluated:
    """A graph that is run in float64, from the same random numbers each time."""

    def __init__(self, graph: Graph, seed: int) -> None:
        self.graph, self.seed, self.bytes = graph, seed, 0

    def __call__(self, feeds: Mapping[str, Any], counting: bool = False) -> dict[str, Any]:
        """Output name -> value. Feeds may be float64 where the graph has a narrower type. `counting` notes `bytes`, of
        the values that are alive at one time."""
        program = TwinProgram(self.graph, Twin(wide=True), None, self.seed)  # new: random nodes start again
        found = program.run({name: feeds[name] for name in self.graph.inputs}, counting)
        self.bytes = program.peak_bytes
        return found


def place_of(graph: Graph, height: str, seed: int, sizes: dict[str, int] | None,
             given: Mapping[str, Any] | None) -> tuple[Place | None, str]:
    """Values of all inputs at which the height is finite in float64, None and the reason where none are found."""
    run, why = Evaluated(graph, seed), ""
    if given is not None:
        values, found = check_feeds(graph, given)
        return Place(dict(zip(graph.inputs, values)), found, seed), ""
    for _, candidate in zip(range(MAX_SIZES), size_candidates(graph, sizes)):
        for spread in SPREADS:
            try:
                feeds = {**draw(graph, seed, candidate, spread=spread), **_defaults(graph)}
                if np.isfinite(np.sum(run(feeds, counting=True)[height])):
                    return Place(feeds, candidate, seed, run.bytes > LARGE_BYTES), ""
                why = why or f"{height!r} is not finite on drawn inputs"
            except EgraftError as error:
                why = why or f"{error.where}: {error.found}"
                break  # other numbers do not help: other sizes may
        if not candidate:
            break
    return None, why


def _defaults(graph: Graph) -> Values:
    return {name: constant.array for name, constant in graph.defaults.items()}


def places(graph: Graph, height: str, seed: int, sizes: dict[str, int] | None,
           given: Mapping[str, Any] | None) -> tuple[list[Place], str]:
    """One place, and unless the graph is large a second of another draw and, where sizes are symbolic, other sizes."""
    first, why = place_of(graph, height, seed, sizes, given)
    if first is None or given is not None or first.large:
        return ([] if first is None else [first]), why
    found = [first]
    others = smaller_sizes(graph, first.sizes) if first.sizes and not sizes else iter([first.sizes])
    for candidate in others:
        try:
            feeds = {**draw(graph, seed + 1, candidate), **_defaults(graph)}
            if np.isfinite(np.sum(Evaluated(graph, seed + 1)(feeds)[height])):
                found.append(Place(feeds, candidate, seed + 1))
        except EgraftError:
            continue  # it does not run at these sizes: the next
        if len(found) == ROUNDS:
            break
    return found, ""


@dataclass(frozen=True)
class Slope:
    """A direction, what the derivatives say of the height along it, and the size of what they say."""

    moves: Values
    predicted: float
    size: float


def direction(name: str, value: np.ndarray, seed: int) -> np.ndarray:
    """A random direction of the size of a value (of size 1 where it is zero)."""
    rng = np.random.default_rng((seed, *name.encode()))
    size = float(np.sqrt(np.mean(np.square(value, dtype=np.float64)))) if value.size else 0.0
    return np.asarray(rng.standard_normal(value.shape)) * (size or 1.0)


def along_gradients(at: Mapping[str, Any], gradients: Values, height: float, seed: int) -> Slope:
    """Reverse mode: a direction for each value that there is a gradient of, scaled by the gradient's size."""
    moves: Values = {}
    predicted, square = 0.0, 0.0
    for name, gradient in gradients.items():
        move = direction(name, np.asarray(at[name]), seed)
        norm = float(np.linalg.norm(gradient)) * (float(np.sqrt(np.mean(move * move))) if move.size else 0.0)
        if norm > max(abs(height), 1e-30):
            move *= abs(height) / norm if height else 1e-30 / norm
            norm = abs(height)
        moves[name] = move
        predicted += float(np.vdot(gradient, move))
        square += norm * norm
    return Slope(moves, predicted, float(np.sqrt(square)))


def compare(slope: Slope, height: Callable[[Values], float], at: Mapping[str, Any], base: float) -> tuple[float, bool]:
    """(relative difference of a slope from differences, whether the differences can be trusted)."""
    scale = max(slope.size, LEAST * abs(base), 1e-30)
    start = {name: widen(np.asarray(at[name])) for name in slope.moves}
    found: list[tuple[float, float]] = []
    for step in STEPS:
        up, down = (height({name: start[name] + sign * step * move for name, move in slope.moves.items()})
                    for sign in (1.0, -1.0))
        found.append((up, down))
        error = abs((up - down) / (2 * step) - slope.predicted) / scale
        if error <= ALLOWED:
            return error, True
    return error, _smooth(found, height(start), scale)


def _smooth(sides: Sequence[tuple[float, float]], middle: float, scale: float) -> bool:
    """Whether both steps tell the same slope, and the function does not bend right at the middle (as where a maximum
    is a tie): the slopes on both sides of a bend differ by as much for each step, those of a curve by the step."""
    if not np.isfinite(sides).all():
        return False
    slopes = [(up - down) / (2 * step) for (up, down), step in zip(sides, STEPS)]
    bends = [abs(up + down - 2 * middle) / step for (up, down), step in zip(sides, STEPS)]
    bent = bends[0] / scale > UNSETTLED and bends[1] < 2 * bends[0]
    return abs(slopes[0] - slopes[1]) / scale <= UNSETTLED and not bent


def verdict(rows: Iterable[dict[str, Any]], zero: list[str]) -> Check:
    """From rows of `difference`, `settled`, `sizes`, `of` (names): each group of names needs a row that is settled."""
    check = Check(rows=list(rows), zero=zero)
    settled = [row for row in check.rows if row["settled"]]
    check.difference = max((row["difference"] for row in settled), default=None)
    bad = [row for row in settled if not row["difference"] <= ALLOWED]
    if bad:
        check.status = FAILED
        check.reason = f"wrong along {', '.join(bad[0]['of'][:4])}"
    elif {tuple(row["of"]) for row in settled} < {tuple(row["of"]) for row in check.rows} or not settled:
        check.reason = "differences do not settle: the function jumps or bends too often there"
    else:
        check.status = PASSED
        loose = len(check.rows) - len(settled)
        if loose:
            check.reason = f"{loose} of {len(check.rows)} directions left out: the function jumps or bends there"
    return check
