"""Extraction: the cheapest graph in an e-graph, where a node that is used twice costs once.

`greedy` is quick and may miss sharing, `exact` proves how far from the best it is, `diverse` gives a few choices
that differ, to be measured. None of them returns anything that costs more than the input.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from .greedy import Trees, dag_greedy, tree_greedy
from .saturated import ENode, Saturated
from .selection import BYTE_COST, Cost, Problem, Selection, prepare
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
    choice, name = _best_greedy(problem, tree_greedy(problem))
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
    trees = tree_greedy(problem)
    start, name = _best_greedy(problem, trees)
    price = problem.price(start)
    solution = solve(problem, start, trees.price, time_budget, node_budget)
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


def _best_greedy(problem: Problem, trees: Trees) -> tuple[Mapping[int, ENode], str]:
    """The cheapest of the input, the tree-greedy and the DAG-greedy choice; the input where they are equal."""
    best: Mapping[int, ENode] = problem.saturated.incumbent
    name, price = "input", problem.price(best)
    for label, choice in (("tree-greedy", trees.choice), ("dag-greedy", dag_greedy(problem, trees.choice))):
        found = problem.price(choice)
        if found < price * (1 - 1e-12):
            best, name, price = choice, label, found
    return best, name


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
