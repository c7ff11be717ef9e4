"""Nodes that the target runs as one kernel: extraction learns of them from the graphs that it chooses."""

from __future__ import annotations

from collections.abc import Callable

from graphs.ir import Graph
from search import ENode, Saturated, build, extract
from search.tiles import Tile, merged, tile_of

from .context import Context

ROUNDS = 3  # of looking what the target makes of the choice, and choosing again


def tiles_in(graph: Graph, enodes: list[ENode | None], context: Context) -> list[Tile]:
    """What the target joins in a graph whose nodes are these e-nodes, and what is faster as a generated kernel."""
    found: list[Tile] = []
    for place, saving in context.costs.neighbourhoods(graph):
        members = [enode for index in place.nodes if (enode := enodes[index]) is not None]
        if len(members) == len(place.nodes):
            found.append(tile_of(members, saving))
    if context.explorer is not None:
        from .fusing import tiles_in as fused_tiles

        found += fused_tiles(graph, enodes, context)
    return found


def learn(saturated: Saturated, best: extract.Selection, tiles: list[Tile], context: Context,
          again: Callable[[], extract.Selection]) -> extract.Selection:
    """The choice when what the target joins in the input and in the choices is counted.

    `tiles` grows; `again` chooses with what it holds by then.
    """
    looked: list[extract.Selection] = []
    for selection in (extract.incumbent(saturated, extract.node_count), best):
        _look(saturated, selection, tiles, context)
        looked.append(selection)
    for _ in range(ROUNDS):
        if not tiles:
            break
        best = again()
        if any(best.same_as(each) for each in looked):
            break
        before = len(tiles)
        _look(saturated, best, tiles, context)
        looked.append(best)
        if len(tiles) == before:
            break
    return best


def _look(saturated: Saturated, selection: extract.Selection, tiles: list[Tile], context: Context) -> None:
    graph, enodes = build.placed(saturated.graph, saturated, selection)
    tiles[:] = merged([*tiles, *tiles_in(graph, enodes, context)])
