"""Extraction as an integer program: one variable for each e-node, one for each class, order variables in cycles.

Classes that every choice needs are fixed, so that what lies between them falls apart into programs of its own. Flows
from each of them make the relaxation tight.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import networkx as nx

from .flows import add_flows
from .linear import INFINITY, LinearModel, minimize
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


def candidates(problem: Problem, classes: list[int]) -> dict[int, list[ENode]]:
    """E-nodes of each class without those that another one beats: same needs, no cheaper. What takes more time
    together with others beats nothing."""
    dear = {index for tile in problem.tiles if tile.saving < 0 for index in tile.enodes}
    found: dict[int, list[ENode]] = {}
    for cls in classes:
        best: dict[tuple[frozenset[int], int], ENode] = {}
        for enode in problem.usable.get(cls, ()):
            needs = frozenset(child for child in enode.children if problem.free.get(child, 1.0) > 0)
            key = needs, enode.index if enode.index in dear else -1
            other = best.get(key)
            if other is None or _rank(problem, enode) < _rank(problem, other):
                best[key] = enode
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

    def __init__(self, problem: Problem, start: Mapping[int, ENode], price: Mapping[int, float]) -> None:
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
        self.spread = 0.0
        self._columns()
        for cls in self.usable:
            self._rows(cls)
        self.tile_column: dict[int, int] = {}
        self._tiles()
        self.flows = add_flows(self.model, self.usable, self.enode_column, self.needed, price)

    def _keep(self, enode: ENode) -> None:
        """Let an e-node be chosen though another one of its class beats it."""
        if enode.cls in self.usable and all(enode.index != each.index for each in self.usable[enode.cls]):
            self.usable[enode.cls].append(enode)

    def _columns(self) -> None:
        """A constant of few bytes, which many e-nodes read, is charged to each of them: a column for it would tie
        together what has nothing else in common. `spread` is what this adds at most."""
        problem, model = self.problem, self.model
        charged = [cls for cls, charge in problem.free.items() if charge > TIE * self.price]
        apart = set(charged)
        self.needed = needed = necessary(self.usable, problem.roots, [*self.usable, *charged])
        for cls, enodes in self.usable.items():
            self.class_column[cls] = model.column(0.0, float(cls in needed), 1.0, False)
            for enode in enodes:
                tie = 0.0 if enode.kind in ("leaf", "proj") else TIE * SCALE * (1.0 if enode.origin is None else 0.5)
                small = sum(problem.free[child] for child in set(enode.children).intersection(problem.free) - apart)
                self.spread += small
                price = min((problem.cost[enode.index] + small) * self.factor, 1e9) + tie
                self.enode_column[enode.index] = model.column(price, 0.0, 1.0, True)
            size = self.component[cls][1]
            if size > 1:
                self.order_column[cls] = model.column(0.0, 0.0, float(size), False)
        for cls in charged:
            self.class_column[cls] = model.column(problem.free[cls] * self.factor, float(cls in needed), 1.0, False)

    def _rows(self, cls: int) -> None:
        model, enodes, infinity = self.model, self.usable[cls], INFINITY
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
        model, infinity, sharing = self.model, INFINITY, dict[int, list[int]]()
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
        for flow in self.flows:
            for column in flow.path(choice):
                values[column] = 1.0
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


def necessary(usable: Mapping[int, list[ENode]], roots: Iterable[int], columns: Collection[int]) -> set[int]:
    """Classes that every choice needs, whatever else it takes.

    What a class needs is itself, and what is common to all of its e-nodes, each of which needs what its arguments need:
    the greatest sets for which this holds. Choices have no cycles, so that they are right by induction from the
    leaves. The sets are bits of integers.
    """
    place = {cls: position for position, cls in enumerate(columns)}
    everything = (1 << len(place)) - 1
    needs = {cls: everything if cls in usable else 1 << position for cls, position in place.items()}
    order = list(usable)[::-1]  # from the leaves, by and large
    changed = True
    while changed:
        changed = False
        for cls in order:
            common = everything
            for enode in usable[cls]:
                own = 0
                for child in enode.children:
                    own |= needs.get(child, 0)
                common &= own
            common |= 1 << place[cls]
            changed = changed or common != needs[cls]
            needs[cls] = common
    found = 0
    for root in roots:
        found |= needs.get(root, 0)
    return {cls for cls, position in place.items() if found >> position & 1}


def solve(problem: Problem, start: Mapping[int, ENode], price: Mapping[int, float], time_budget: float,
          node_budget: int) -> Solution:
    """Solve from a start that is itself a valid choice. `price`: about what each class costs with all it needs."""
    if all(root in problem.free for root in problem.roots) or math.isinf(problem.price(start)):
        return Solution(None, None, "nothing to choose")
    program = _Program(problem, start, price)
    found = minimize(program.model, time_budget, node_budget, program.start(start))
    # The tie-break prices are part of the bound; taking all of them off keeps it a bound.
    slack = TIE * SCALE * len(program.usable) + program.spread * program.factor
    bound = max(0.0, (found.bound - slack) / program.factor) if math.isfinite(found.bound) else None
    if found.values is None:
        return Solution(None, bound, found.status)
    choice: dict[int, ENode] = {}
    for cls, enodes in program.usable.items():
        for enode in enodes:
            if found.values[program.enode_column[enode.index]] > 0.5:
                choice[cls] = enode
    return Solution(choice if math.isfinite(problem.price(choice)) else None, bound, found.status)
