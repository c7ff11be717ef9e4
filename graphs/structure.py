"""The rules every graph obeys: each value is made once, every value read exists, and no node needs itself."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from .errors import InvalidModel
from .ir import Graph

MAX_NESTING = 31  # graphs in attributes of nodes (If, Loop, Scan): more of them no ONNX file holds that protobuf reads
TOO_DEEP = f"graphs lie in one another (If, Loop, Scan) more than {MAX_NESTING} deep, the limit of ONNX files"
FLATTEN = "nest fewer graphs"


def check_outputs(graph: Graph) -> None:
    """Raise InvalidModel where nothing is asked for: such a model loads in a runtime, and no run of it succeeds."""
    if not graph.outputs:
        raise InvalidModel(f"graph {graph.name!r}", "it has no outputs, so that nothing can be computed with it",
                           "list the values that are wanted as outputs")


def check_structure(graph: Graph, where: str = "") -> None:
    """Sort the nodes of a graph and of its nested graphs; raise InvalidModel where they break the rules."""
    for name, found, fix in structure_problems(graph):
        raise InvalidModel(where or f"graph {graph.name!r}, value {name!r}", found, fix)
    for each in graph.walk():
        each.sort()


def structure_problems(graph: Graph, outer: frozenset[str] = frozenset()) -> Iterator[tuple[str, str, str]]:
    """(value name, what was found, what to do) for each broken rule; cycles are found by `Graph.sort`."""
    made: dict[str, str] = {}

    def define(name: str, by: str) -> Iterator[tuple[str, str, str]]:
        if name in made:
            yield (name, f"value {name!r} is written twice, by {made[name]} and by {by}",
                   "give each value a name of its own")
        made[name] = by

    for name in graph.inputs:
        if not name:
            yield name, "an input has no name", "name every graph input"
        elif name in made:
            yield name, f"input {name!r} is listed twice (a duplicate)", "list each input once"
        made[name] = "the graph's inputs"
    for name in graph.constants:
        yield from define(name, "an initializer")
    for node in graph.nodes:
        for name in node.outputs:
            if name:
                yield from define(name, node.label)
    known = outer | made.keys()
    for node in graph.nodes:
        for name in node.inputs:
            if name and name not in known:
                yield (name, f"{node.label} reads {name!r}, which no node, input or initializer makes "
                       "(an unknown value)", "connect this input to an existing value")
        for inner in node.graphs:
            yield from structure_problems(inner, known)
    for name in graph.outputs:
        if name not in known:
            yield (name, f"graph output {name!r} is unknown: no node, input or initializer makes it",
                   "make this value or take it off the outputs")


def drop_unused_constants(graph: Graph, keep: Collection[str] = ()) -> None:
    """Forget the constants that no node (or nested graph) reads and that are no output."""
    used = {name for node in graph.nodes for name in node.uses} | set(graph.outputs) | set(keep)
    graph.constants = {name: value for name, value in graph.constants.items() if name in used}
