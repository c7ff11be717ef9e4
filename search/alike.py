"""Nested graphs up to the names of their inner values."""

from __future__ import annotations

from collections.abc import Iterator

from graphs.ir import Graph


def plain(graph: Graph, depth: int = 0) -> Graph:
    """A copy of a nested graph whose own values are called by their place; what it captures keeps its name."""
    result = graph.copy()
    renaming = {name: f"%{depth}.{place}" for place, name in enumerate(_own(graph))}
    for node in result.nodes:
        node.outputs = tuple(renaming.get(name, name) for name in node.outputs)
        node.attrs = {name: plain(value, depth + 1) if isinstance(value, Graph) else value
                      for name, value in node.attrs.items()}
    result.rename_uses(renaming, outputs=True)
    result.name, result.inputs = "", [renaming[name] for name in graph.inputs]
    result.constants = {new: graph.constants[old] for old, new in renaming.items() if old in graph.constants}
    result.types = {renaming.get(name, name): type_ for name, type_ in graph.types.items()}
    return result


def _own(graph: Graph) -> dict[str, None]:
    """Inputs, then constants and results in the order in which nodes and outputs name them."""
    return dict.fromkeys([*graph.inputs, *_named(graph)])


def _named(graph: Graph) -> Iterator[str]:
    for node in graph.nodes:
        yield from (name for name in node.uses if name in graph.constants)
        yield from (name for name in node.outputs if name)
    yield from (name for name in graph.outputs if name in graph.constants)
