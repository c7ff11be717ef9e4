"""Which of the measured groups to take: the set packing of greatest gain, solved exactly."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from graphs.ir import Graph
from runtime.fusion import Group

from ..linear import LinearModel, minimize

SCALE = 1e6  # gains in microseconds, so that the solver's absolute tolerances are small


def best_packing(groups: Sequence[tuple[Group, float]], shared: Collection[int], seconds: float = 10.0,
                 apart: Iterable[Collection[int]] = ()) -> list[int]:
    """The places in `groups` (with the seconds that each saves) of those that save most together and have no node in
    common, apart from `shared` ones, which may be computed twice. `apart`: places that are not taken all together."""
    useful = [place for place, (_, gain) in enumerate(groups) if gain > 0]
    if not useful:
        return []
    model = LinearModel()
    columns = {place: model.column(-groups[place][1] * SCALE, 0.0, 1.0, True) for place in useful}
    members: dict[int, list[int]] = {}
    for place in useful:
        for index in groups[place][0].nodes:
            if index not in shared:
                members.setdefault(index, []).append(place)
    for places in members.values():
        if len(places) > 1:
            model.row([(columns[place], 1.0) for place in places], 0.0, 1.0)
    for each in apart:
        if all(place in columns for place in each):
            model.row([(columns[place], 1.0) for place in each], 0.0, len(each) - 1.0)
    values = minimize(model, seconds).values
    assert values is not None  # to take none of them is always possible
    return [place for place in useful if values[columns[place]] > 0.5]


def packing_of(graph: Graph, groups: Sequence[tuple[Group, float]], shared: Collection[int]) -> list[int]:
    """The best packing of groups of a graph that can become nodes together: none is of no use beside another, and no
    groups of several outputs need each other."""
    alone = [group for group, _ in groups]
    apart: list[Collection[int]] = [*excluding(graph, alone, shared)]
    while True:
        found = best_packing(groups, shared, apart=apart)
        ring = ring_of(graph, [alone[place] for place in found], shared)
        if not ring:
            return found
        apart.append([found[place] for place in ring])


def ring_of(graph: Graph, groups: Sequence[Group], shared: Collection[int]) -> list[int]:
    """The places of groups each of which needs what the next one makes, the last one the first; empty without such."""
    makers = {name: index for index, node in enumerate(graph.nodes) for name in node.outputs if name}
    units = {index: ~index for index in range(len(graph.nodes))}  # nodes of their own are below 0
    for place, group in enumerate(groups):
        units.update((index, place) for index in group.nodes
                     if index not in shared or not set(graph.nodes[index].outputs).isdisjoint(group.outputs))
    needs: dict[int, set[int]] = {}
    members = [(unit, index) for index, unit in units.items()]
    members += [(place, index) for place, group in enumerate(groups) for index in group.nodes]
    own = [set(group.nodes) for group in groups]
    for unit, index in members:
        reads = {makers[name] for name in graph.nodes[index].uses if name in makers}
        needs.setdefault(unit, set()).update(units[each] for each in reads - (own[unit] if unit >= 0 else set()))
    state: dict[int, int] = {}  # 1: on the way down, 2: done
    for start in needs:
        if start in state:
            continue
        state[start], path = 1, [(start, iter(sorted(needs[start])))]
        while path:
            unit, rest = path[-1]
            following = next((each for each in rest if state.get(each) != 2), None)
            if following is None:
                state[unit] = 2
                path.pop()
            elif following in state:
                way = [each for each, _ in path]
                return [each for each in way[way.index(following):] if each >= 0]
            else:
                state[following] = 1
                path.append((following, iter(sorted(needs[following]))))
    return []


def excluding(graph: Graph, groups: Sequence[Group], shared: Collection[int]) -> set[tuple[int, int]]:
    """Pairs of places whose groups are of no use together: one reads, through its own copy of a `shared` node, what
    the other computes inside, so that those nodes would have to stay."""
    makers = {name: index for index, node in enumerate(graph.nodes) for name in node.outputs if name}
    holders: dict[int, list[int]] = {}
    for place, group in enumerate(groups):
        for index in group.nodes:
            holders.setdefault(index, []).append(place)
    found: set[tuple[int, int]] = set()
    for place, group in enumerate(groups):
        own = set(group.nodes)
        copied = [index for index in group.nodes if index in shared]
        read = {makers[name] for index in copied for name in graph.nodes[index].inputs if name in makers} - own
        for maker in read:
            found |= {(min(place, other), max(place, other)) for other in holders.get(maker, ())
                      if set(graph.nodes[maker].outputs).isdisjoint(groups[other].outputs)
                      and _computes(graph, maker, groups[other], makers, shared)}
    return found


def _computes(graph: Graph, index: int, group: Group, makers: Mapping[str, int], shared: Collection[int]) -> bool:
    """Whether a node of a group, or one in it that it needs, is not a shared one."""
    waiting, own = [index], set(group.nodes)
    while waiting:
        each = waiting.pop()
        if each not in shared:
            return True
        waiting += [makers[name] for name in graph.nodes[each].inputs if makers.get(name) in own]
    return False
