"""Greedy extraction: bottom-up, each class by itself (trees) or with what it needs (DAGs)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from .saturated import ENode
from .selection import Problem, order_of


@dataclass(frozen=True)
class Trees:
    """An e-node for each class, and what each class costs so if nothing is shared; classes of constants included."""

    choice: dict[int, ENode]
    price: dict[int, float]


def _parents(problem: Problem) -> dict[int, list[ENode]]:
    parents: dict[int, list[ENode]] = {}
    for enodes in problem.usable.values():
        for enode in enodes:
            for child in problem.children(enode):
                parents.setdefault(child, []).append(enode)
    return parents


def tree_greedy(problem: Problem) -> Trees:
    """Cheapest tree for each class (Knuth 1977, "A generalization of Dijkstra's algorithm"): best where nothing is
    shared."""
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
    return Trees(choice, best)


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
