"""Extraction: the cheapest graph in an e-graph, where a node that is used twice costs once.

`greedy` is quick and may miss sharing, `exact` proves how far from the best it is, `diverse` gives a few choices
that differ, to be measured. None of them returns anything that costs more than the input.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from heapq import heapify, heappop, heappush

from .saturated import ENode, Saturated
from .selection import BYTE_COST, Cost, Problem, Selection, order_of, prepare
from .tiles import Tile

__all__ = ["Cost", "Selection", "diverse", "exact", "greedy", "incumbent", "node_count"]


def node_count(enode: ENode) -> float:
    """A cost: every node that runs counts 1."""
    return 1.0 if enode.kind in ("op", "opaque") else 0.0


def incumbent(saturated: Saturated, cost: Cost, byte_cost: float = BYTE_COST,
              tiles: Sequence[Tile] = ()) -> Selection:
    """The input graph as a selection (equal nodes merged)."""
    problem = prepare(saturated, cost, byte_cost, (), tiles)
    price = problem.price(saturated.incumbent)
    needed: dict[int, ENode] = {}
    stack = list(problem.roots)
    while stack:
        cls = stack.pop()
        if cls not in needed:
            needed[cls] = saturated.incumbent[cls]
            stack += needed[cls].children
    return Selection(dict(sorted(needed.items())), price, "input")


def greedy(saturated: Saturated, cost: Cost, byte_cost: float = BYTE_COST,
           forbidden: Collection[int] = ()) -> Selection:
    """The best of two greedy choices and of the input."""
    problem = prepare(saturated, cost, byte_cost, forbidden)
    choice, name = _best_greedy(problem)
    if name == "input":
        return incumbent(saturated, cost, byte_cost)
    return problem.finish(choice, name)


def exact(saturated: Saturated, cost: Cost, time_budget: float = 10.0, node_budget: int = 2_000,
          byte_cost: float = BYTE_COST, forbidden: Collection[int] = (), tiles: Sequence[Tile] = ()) -> Selection:
    """The cheapest choice by integer programming, started from the best greedy choice or the input.

    `node_budget` bounds the branch-and-bound nodes (reproducible), `time_budget` is the emergency brake. `bound` and
    `gap` of the result say what was proved. `tiles` are e-nodes that cost another amount together.
    """
    from .exact import solve  # the solver takes long to import

    problem = prepare(saturated, cost, byte_cost, forbidden, tiles)
    start, name = _best_greedy(problem)
    price = problem.price(start)
    solution = solve(problem, start, time_budget, node_budget)
    if solution.choice is not None:
        found = problem.price(solution.choice)
        if found < price or (name != "input" and found <= price):
            return problem.finish(solution.choice, "exact", _at_most(solution.bound, found), solution.status)
    if name == "input":
        selection = incumbent(saturated, cost, byte_cost, tiles)
        selection.bound, selection.status = _at_most(solution.bound, selection.cost), solution.status
        return selection
    return problem.finish(start, name, _at_most(solution.bound, price), solution.status)


def _at_most(bound: float | None, cost: float) -> float | None:
    return None if bound is None else min(bound, cost)


def _best_greedy(problem: Problem) -> tuple[Mapping[int, ENode], str]:
    """The cheapest of the input, the tree-greedy and the DAG-greedy choice; the input where they are equal."""
    best: Mapping[int, ENode] = problem.saturated.incumbent
    name, price = "input", problem.price(best)
    tree = tree_greedy(problem)
    for label, choice in (("tree-greedy", tree), ("dag-greedy", dag_greedy(problem, tree))):
        found = problem.price(choice)
        if found < price * (1 - 1e-12):
            best, name, price = choice, label, found
    return best, name


def _parents(problem: Problem) -> dict[int, list[ENode]]:
    parents: dict[int, list[ENode]] = {}
    for enodes in problem.usable.values():
        for enode in enodes:
            for child in problem.children(enode):
                parents.setdefault(child, []).append(enode)
    return parents


def tree_greedy(problem: Problem) -> dict[int, ENode]:
    """Cheapest tree for each class (Knuth's algorithm): best where nothing is shared."""
    parents = _parents(problem)
    best = dict(problem.free)
    choice: dict[int, ENode] = {}
    missing: dict[int, int] = {}
    ready: list[tuple[float, int]] = []
    for enodes in problem.usable.values():
        for enode in enodes:
            missing[enode.index] = len(problem.children(enode))
            if not missing[enode.index]:
                charge = sum(best[child] for child in enode.children)
                ready.append((problem.cost[enode.index] + charge, enode.index))
    heapify(ready)
    while ready:
        price, index = heappop(ready)
        enode = problem.saturated.enodes[index]
        if enode.cls in best:
            continue
        best[enode.cls], choice[enode.cls] = price, enode
        for parent in parents.get(enode.cls, ()):
            missing[parent.index] -= 1
            if not missing[parent.index]:
                total = problem.cost[parent.index] + sum(best[child] for child in parent.children)
                heappush(ready, (total, parent.index))
    return choice


def dag_greedy(problem: Problem, tree: Mapping[int, ENode]) -> dict[int, ENode]:
    """Like `tree_greedy`, but each class carries the set of what it needs, so that sharing counts once.

    Classes are visited in the order of the tree choice, arguments first, so that most are settled when they are used.
    """
    parents = _parents(problem)
    needs: dict[int, dict[int, float]] = {cls: {cls: price} if price else {} for cls, price in problem.free.items()}
    total: dict[int, float] = dict(problem.free)
    choice: dict[int, ENode] = {}
    rank = {cls: position for position, cls in enumerate(order_of({**problem.constants, **tree}, tree))}
    work = [(rank.get(enode.cls, len(rank)), enode.index) for enodes in problem.usable.values() for enode in enodes]
    heapify(work)
    waiting = {index for _, index in work}
    while work:
        enode = problem.saturated.enodes[heappop(work)[1]]
        waiting.discard(enode.index)
        children = enode.children
        if any(child not in needs for child in children):
            continue
        joined = _joined(enode, children, needs, total, problem.cost[enode.index])
        if joined is None:
            continue
        price = sum(joined.values())
        if price < total.get(enode.cls, math.inf) * (1 - 1e-12):
            total[enode.cls], needs[enode.cls], choice[enode.cls] = price, joined, enode
            for parent in parents.get(enode.cls, ()):
                if parent.index not in waiting:
                    waiting.add(parent.index)
                    heappush(work, (rank.get(parent.cls, len(rank)), parent.index))
    return choice


def _joined(enode: ENode, children: tuple[int, ...], needs: Mapping[int, dict[int, float]],
            total: Mapping[int, float], price: float) -> dict[int, float] | None:
    """What an e-node needs, or None if that is no gain or a cycle."""
    if not children:
        return {enode.cls: price}
    largest = max(children, key=lambda child: len(needs[child]))
    if total[largest] + price >= total.get(enode.cls, math.inf):
        return None
    if any(enode.cls in needs[child] for child in children):
        return None
    joined = dict(needs[largest])
    for child in children:
        if child != largest:
            joined.update(needs[child])
    joined[enode.cls] = price
    return joined


def diverse(saturated: Saturated, cost: Cost, count: int = 4, time_budget: float = 10.0, node_budget: int = 2_000,
            byte_cost: float = BYTE_COST) -> list[Selection]:
    """A few good selections that differ, the cheapest first: least cost, fewest nodes, without rules that join."""
    joins = {index for index, rule in enumerate(saturated.rules) if rule.group or len(rule.before) > 1}
    names = {saturated.rules[index].name for index in joins}
    joined = [enode.index for enode in saturated.enodes if enode.rules and set(enode.rules) <= names]
    found = [exact(saturated, cost, time_budget, node_budget, byte_cost)]
    if joined:
        found.append(exact(saturated, cost, time_budget, node_budget, byte_cost, joined))
    found.append(_repriced(saturated, exact(saturated, node_count, time_budget, node_budget, byte_cost), cost,
                           byte_cost))
    found.append(_repriced(saturated, greedy(saturated, node_count, byte_cost), cost, byte_cost))
    found.append(incumbent(saturated, cost, byte_cost))
    distinct: list[Selection] = []
    for selection in found:
        if not any(selection.same_as(other) for other in distinct):
            distinct.append(selection)
    return sorted(distinct, key=lambda selection: selection.cost)[:count]


def _repriced(saturated: Saturated, selection: Selection, cost: Cost, byte_cost: float) -> Selection:
    price = prepare(saturated, cost, byte_cost).price(selection.choice)
    return Selection(selection.choice, price, f"{selection.method}, fewest nodes")
