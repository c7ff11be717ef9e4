"""Random valid graphs, the same for the same seed. A new operator is one line in `operators.py`; kinds of graphs other
than the plain one, which has no loops, no quantization and so on, are in `kinds.py`."""

from __future__ import annotations

from graphs.errors import EgraftError
from graphs.ir import Graph

from .kinds import KINDS, opset_of
from .maker import Maker, Refused
from .motifs import step

LEAST, MOST, MORE = 3, 30, 5
OF_ITS_KIND = 0.35  # share of the steps


def generate(seed: int, smooth: bool = True, kind: str = "") -> Graph:
    """A graph of 3 to 30 nodes. `smooth`: nothing discontinuous reads what rounding can move. `kind`: of `KINDS`."""
    for attempt in range(20):
        graph = _attempt(seed * 20 + attempt, smooth, kind)
        if graph is not None:
            graph.name = f"fuzz {seed} {kind}".strip()
            return graph
    raise RuntimeError(f"seed {seed} gives no graph")


def _attempt(seed: int, smooth: bool, kind: str) -> Graph | None:
    m = Maker(seed, smooth, opset_of(seed, kind) if kind else 0)
    recipes = list(KINDS[kind].values()) if kind else []
    more = MORE if kind else 0  # to rewrite, around what no rule knows
    wanted = m.number(LEAST, 14) if m.chance(0.7) else m.number(LEAST, MOST)
    failures = 0
    missing = bool(recipes)
    while (len(m.b._graph.nodes) < wanted + more or missing) and failures < 200:
        try:
            if recipes and (len(m.b._graph.nodes) >= wanted + more or m.chance(OF_ITS_KIND)):
                m.one_of(recipes)(m)
                missing = False
            else:
                step(m)
        except Refused:
            failures += 1
    _outputs(m)
    try:
        graph = m.b.graph()
    except EgraftError:
        return None
    _drop_unused_inputs(m, graph)
    return graph if LEAST <= graph.node_count() <= MOST + 10 + 6 * more and graph.inputs else None


def _outputs(m: Maker) -> None:
    """What nobody reads, some of what somebody reads, now and then an input."""
    nodes = m.b._graph.nodes
    read = {name for node in nodes for name in node.uses}
    made = [out for node in nodes for out in node.outputs if out]
    known = {value.name: value for value in m.values}
    ends = [name for name in made if name not in read and name in known]
    inner = [name for name in made if name in read and name in known]
    chosen = ends if m.chance(0.8) else ends[-1:]
    for name in chosen:
        m.b.output(known[name], f"y{len(m.b._graph.outputs)}" if m.chance(0.5) else "")
    for _ in range(m.one_of([0, 0, 0, 1, 2])):
        name = m.one_of(inner) if inner else ""
        if name and name not in m.b._graph.outputs:
            m.b.output(known[name])
    used = [name for name in m.b._graph.inputs if name in read and name in known]
    if used and m.chance(0.06):
        m.b.output(known[m.one_of(used)])


def _drop_unused_inputs(m: Maker, graph: Graph) -> None:
    """Most graphs use all their inputs."""
    read = {name for node in graph.nodes for name in node.uses} | set(graph.outputs)
    kept = [name for name in graph.inputs if name in read]
    if kept and not m.chance(0.05):
        gone = set(graph.inputs) - set(kept)
        graph.inputs = kept
        for name in gone:
            graph.types.pop(name, None)
            graph.declared.pop(name, None)
