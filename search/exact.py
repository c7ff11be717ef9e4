"""Extraction as an integer program: one variable for each e-node, one for each class, order variables in cycles."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import highspy
import networkx as nx
import numpy as np

from .saturated import ENode
from .selection import Problem
from .tiles import counted, outside_readers

SCALE = 1e4  # what the start's cost is scaled to, so that the solver's absolute tolerances are small
TIE = 1e-7  # of the start's cost: what a node more is worth where times are equal


@dataclass
class Solution:
    """What the solver found: a choice if it found one, and a proved lower bound in the problem's units."""

    choice: dict[int, ENode] | None
    bound: float | None
    status: str


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

    def row(self, terms: list[tuple[int, float]], lower: float, upper: float) -> None:
        """A new constraint on a weighted sum of columns."""
        for column, value in terms:
            self.columns.append(column)
            self.values.append(value)
        self.starts.append(len(self.columns))
        self.row_lower.append(lower)
        self.row_upper.append(upper)

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


def candidates(problem: Problem, classes: list[int]) -> dict[int, list[ENode]]:
    """E-nodes of each class without those that another one beats: same needs, no cheaper."""
    found: dict[int, list[ENode]] = {}
    for cls in classes:
        best: dict[frozenset[int], ENode] = {}
        for enode in problem.usable.get(cls, ()):
            needs = frozenset(child for child in enode.children if problem.free.get(child, 1.0) > 0)
            other = best.get(needs)
            if other is None or _rank(problem, enode) < _rank(problem, other):
                best[needs] = enode
        found[cls] = list(best.values())
    return found


def _rank(problem: Problem, enode: ENode) -> tuple[float, bool, int]:
    return problem.cost[enode.index], enode.origin is None, enode.index


def _components(problem: Problem, usable: Mapping[int, list[ENode]]) -> dict[int, tuple[int, int]]:
    """Class -> (number of its strongly connected component, that one's size)."""
    net = nx.DiGraph()
    for cls, enodes in usable.items():
        net.add_node(cls)
        net.add_edges_from((cls, child) for enode in enodes for child in problem.children(enode))
    return {cls: (number, len(component)) for number, component in enumerate(nx.strongly_connected_components(net))
            for cls in component}


class _Program:
    """The model with the columns of its parts."""

    def __init__(self, problem: Problem, start: Mapping[int, ENode]) -> None:
        self.problem, self.model = problem, LinearModel()
        self.usable = candidates(problem, problem.reachable())
        for enode in start.values():  # the start itself must be expressible
            self._keep(enode)
        for tile in problem.tiles:
            for index in sorted(tile.enodes):
                self._keep(problem.saturated.enodes[index])
        self.price = max(problem.price(start), 1e-30)
        self.factor = SCALE / self.price
        self.component = _components(problem, self.usable)
        self.class_column: dict[int, int] = {}
        self.enode_column: dict[int, int] = {}
        self.order_column: dict[int, int] = {}
        self._columns()
        for cls in self.usable:
            self._rows(cls)
        self.tile_column: dict[int, int] = {}
        self._tiles()

    def _keep(self, enode: ENode) -> None:
        """Let an e-node be chosen though another one of its class beats it."""
        if enode.cls in self.usable and all(enode.index != each.index for each in self.usable[enode.cls]):
            self.usable[enode.cls].append(enode)

    def _columns(self) -> None:
        problem, model = self.problem, self.model
        for cls, enodes in self.usable.items():
            needed = 1.0 if cls in problem.roots else 0.0
            self.class_column[cls] = model.column(0.0, needed, 1.0, False)
            for enode in enodes:
                tie = 0.0 if enode.kind in ("leaf", "proj") else TIE * SCALE * (1.0 if enode.origin is None else 0.5)
                price = min(problem.cost[enode.index] * self.factor, 1e9) + tie
                self.enode_column[enode.index] = model.column(price, 0.0, 1.0, True)
            size = self.component[cls][1]
            if size > 1:
                self.order_column[cls] = model.column(0.0, 0.0, float(size), False)
        for cls, charge in problem.free.items():
            if charge > 0:
                self.class_column[cls] = model.column(charge * self.factor, 0.0, 1.0, False)

    def _rows(self, cls: int) -> None:
        model, enodes, infinity = self.model, self.usable[cls], highspy.kHighsInf
        chosen = [(self.enode_column[enode.index], 1.0) for enode in enodes]
        model.row([*chosen, (self.class_column[cls], -1.0)], 0.0, 0.0)
        children = dict.fromkeys(child for enode in enodes for child in enode.children if child in self.class_column)
        for child in children:
            users = [(self.enode_column[enode.index], 1.0) for enode in enodes if child in enode.children]
            model.row([*users, (self.class_column[child], -1.0)], -infinity, 0.0)
            ordered = cls in self.order_column and child in self.order_column
            if ordered and self.component[cls][0] == self.component[child][0]:
                big = self.component[cls][1] + 1.0
                terms = [(self.order_column[child], 1.0), (self.order_column[cls], -1.0)]
                model.row([*terms, *((column, big) for column, _ in users)], -infinity, big - 1.0)

    def _tiles(self) -> None:
        """A column for each tile that can be chosen: 1 only if it counts, and if it costs, 0 only if it does not."""
        model, infinity, sharing = self.model, highspy.kHighsInf, dict[int, list[int]]()
        for position, tile in enumerate(self.problem.tiles):
            members = [self.enode_column.get(index) for index in sorted(tile.enodes)]
            if None in members or not tile.inner.isdisjoint(self.problem.roots):
                continue
            chosen = [(column, 1.0) for column in members if column is not None]
            outside = [(self.enode_column[index], 1.0) for index in outside_readers(self.problem.saturated, tile)
                       if index in self.enode_column]
            own = self.tile_column[position] = model.column(-tile.saving * self.factor, 0.0, 1.0, True)
            if tile.saving > 0:
                for column in [*chosen, *outside]:
                    inside = column in chosen
                    model.row([(own, 1.0), (column[0], -1.0 if inside else 1.0)], -infinity, 0.0 if inside else 1.0)
                for index in sorted(tile.enodes):
                    sharing.setdefault(index, []).append(own)
            else:
                others = sorted({column for index in tile.enodes for column in sharing.get(index, ())})
                terms = [*chosen, *((column, -1.0) for column, _ in outside), *((column, -1.0) for column in others)]
                model.row([*terms, (own, -1.0)], -infinity, len(chosen) - 1.0)
        for columns in dict.fromkeys(tuple(each) for each in sharing.values() if len(each) > 1):
            model.row([(column, 1.0) for column in columns], -infinity, 1.0)

    def start(self, choice: Mapping[int, ENode]) -> list[float]:
        """Column values of a choice."""
        values = [0.0] * len(self.model.costs)
        depth: dict[int, int] = {}
        needed = _needed(self.problem, choice)
        chosen = {cls: choice[cls] for cls in needed if cls not in self.problem.free}
        for position in counted(chosen, self.problem.roots, self.problem.tiles):
            if position in self.tile_column:
                values[self.tile_column[position]] = 1.0
        for cls in needed:
            if cls in self.problem.free:
                if cls in self.class_column:
                    values[self.class_column[cls]] = 1.0
                continue
            enode = choice[cls]
            values[self.class_column[cls]] = values[self.enode_column[enode.index]] = 1.0
            inside = [depth[child] + 1 for child in enode.children
                      if child in depth and self.component[child][0] == self.component[cls][0]]
            depth[cls] = max(inside, default=0)
            if cls in self.order_column:
                values[self.order_column[cls]] = float(depth[cls])
        return values


