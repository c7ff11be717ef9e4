"""What extraction chooses from: classes, their usable e-nodes with costs, and a choice with what it costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from .saturated import ENode, Saturated
from .tiles import Tile, merged, saved

Cost = Callable[[ENode], float]
BYTE_COST = 1e-13  # what a byte that folding adds to the file costs, in seconds
FOLD_LIMIT = float(1 << 28)  # bytes of one folded constant; above that its nodes run each time and cost what they cost


@dataclass(eq=False)
class Selection:
    """One e-node for each class that the outputs need. `bound`: nothing cheaper than this exists (proved)."""

    choice: dict[int, ENode]
    cost: float
    method: str
    bound: float | None = None
    status: str = ""

    @property
    def gap(self) -> float | None:
        """How much cheaper, as a part of the cost, another choice could still be."""
        if self.bound is None:
            return None
        return 0.0 if self.cost <= 0 else max(0.0, (self.cost - self.bound) / self.cost)

    def same_as(self, other: Selection) -> bool:
        """The same e-nodes."""
        mine, theirs = ({cls: enode.index for cls, enode in each.choice.items()} for each in (self, other))
        return mine == theirs


@dataclass
class Problem:
    """Classes and costs of one extraction. `free` classes are constants: terminal, only their bytes are charged."""

    saturated: Saturated
    cost: list[float]
    usable: dict[int, list[ENode]]
    free: dict[int, float]
    constants: dict[int, ENode]
    roots: list[int]
    forbidden: Collection[int] = ()
    tiles: Sequence[Tile] = ()

    def children(self, enode: ENode) -> list[int]:
        """Classes that an e-node needs and that are chosen for."""
        return [child for child in enode.children if child not in self.free]

    def price(self, choice: Mapping[int, ENode]) -> float:
        """The cost of a choice: every needed e-node once, less what tiles save. Infinite where it has a hole or a
        cycle.
        """
        total, done, open_ = 0.0, set[int](), set[int]()
        stack = [(root, False) for root in self.roots]
        while stack:
            cls, leaving = stack.pop()
            if leaving:
                open_.discard(cls)
                done.add(cls)
                continue
            if cls in done:
                continue
            if cls in self.free:
                total += self.free[cls]
                done.add(cls)
                continue
            enode = choice.get(cls)
            if cls in open_ or enode is None:
                return math.inf
            open_.add(cls)
            total += self.cost[enode.index]
            stack.append((cls, True))
            stack += [(child, False) for child in enode.children]
        if self.tiles:
            total -= saved({cls: choice[cls] for cls in done if cls not in self.free}, self.roots, self.tiles)
        return total

    def finish(self, choice: Mapping[int, ENode], method: str, bound: float | None = None,
               status: str = "") -> Selection:
        """A selection of what the outputs need, constants included."""
        needed: dict[int, ENode] = {}
        stack = list(self.roots)
        while stack:
            cls = stack.pop()
            if cls in needed:
                continue
            needed[cls] = self.constants[cls] if cls in self.free else choice[cls]
            stack += needed[cls].children
        return Selection(dict(sorted(needed.items())), self.price(choice), method, bound, status)

    def reachable(self) -> list[int]:
        """Classes that some choice could need, roots first."""
        seen = dict.fromkeys(root for root in self.roots if root not in self.free)
        stack = list(seen)
        while stack:
            for enode in self.usable.get(stack.pop(), ()):
                for child in self.children(enode):
                    if child not in seen:
                        seen[child] = None
                        stack.append(child)
        return list(seen)


def prepare(saturated: Saturated, cost: Cost, byte_cost: float = BYTE_COST,
            forbidden: Collection[int] = (), tiles: Iterable[Tile] = ()) -> Problem:
    """Price all e-nodes. `forbidden`: indices of e-nodes that may not be chosen."""
    left_out = set(forbidden)
    constants = _constant_choice(saturated, left_out)
    free = _free(saturated, constants, byte_cost)
    prices = [math.inf] * len(saturated.enodes)
    usable: dict[int, list[ENode]] = {}
    for enode in saturated.enodes:
        if enode.index in left_out or enode.cls in free or not writable(enode) or enode.cls in enode.args:
            continue
        prices[enode.index] = 0.0 if enode.kind in ("leaf", "proj") else float(cost(enode))
        if not math.isinf(prices[enode.index]) or enode.kind == "opaque":
            usable.setdefault(enode.cls, []).append(enode)
    # Whatever the price says, the input itself can always be chosen.
    for cls, enode in saturated.incumbent.items():
        if cls not in free and math.isinf(prices[enode.index]):
            prices[enode.index] = 1e9
            usable.setdefault(cls, []).append(enode)
    return Problem(saturated, prices, usable, free, constants, list(dict.fromkeys(saturated.outputs)), left_out,
                   [tile for tile in merged(tiles) if all(not math.isinf(prices[index]) for index in tile.enodes)])


def writable(enode: ENode) -> bool:
    """True where the e-node can be written as an ONNX node (or is one of the input's)."""
    return enode.kind != "op" or enode.origin is not None or not isinstance(enode.spelling, str)


def _free(saturated: Saturated, constants: Mapping[int, ENode], byte_cost: float) -> dict[int, float]:
    free: dict[int, float] = {}
    for cls, enode in constants.items():
        type_ = saturated.types.get(cls)
        size = (type_.static_bytes or 0.0) if type_ is not None else 0.0
        present = enode.kind == "leaf" and enode.leaf is not None and bool(enode.leaf.name)
        if present or size <= FOLD_LIMIT:
            free[cls] = 0.0 if present else size * byte_cost
    return free


def _constant_choice(saturated: Saturated, left_out: Collection[int]) -> dict[int, ENode]:
    """For each constant class the fewest nodes that compute it; the input's own constants first."""
    members = [enode for enode in saturated.enodes
               if enode.cls in saturated.constant and writable(enode) and enode.index not in left_out]
    best: dict[int, float] = {}
    chosen: dict[int, ENode] = {}
    changed = True
    while changed:
        changed = False
        for enode in members:
            if any(child not in best for child in enode.children):
                continue
            price = _constant_price(enode) + sum(best[child] for child in enode.children)
            if price < best.get(enode.cls, math.inf):
                best[enode.cls], chosen[enode.cls] = price, enode
                changed = True
    return chosen


def _constant_price(enode: ENode) -> float:
    if enode.leaf is not None:
        return 0.0 if enode.leaf.name else 0.5
    return 1.0 if enode.origin is None else 0.9


def order_of(choice: Mapping[int, ENode], roots: Iterable[int]) -> list[int]:
    """Needed classes in an order in which every e-node comes after its arguments."""
    order: list[int] = []
    seen: set[int] = set()
    stack = [(root, False) for root in reversed(list(roots))]
    while stack:
        cls, leaving = stack.pop()
        if leaving:
            order.append(cls)
        elif cls not in seen:
            seen.add(cls)
            stack.append((cls, True))
            stack += [(child, False) for child in reversed(choice[cls].children)]
    return order
