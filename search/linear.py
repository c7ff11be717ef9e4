"""Mixed-integer programs, solved part by part: what no constraint ties together is solved alone, equal parts once."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import highspy
import networkx as nx
import numpy as np

INFINITY = highspy.kHighsInf
OPTIMAL, INFEASIBLE = "Optimal", "Infeasible"  # as HiGHS says it
TOLERANCE = 1e-6  # HiGHS's own, of a constraint
_FEASIBLE = 2  # HiGHS's primal_solution_status


@dataclass
class LinearModel:
    """A program under construction: columns with a cost and bounds, rows over them."""

    costs: list[float] = field(default_factory=list)
    lower: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    integer: list[bool] = field(default_factory=list)
    starts: list[int] = field(default_factory=lambda: [0])
    columns: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    row_lower: list[float] = field(default_factory=list)
    row_upper: list[float] = field(default_factory=list)

    def column(self, cost: float, lower: float, upper: float, integer: bool) -> int:
        """A new variable; answers its number."""
        self.costs.append(cost)
        self.lower.append(lower)
        self.upper.append(upper)
        self.integer.append(integer)
        return len(self.costs) - 1

    def row(self, terms: Iterable[tuple[int, float]], lower: float, upper: float) -> None:
        """A new constraint on a weighted sum of columns."""
        for column, value in terms:
            self.columns.append(column)
            self.values.append(value)
        self.starts.append(len(self.columns))
        self.row_lower.append(lower)
        self.row_upper.append(upper)

    def terms(self, row: int) -> list[tuple[int, float]]:
        """What a constraint sums up."""
        span = slice(self.starts[row], self.starts[row + 1])
        return list(zip(self.columns[span], self.values[span]))

    def key(self) -> tuple[tuple[float, ...], ...]:
        """Equal for equal programs."""
        return tuple(tuple(each) for each in (self.costs, self.lower, self.upper, self.integer, self.starts,
                                              self.columns, self.values, self.row_lower, self.row_upper))

    def lp(self) -> highspy.HighsLp:
        """As the solver takes it."""
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = len(self.costs), len(self.row_lower)
        lp.col_cost_ = np.array(self.costs, float)
        lp.col_lower_, lp.col_upper_ = np.array(self.lower, float), np.array(self.upper, float)
        lp.row_lower_, lp.row_upper_ = np.array(self.row_lower, float), np.array(self.row_upper, float)
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = np.array(self.starts)
        lp.a_matrix_.index_ = np.array(self.columns)
        lp.a_matrix_.value_ = np.array(self.values, float)
        kinds = highspy.HighsVarType
        lp.integrality_ = [kinds.kInteger if each else kinds.kContinuous for each in self.integer]
        return lp


@dataclass(frozen=True)
class Minimum:
    """What was found: values of the columns (None without any that fit), a proved lower bound, and the solver's word
    for how it ended, `Optimal` if all parts did so."""

    values: list[float] | None
    bound: float
    status: str


class QuietSolver(highspy.Highs):
    """The constructor turns callbacks on, and that prints a banner unless output is off by then."""

    def enableCallbacks(self) -> None:
        self.setOptionValue("output_flag", False)
        super().enableCallbacks()


def minimize(model: LinearModel, time_budget: float, node_budget: int | None = None,
             guess: Sequence[float] | None = None) -> Minimum:
    """The least cost within all constraints. `guess`: values that fit, from which a part is begun, and which it keeps
    where nothing better is found in time. `node_budget`: of branch and bound, for each part; `time_budget`: seconds.

    Columns whose bounds are equal tie nothing together: the more of them, the smaller the parts.
    """
    end = time.monotonic() + time_budget
    values = [low if low == high else math.nan for low, high in zip(model.lower, model.upper)]
    known: dict[object, Minimum] = {}
    bound = math.fsum(model.costs[column] * value for column, value in enumerate(values) if not math.isnan(value))
    status = OPTIMAL
    if not all(_holds(model, values, row) for row in range(len(model.row_lower))):
        return Minimum(None, -math.inf, INFEASIBLE)
    for columns, rows in _parts(model, values):
        part = _part(model, values, columns, rows)
        start = None if guess is None else [guess[column] for column in columns]
        key = part.key(), tuple(start or ())
        if key not in known:
            known[key] = _single(part) or _chosen(part) or _solve(part, max(0.0, end - time.monotonic()), node_budget,
                                                                  start)
        found = known[key]
        if found.status != OPTIMAL:
            status = found.status
        bound += found.bound
        chosen = found.values or start
        if chosen is None:
            return Minimum(None, -math.inf, status)
        for column, value in zip(columns, chosen):
            values[column] = value
    return Minimum(values, bound, status)


def _holds(model: LinearModel, values: Sequence[float], row: int) -> bool:
    """False for a constraint of known values that is broken."""
    total = math.fsum(factor * values[column] for column, factor in model.terms(row))
    return math.isnan(total) or model.row_lower[row] - TOLERANCE <= total <= model.row_upper[row] + TOLERANCE


def _parts(model: LinearModel, values: Sequence[float]) -> list[tuple[list[int], list[int]]]:
    """(columns, rows) of what no constraint ties to the rest, by the first column; without columns of known values."""
    net = nx.utils.UnionFind(column for column, value in enumerate(values) if math.isnan(value))
    first: dict[int, int] = {}
    for row in range(len(model.row_lower)):
        free = [column for column, _ in model.terms(row) if math.isnan(values[column])]
        if free:
            net.union(*free)
            first[row] = free[0]
    found: dict[int, tuple[list[int], list[int]]] = {}
    for column in net:
        found.setdefault(net[column], ([], []))[0].append(column)
    for row, column in first.items():
        found[net[column]][1].append(row)
    return [(sorted(columns), rows) for columns, rows in found.values()]


def _part(model: LinearModel, values: Sequence[float], columns: list[int], rows: list[int]) -> LinearModel:
    part, place = LinearModel(), dict[int, int]()
    for column in columns:
        place[column] = part.column(model.costs[column], model.lower[column], model.upper[column],
                                    model.integer[column])
    for row in rows:
        terms = model.terms(row)
        known = math.fsum(value * values[column] for column, value in terms if column not in place)
        part.row([(place[column], value) for column, value in terms if column in place],
                 model.row_lower[row] - known, model.row_upper[row] - known)
    return part


def _single(part: LinearModel) -> Minimum | None:
    """The best value of one integer between its bounds. None where the part is more than that."""
    if part.integer != [True]:
        return None
    low, high = part.lower[0], part.upper[0]
    for row, (least, most) in enumerate(zip(part.row_lower, part.row_upper)):
        factor = math.fsum(value for _, value in part.terms(row))
        if not factor:
            return None
        ends = sorted((least / factor, most / factor))
        low, high = max(low, ends[0]), min(high, ends[1])
    if max(abs(low), abs(high)) >= INFINITY:
        return None
    low, high = math.ceil(low - TOLERANCE), math.floor(high + TOLERANCE)
    if low > high:
        return Minimum(None, -math.inf, INFEASIBLE)
    best = float(low if part.costs[0] >= 0 else high)
    return Minimum([best], part.costs[0] * best, OPTIMAL)


def _chosen(part: LinearModel) -> Minimum | None:
    """One of several, and nothing else: the cheapest. None where the part is more than that."""
    binary = all(part.integer) and set(part.lower) == {0.0} and set(part.upper) == {1.0}
    if not binary or part.row_lower != [1.0] or part.row_upper != [1.0] or (
            len(part.columns) != len(part.costs) or set(part.values) != {1.0}):
        return None
    best = min(range(len(part.costs)), key=lambda column: (part.costs[column], column))
    return Minimum([float(column == best) for column in range(len(part.costs))], part.costs[best], OPTIMAL)


def _solve(part: LinearModel, seconds: float, node_budget: int | None, guess: list[float] | None) -> Minimum:
    solver = _solved(part, guess, seconds, node_budget)
    if guess is not None and not _told(solver, part):
        solver = _solved(part, None, seconds, node_budget)
    info = solver.getInfo()
    bound = info.mip_dual_bound if any(part.integer) else info.objective_function_value
    return Minimum(list(solver.getSolution().col_value) if info.primal_solution_status == _FEASIBLE else None,
                   bound if math.isfinite(bound) and abs(bound) < INFINITY else -math.inf,
                   solver.modelStatusToString(solver.getModelStatus()))


def _solved(part: LinearModel, guess: list[float] | None, seconds: float, node_budget: int | None) -> QuietSolver:
    solver = QuietSolver()
    # Feasibility jump, which looks for a start, took two thirds of the time: most parts are small, and have a start.
    for option, value in (("threads", 1), ("random_seed", 0), ("mip_rel_gap", 1e-6), ("time_limit", float(seconds)),
                          ("mip_heuristic_run_feasibility_jump", False)):
        solver.setOptionValue(option, value)
    if node_budget is not None:
        solver.setOptionValue("mip_max_nodes", int(node_budget))
    solver.passModel(part.lp())
    if guess is not None:
        solution = highspy.HighsSolution()
        solution.col_value = guess
        solver.setSolution(solution)
    solver.run()
    return solver


def _told(solver: QuietSolver, part: LinearModel) -> bool:
    """Are the values those of the objective? Where presolving solves everything, HiGHS 1.16 answers `Optimal` with the
    best objective and the values of the guess."""
    info = solver.getInfo()
    if info.primal_solution_status != _FEASIBLE:
        return True
    found = float(np.dot(solver.getSolution().col_value, part.costs))
    return abs(found - info.objective_function_value) <= 1e-6 * max(1.0, abs(found))
