"""Tiles: e-nodes that run as one kernel if they are chosen together, and what that saves: the target joins them when it
loads the graph, or a kernel is generated for them.

The cost of a graph is then the sum of its nodes less what its tiles save. A tile counts where all its e-nodes are
chosen and nothing else reads what lies inside it; a tile that costs (a fusion of the runtime's that does not pay) is
charged on the same terms. Of tiles that share an e-node one counts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from .saturated import ENode, Saturated


@dataclass(frozen=True, slots=True)
class Tile:
    """Indices of e-nodes, the classes that lie inside (all that do not leave it), and seconds that are saved. `fused`:
    the target does not do it by itself, a Fused node has to be written."""

    enodes: frozenset[int]
    inner: frozenset[int]
    saving: float
    fused: bool = False


def tile_of(enodes: Sequence[ENode], saving: float, fused: bool = False, leaving: Collection[int] = ()) -> Tile:
    """The tile of e-nodes in order, the one whose value leaves it last. `leaving`: other classes that leave it."""
    inner = frozenset(enode.cls for enode in enodes) - {enodes[-1].cls, *leaving}
    return Tile(frozenset(enode.index for enode in enodes), inner, saving, fused)


def merged(tiles: Iterable[Tile]) -> list[Tile]:
    """One of each set of e-nodes and what leaves it, what saves most first; an order that does not depend on how they
    were found."""
    one_each: dict[tuple[frozenset[int], frozenset[int]], Tile] = {}
    for tile in tiles:
        one_each.setdefault((tile.enodes, tile.inner), tile)
    return sorted(one_each.values(), key=lambda tile: (-tile.saving, sorted(tile.enodes), sorted(tile.inner)))


def outside_readers(saturated: Saturated, tile: Tile) -> list[int]:
    """Indices of e-nodes that read an inner class and are not of the tile."""
    return [enode.index for enode in saturated.enodes
            if enode.index not in tile.enodes and not tile.inner.isdisjoint(enode.args)]


def counted(choice: Mapping[int, ENode], roots: Collection[int], tiles: Sequence[Tile]) -> list[int]:
    """Positions of the tiles that count in a choice of nothing but what is needed."""
    if not tiles:
        return []
    chosen = {enode.index for enode in choice.values()}
    readers: dict[int, set[int]] = {}
    for enode in choice.values():
        for arg in enode.args:
            readers.setdefault(arg, set()).add(enode.index)
    taken: set[int] = set()
    found: list[int] = []
    for position, tile in enumerate(tiles):
        if not tile.enodes <= chosen or not tile.inner.isdisjoint(roots) or taken & tile.enodes:
            continue
        if all(readers.get(cls, set()) <= tile.enodes for cls in tile.inner):
            taken |= tile.enodes
            found.append(position)
    return found


def saved(choice: Mapping[int, ENode], roots: Collection[int], tiles: Sequence[Tile]) -> float:
    """Seconds that the tiles of a choice save."""
    return sum(tiles[position].saving for position in counted(choice, roots, tiles))