def _needed(problem: Problem, choice: Mapping[int, ENode]) -> list[int]:
    """Classes that a choice needs, arguments first."""
    order: list[int] = []
    seen: set[int] = set()
    stack = [(root, False) for root in problem.roots]
    while stack:
        cls, leaving = stack.pop()
        if leaving:
            order.append(cls)
        elif cls not in seen:
            seen.add(cls)
            stack.append((cls, True))
            if cls not in problem.free:
                stack += [(child, False) for child in choice[cls].children]
    return order


class QuietSolver(highspy.Highs):
    """The constructor turns callbacks on, and that prints a banner unless output is off by then."""

    def enableCallbacks(self) -> None:
        self.setOptionValue("output_flag", False)
        super().enableCallbacks()


def _solved(program: _Program, guess: list[float] | None, time_budget: float, node_budget: int) -> QuietSolver:
    solver = QuietSolver()
    for option, value in (("threads", 1), ("random_seed", 0), ("mip_rel_gap", 1e-6),
                          ("time_limit", float(time_budget)), ("mip_max_nodes", int(node_budget))):
        solver.setOptionValue(option, value)
    solver.passModel(program.model.lp())
    if guess is not None:
        solution = highspy.HighsSolution()
        solution.col_value = guess
        solver.setSolution(solution)
    solver.run()
    return solver


def _told(solver: QuietSolver, program: _Program) -> bool:
    """Are the values those of the objective? Where presolving solves everything, HiGHS 1.16 answers `Optimal` with the
    best objective and the values of the guess."""
    info = solver.getInfo()
    if info.primal_solution_status != 2:
        return True
    found = float(np.dot(solver.getSolution().col_value, program.model.costs))
    return abs(found - info.objective_function_value) <= 1e-6 * max(1.0, abs(found))


def solve(problem: Problem, start: Mapping[int, ENode], time_budget: float, node_budget: int) -> Solution:
    """Solve from a start that is itself a valid choice."""
    if all(root in problem.free for root in problem.roots) or math.isinf(problem.price(start)):
        return Solution(None, None, "nothing to choose")
    program = _Program(problem, start)
    solver = _solved(program, program.start(start), time_budget, node_budget)
    if not _told(solver, program):
        solver = _solved(program, None, time_budget, node_budget)
    status = solver.modelStatusToString(solver.getModelStatus())
    info = solver.getInfo()
    # The tie-break prices are part of the bound; taking all of them off keeps it a bound.
    slack = TIE * SCALE * len(program.usable)
    bound = (info.mip_dual_bound - slack) / program.factor if math.isfinite(info.mip_dual_bound) else None
    bound = None if bound is None else max(0.0, bound)
    if info.primal_solution_status != 2:  # 2: feasible
        return Solution(None, bound, status)
    values = solver.getSolution().col_value
    choice: dict[int, ENode] = {}
    for cls, enodes in program.usable.items():
        for enode in enodes:
            if values[program.enode_column[enode.index]] > 0.5:
                choice[cls] = enode
    return Solution(choice if math.isfinite(problem.price(choice)) else None, bound, status)
